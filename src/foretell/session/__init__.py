"""A training session: trains any `Task` in a run directory, with metrics, checkpoints, signals and resuming."""
