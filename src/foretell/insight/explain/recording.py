"""One pass over a text, recorded: the values, weights and tokens that an explanation refers to."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.errors import UsageError
from foretell.insight.dimensions import one_row
from foretell.insight.explain.arrays import Array, to_array
from foretell.insight.points import Derived
from foretell.insight.trace import Trace
from foretell.insight.wording import quoted
from foretell.language_model import LanguageModel
from foretell.model.dropout import Dropout


@dataclass(frozen=True, eq=False)
class Recording:
    """What a pass over a text left behind. All arrays are float64 and hold the recorded numbers exactly."""

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
        """How many of the head's scores belong to a token of the tokenizer; a head may have more rows than that."""
        return min(self.model.tokenizer.vocab_size, self.config.vocab_size)

    def stored(self, name: str) -> Tensor:
        """The value as recorded, in its own dtype, without the batch row and without what is always of size 1."""
        return one_row(name, self.trace[name])

    def array(self, name: str) -> Array:
        """The value in float64."""
        if name not in self._arrays:
            self._arrays[name] = to_array(self.stored(name))
        return self._arrays[name]

    def parameter(self, path: str) -> Tensor | None:
        """A weight of the model as it is now, by its path; None where the model has none."""
        return dict(self.model.decoder.named_parameters()).get(path)

    def weight(self, path: str, *index: int) -> Array:
        """A row of a weight, or one number of it, in float64."""
        return to_array(self.model.decoder.get_parameter(path)[index])

    def is_derived(self, name: str) -> bool:
        """Is the value one that no module hands out?"""
        return isinstance(self.trace.catalog.entries.get(name), Derived)

    def token(self, position: int) -> str:
        """The token at a position, in quotes."""
        return self.named(self.ids[position])

    def named(self, token: int) -> str:
        """A token of the vocabulary as a person reads it, in quotes; one that the tokenizer lacks by its number."""
        return quoted(self.model.tokenizer.text_of(token)) if token < self.vocabulary else f"no token ({token})"


def record(model: LanguageModel, text: str, select: str | list[str]) -> Recording:
    """Run the model over a text and keep the selected names.

    An empty text, or dropout that is at work, is a `UsageError`; a text longer than the context a `ContextLengthError`.
    """
    ids = model.encode_fitting(text)
    check_steady(model)
    with torch.no_grad(), Trace(model, select) as trace:
        model.decoder(torch.tensor([ids], device=model.device))
    return Recording(model, text, ids, trace)


def check_steady(model: LanguageModel) -> None:
    """Refuse a model whose dropout draws at random: its values cannot be recomputed from their operands."""
    for path, module in model.decoder.named_modules():
        if isinstance(module, Dropout) and module.training:
            raise UsageError(f"the model is in training mode, where {path} drops at random; call eval() on the decoder")
