"""The model that a run goes on from, where it does not begin with a new one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foretell.config import ModelConfig
from foretell.errors import CheckpointError
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights
from foretell.text import Tokenizer


@dataclass(frozen=True)
class Start:
    """A loaded model, and the argument that named it."""

    argument: str
    model: LanguageModel

    @property
    def name(self) -> str:
        return Path(self.argument).name

    @property
    def config(self) -> ModelConfig:
        """Its shape, without dropout."""
        return self.model.decoder.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its weights in float32, in hex."""
        found = hashlib.sha256()
        for path, weight in self.model.decoder.named_parameters():
            found.update(path.encode())
            found.update(weight.detach().numpy().data)
        return found.hexdigest()

    def decoder(self, config: ModelConfig) -> Decoder:
        """A decoder for training with its weights; `config` differs from its own in dropout alone."""
        weights = {path: weight.detach().clone() for path, weight in self.model.decoder.named_parameters()}
        return decoder_with_weights(config, weights).train()

    def notes(self) -> list[str]:
        """What is taken from it, and what was said when it was read."""
        return [f"from        {self.name}: its weights, shape and tokenizer", *self.model.notes]

    def record(self) -> dict[str, Any]:
        """What run.json says about it."""
        return {"model": self.argument, "weights_sha256": self.digest}


def load_start(argument: str | Path) -> Start:
    """Any MODEL, in float32. Errors are those of `load`."""
    return Start(str(argument), load(argument, "cpu", "float32"))


def find_start(record: dict[str, Any] | None, run: Path) -> Start | None:
    """The model that a run.json names, None where it names none; other weights are a `CheckpointError`."""
    if record is None:
        return None
    start = load_start(record["model"])
    if start.digest != record["weights_sha256"]:
        raise CheckpointError(
            f"{run} was started from {start.argument}, which has other weights now; start anew with another --out"
        )
    return start
