"""Training any objective: `loop` takes the steps, `step` is one of them, `objective` is that of language models."""
