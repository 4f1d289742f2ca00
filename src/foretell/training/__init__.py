"""Training of any objective: `loop` takes the steps, `step` is one step, `objective` the loss of language models."""
