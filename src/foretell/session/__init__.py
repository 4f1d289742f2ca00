"""Training sessions: train any `Task` in a run directory, with metrics, checkpoints, signals and resuming."""
