"""Arithmetic that PyTorch and NumPy code share: activations, norms, counter-based random numbers."""
