"""Token ids in, token ids out: `engine` runs the model, `sampling` draws the next token, `sequence` holds the result.

Nothing here handles text.
"""
