"""From texts to batches, one step a file.

    sources   files, folders and standard input, read as documents
    corpora   the corpus that is always there: the reference topics inside Python
    split     which part of the text is held out for validation
    shards    documents as token ids on disk, memory-mapped
    loader    the batch of a step, as a function of (seed, step)
    batch     what a model is fed

Nothing is imported here, so that reading a file does not cost the import of torch.
"""
