"""Train the small world's model by `recipe.toml` and write it here: `python -m foretell.included.atlas.make`."""

from functools import cache
from pathlib import Path

import torch

from foretell.included.atlas.world import documents
from foretell.included.text_model import make_text_model

SEED, TEXTS = 1, 100_000

if __name__ == "__main__":
    texts = cache(lambda: list(documents(SEED, TEXTS)))
    make_text_model(Path(__file__).parent, texts, "the small world", torch.float32)
