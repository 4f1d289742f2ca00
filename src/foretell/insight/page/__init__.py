"""A pass over a text as one page that opens from disk: `collect` the numbers, `pack` them, `fit` a size, `write`."""
