"""What training leaves on disk: `checkpoint` holds a model and its training state, `run` the whole directory."""
