"""Train the small world's model by `recipe.toml` and write it here: `python -m foretell.included.atlas.make`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from foretell.config.toml import read_toml
from foretell.generation.batch_generation import continue_prompt
from foretell.included.atlas.world import documents
from foretell.loading import load
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.saved_model.parts_on_disk import save_model
from foretell.session.display import choose_display
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporters
from foretell.storage.manifest import READ_FOR_INFERENCE, write_manifest

HOME, RUN = Path(__file__).parent, Path("runs/atlas")
SEED, TEXTS = 1, 100_000


def make() -> None:
    """Train, then write the best checkpoint in float32 next to the recipe."""
    texts = cache(lambda: list(documents(SEED, TEXTS)))
    recipe = read_toml(HOME / "recipe.toml")
    request = TextRequest(source=texts, names=["the small world"], out=RUN, size="tiny", overrides=recipe)
    with Reporters(choose_display(True)) as reporter:
        session = run_training(TextTraining(request, continue_prompt), reporter, resume=True)
    best = session.run.best()
    model = load(best.directory, "cpu", "float32")
    save_model(HOME, model.decoder, model.tokenizer, torch.float32)
    write_manifest(HOME, READ_FOR_INFERENCE)
    print(f"atlas is step {best.step}: held-out loss {best.training()['validation_loss']:.3f}")


if __name__ == "__main__":
    make()
