"""From logits to tokens: `sampling` draws one, `sequence` holds a text in the making, `engine` runs the model.

Nothing here knows text; ids come in and ids go out.
"""
