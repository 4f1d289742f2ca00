"""GGUF, the one-file format of llama.cpp: written from a model, and read back for the parity check."""
