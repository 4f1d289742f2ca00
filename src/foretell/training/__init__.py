"""Training of any objective: `loop` runs the steps, `step` is one step, `objective` is the loss of language models."""
