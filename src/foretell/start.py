"""A trained model that a training starts from: its weights, shape and tokenizer, and what run.json says about it."""

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
from foretell.model.init import empty_decoder
from foretell.text import Tokenizer


@dataclass(frozen=True)
class Start:
    """A trained model to continue from, and the argument that named it."""

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
        digest = hashlib.sha256()
        for path, weight in self.model.decoder.named_parameters():
            digest.update(path.encode())
            digest.update(weight.detach().numpy().data)
        return digest.hexdigest()

    def decoder(self, config: ModelConfig) -> Decoder:
        """A decoder for training with its weights; `config` differs from its own in dropout alone."""
        decoder = empty_decoder(config)
        weights = {path: weight.detach().clone() for path, weight in self.model.decoder.named_parameters()}
        decoder.load_state_dict(weights, assign=True)
        return decoder.train()

    def notes(self) -> list[str]:
        """What is taken from it, and the notes from loading it."""
        return [f"from        {self.name}: its weights, shape and tokenizer", *self.model.notes]

    def record(self) -> dict[str, Any]:
        """What run.json says about it."""
        return {"model": self.argument, "weights_sha256": self.digest}


def load_start(argument: str | Path) -> Start:
    """Any MODEL, in float32, its weights verified if it has a manifest. Errors are those of `load`."""
    model = load(argument, "cpu", "float32", verify=None)
    model.check_not_quantized("train")
    return Start(str(argument), model)


def find_start(record: dict[str, Any] | None, run: Path) -> Start | None:
    """The model that a run.json names, None if it names none; other weights are a `CheckpointError`."""
    if record is None:
        return None
    start = load_start(record["model"])
    if start.digest != record["weights_sha256"]:
        raise CheckpointError(
            f"{run} was started from {start.argument}, which has other weights now; start again with another --out"
        )
    return start
