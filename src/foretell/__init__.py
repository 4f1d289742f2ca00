"""foretell: a decoder (GPT) that you can see through."""
