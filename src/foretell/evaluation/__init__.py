"""Evaluation: loss of batches and texts (`perplexity`), accuracy at questions (`multiple_choice`)."""
