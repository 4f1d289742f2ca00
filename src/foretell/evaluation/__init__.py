"""Evaluation: loss on batches (`perplexity`) and on texts (`texts`), accuracy at questions (`multiple_choice`)."""
