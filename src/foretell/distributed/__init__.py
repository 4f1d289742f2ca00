"""One training on many processes: what torchrun started, sums and decisions, and how a model is spread over them."""
