"""Quantising a model with a text: calibrated int4, the error of each layer, and perplexity before and after."""
