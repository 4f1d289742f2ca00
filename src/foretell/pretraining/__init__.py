"""From a text to a trained model: `prepare` the tokens, `plan` size and steps, and `pretrain`."""
