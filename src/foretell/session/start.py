"""`Start`: a model that a training starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from foretell.config.model import ModelConfig
from foretell.model.decoder import Decoder
from foretell.model.init import empty_decoder
from foretell.paths import matches
from foretell.runs.record import StartRecord
from foretell.text import Tokenizer

if TYPE_CHECKING:  # the caller loads it; training imports nothing else of it
    from foretell.language_model import LanguageModel


@dataclass(frozen=True)
class Start:
    """A trained model that a training starts from, and the argument that named it."""

    argument: str
    model: LanguageModel

    @property
    def name(self) -> str:
        return Path(self.argument).name

    @property
    def config(self) -> ModelConfig:
        """The model's configuration, without dropout."""
        return self.model.decoder.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its weights in float32, in hex."""
        return self.model.weights_digest()

    def decoder(self, config: ModelConfig, trained: Sequence[str] = ("**",)) -> Decoder:
        """A decoder for training with the model's weights; `config` may have another dropout, or another length of the
        context if positions have no weights. Weights that no glob of `trained` matches share their memory."""
        decoder = empty_decoder(config)
        weights = {path: weight.detach() for path, weight in self.model.decoder.named_parameters()}
        weights |= {path: weights[path].clone() for path in weights if any(matches(glob, path) for glob in trained)}
        decoder.load_state_dict(weights, assign=True)
        return decoder.train()

    def notes(self) -> list[str]:
        """A line about the model, and the notes from loading it."""
        return [f"from        {self.name}: its weights, shape and tokenizer", *self.model.notes]

    def record(self) -> StartRecord:
        return StartRecord(model=self.argument, weights_sha256=self.digest)
