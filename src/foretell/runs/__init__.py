"""What training leaves on disk: `files` writes safely, `saved_model` and `checkpoint` hold weights, `run` all of it."""
