"""Recorded tensors as NumPy arrays that hold them exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.errors import UsageError
from foretell.insight.address import POSITIONS, dimensions_of, one_row
from foretell.insight.points import Derived
from foretell.insight.trace import Trace
from foretell.insight.wording import quoted
from foretell.language_model import LanguageModel
from foretell.model.dropout import Dropout

Array = NDArray[np.floating[Any]]


def to_array(value: Tensor) -> Array:
    """The tensor as float64 on the CPU, which is exact for all smaller floating-point types."""
    return value.detach().cpu().double().numpy()


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded pass over a text. Arrays are float64 and hold the recorded numbers exactly."""

    model: LanguageModel
    text: str
    ids: list[int]
    trace: Trace
    _arrays: dict[str, Array] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.model.decoder.config

    @property
    def vocabulary(self) -> int:
        """The number of logits that belong to a token; a head may have more rows than the tokenizer has tokens."""
        return min(self.model.tokenizer.vocab_size, self.config.vocab_size)

    def stored(self, name: str) -> Tensor:
        """The value in its own dtype, without the batch row and dimensions that always have size 1."""
        return one_row(name, self.trace[name])

    def array(self, name: str) -> Array:
        """The value in float64."""
        if name not in self._arrays:
            self._arrays[name] = to_array(self.stored(name))
        return self._arrays[name]

    def parameter(self, path: str) -> Tensor | None:
        """The current weight at a path, or None."""
        return dict(self.model.decoder.named_parameters()).get(path)

    def weight(self, path: str, *index: int) -> Array:
        """A row or one number of a current weight, in float64."""
        return to_array(self.model.decoder.get_parameter(path)[index])

    def is_derived(self, name: str) -> bool:
        """True for a value that no module returns."""
        return isinstance(self.trace.catalog.entries.get(name), Derived)

    def token(self, position: int) -> str:
        """The token at a position, in quotes."""
        return self.named(self.ids[position])

    def named(self, token_id: int) -> str:
        """The text of a token id, in quotes; `no token (id)` for an id that the tokenizer lacks."""
        return (
            quoted(self.model.tokenizer.text_of(token_id)) if token_id < self.vocabulary else f"no token ({token_id})"
        )


def record(model: LanguageModel, text: str, select: str | list[str]) -> Recording:
    """Run the model over a text and record the selected names.

    Raises `UsageError` for an empty text or active dropout, `ContextLengthError` for a text longer than the context.
    """
    ids = model.encode_fitting(text)
    check_steady(model)
    with torch.no_grad(), Trace(model, select) as trace:
        model.decoder(torch.tensor([ids], device=model.device))
    return Recording(model, text, ids, trace)


def check_steady(model: LanguageModel) -> None:
    """Raise `UsageError` for a model with active dropout: its values cannot be recomputed from their operands."""
    for path, module in model.decoder.named_modules():
        if isinstance(module, Dropout) and module.training:
            raise UsageError(
                f"the model is in training mode, where {path} drops values at random; call eval() on the decoder"
            )


@dataclass(frozen=True)
class TracedScalar:
    """One number of a named value: the name, the index counted from 0, and the module whose call the value is from."""

    name: str
    index: tuple[int, ...]
    module: nn.Module

    @property
    def parent(self) -> str:
        """The name without its last segment."""
        return self.name.rpartition(".")[0]


def locate(name: str, index: tuple[int, ...], recording: Recording) -> TracedScalar:
    """The scalar at an index, with the module that has its name or the longest prefix of it."""
    modules = dict(recording.model.decoder.named_modules())
    owner = name
    while owner not in modules:
        owner = owner.rpartition(".")[0]
    return TracedScalar(name, index, modules[owner])


def meanings(recording: Recording, name: str, index: tuple[int, ...]) -> list[str]:
    """The meaning of each entry of an index: `head 1`, `query 3 ' of'`."""
    return [
        f"{meaning} {entry}{_named(recording, meaning, entry)}"
        for meaning, entry in zip(dimensions_of(name), index, strict=True)
    ]


def _named(recording: Recording, meaning: str, entry: int) -> str:
    if meaning in POSITIONS:
        return f" {recording.token(entry)}"
    return f" {recording.named(entry)}" if meaning == "token" else ""


def address_of(name: str, *index: int) -> str:
    """`name[1,3]`."""
    return f"{name}[{','.join(map(str, index))}]"
