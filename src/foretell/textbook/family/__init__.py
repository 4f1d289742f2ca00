"""The forward pass of every decoder that `ModelConfig` describes, one vector at a time: start with `decoder`.

A sequence is a list of vectors, one a token, and its numbers come out with one row a token, as the model's do. Weights
are addressed by their module paths, which are their keys on disk (`trunk.blocks.0.attention.query.weight`).
"""
