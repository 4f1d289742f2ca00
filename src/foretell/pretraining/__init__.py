"""The text task: from a text to a trained language model. `pretrain` is the way through the package."""
