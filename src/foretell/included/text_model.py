"""Train an included model of text by its `recipe.toml`, and write it next to the recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from foretell.config.toml import read_toml
from foretell.generation.batch_generation import continue_prompt
from foretell.loading import load
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.saved_model.parts_on_disk import save_model
from foretell.session.display import choose_display
from foretell.session.protocol import run_training
from foretell.session.reporter import Reporters
from foretell.storage.manifest import READ_FOR_INFERENCE, write_manifest


def make_text_model(home: Path, source: Callable[[], Any], name: str, dtype: torch.dtype) -> None:
    """Train in runs/, then write the best checkpoint into a folder with a recipe. name: of the text."""
    run, recipe = Path("runs", home.name), read_toml(home / "recipe.toml")
    request = TextRequest(source=source, names=[name], out=run, size="tiny", overrides=recipe)
    with Reporters(choose_display(True)) as reporter:
        session = run_training(TextTraining(request, continue_prompt), reporter, resume=True)
    best = session.run.best()
    model = load(best.directory, "cpu", "float32")
    save_model(home, model.decoder, model.tokenizer, dtype)
    write_manifest(home, READ_FOR_INFERENCE)
    loss = session.task.describe_loss(best.training()["validation_loss"])
    print(f"{home.name} is step {best.step}: held-out loss {loss}")
