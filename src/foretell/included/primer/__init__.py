"""The model included in foretell, with its recipe: `make primer` trains it again."""
