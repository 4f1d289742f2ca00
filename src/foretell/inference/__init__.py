"""Ask a model about text: what comes `next`, how likely a text is (`score`), its vector (`embed`), its `completion`."""
