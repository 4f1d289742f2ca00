"""From texts to batches.

    documents      Document: a text with its source, in memory or in a large file; the embedded corpus
    sources        read files, folders and standard input as documents
    lines          the lines of a file, compressed or not, strictly decoded
    table          rows with named columns from CSV, TSV, JSON, JSON Lines, Parquet and lines
    numbers        numbers with a decimal point or comma and separators of thousands
    questions      multiple-choice questions and text endings for evaluation
    split          the split into training and validation text
    shards         read token stores: ids on disk, checked before they are used
    shard_writer   write token stores
    loader         the batch of a step, as a function of (seed, step): windows of a text, or rows
    data_use       a sketch of the data that a model was trained and selected on
    batch          Batch: ids, targets, loss weights, positions, document ids

Nothing is imported here, so that reading a file does not import torch.
"""
