"""The files of a training: `checkpoint` holds a model and its training state, `run` the whole directory."""
