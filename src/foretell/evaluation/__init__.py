"""How good a model is: `perplexity` on text."""
