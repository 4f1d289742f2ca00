"""What the post on the toy says: its words, its two prompts, its settings, and how its loss fell."""

from __future__ import annotations

VOCABULARY = ("how", "is", "living", "in", "amsterdam", "exciting", "<EOS>")
END = "<EOS>"
PROMPTS = ("how is living in amsterdam <EOS>", "living in amsterdam is how <EOS>")
ANSWER = "exciting <EOS>"

WIDTH, CONTEXT = 4, 20
LEARNING_RATE, EPOCHS = 0.05, 100
FIRST_POSITION = [0, 1, 0, 1]
FIRST_LOSS, LAST_LOSS = 2.28, 0.0008  # of a run whose seed is not given
LIMIT = 0.01  # what every seed must come below
