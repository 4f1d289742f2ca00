"""One training on many processes: their launch, sums and decisions over them, and the placement of the model."""
