"""Training: `loop` is the whole story, `step` one optimizer step of it, `objective` what is minimised."""
