"""The text task: from a text to a trained language model. `TextTraining` is the way through the package."""
