"""The small world's model included in foretell, with its recipe: `make atlas` trains it again."""
