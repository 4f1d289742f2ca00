"""From texts to batches.

    documents      Document: a text with its source, in memory or in a file too large to hold
    sources        read files, folders and standard input as documents
    lines          the lines of a file, compressed or not, strictly decoded
    table          rows with named columns from CSV, TSV, JSON, JSON Lines, Parquet and lines
    corpora        the embedded corpus: the reference topics inside Python
    questions      multiple-choice questions and text endings for evaluation
    split          the split into training and validation text
    shards         read token stores: ids on disk, checked before they are used
    shard_writer   write token stores
    loader         the batch of a step, as a function of (seed, step)
    row_stream     rows of their own: padded, never joined; their order in training
    batch          Batch: ids, targets, loss weights, positions, document ids

Nothing is imported here, so that reading a file does not cost the import of torch.
"""
