"""Train the included model by `recipe.toml` and write it here: `python -m foretell.included.primer.make`."""

from pathlib import Path

import torch

from foretell.data.documents import EMBEDDED_CORPUS, embedded_corpus
from foretell.included.text_model import make_text_model

if __name__ == "__main__":
    make_text_model(Path(__file__).parent, embedded_corpus, EMBEDDED_CORPUS, torch.bfloat16)
