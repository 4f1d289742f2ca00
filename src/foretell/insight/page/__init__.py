"""The HTML page of a forward pass: `collect` the numbers, `pack` them, `fit` them to a size, `write_page`."""
