"""A pass over a text: its recorded values as exact NumPy arrays, its logits and losses, and the weights it used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.errors import UsageError, check_type
from foretell.insight.address import MEMORY_PREFIX, POSITIONS_OF_TEXT, Address, Dimensions, dimensions_of, one_row
from foretell.insight.implied_values import implied_values
from foretell.insight.replacement import Replacement
from foretell.insight.trace import GRADIENT, TRACE_BYTES, Trace
from foretell.language_model import LanguageModel, check_model, resolve_position
from foretell.model.cache import KVView
from foretell.model.decoder import HEAD, Decoder, check_logits, rows_at_once
from foretell.model.dropout import Dropout
from foretell.model.quantized_linear import QuantizedMatrix, quantized_layers, stored_matrix
from foretell.model.structure import Structure, Value
from foretell.typesetting.document import ending, quoted

Array = NDArray[np.floating[Any]]
Texts = Mapping[str, Sequence[str]]  # texts for the indices of a dimension, such as the labels of outputs


def steady_ids(model: LanguageModel, text: str | list[int]) -> list[int]:
    """The ids of a text (or given ids), for a pass that can be reproduced.

    Raises `UsageError` for an empty text or active dropout, `ContextLengthError` for a text longer than the context.
    """
    check_model(model)
    for path, module in model.decoder.named_modules():
        if isinstance(module, Dropout) and module.training:
            raise UsageError(
                f"the model is in training mode, where {path} drops values at random; call eval() on the decoder"
            )
    if not isinstance(text, list):
        return model.encode_fitting(text)
    if not text:
        raise UsageError("the text is empty; give at least one id")
    model.decoder.check_length(len(text))
    return text


def choose_token(model: LanguageModel, token: str | int | None, logits: Tensor) -> int:
    """The id of a token given as text or id; None for the most probable. Raises `UsageError` for several tokens."""
    if token is None:
        return int(logits.argmax())
    check_type("a token", token, str | Integral, "a text or an id")
    return model.tokenizer.id_of(token)


def with_token_ids(model: LanguageModel, address: Address, dimensions: Dimensions) -> Address:
    """The address with token texts replaced by token ids."""
    index = [
        model.tokenizer.id_of(entry) if isinstance(entry, str) and meaning == "token" else entry
        for meaning, entry in zip(dimensions, address.index, strict=False)
    ]
    return Address(address.name, (*index, *address.index[len(dimensions) :]))


def to_array(value: Tensor) -> Array:
    """The tensor as float64 on the CPU, which is exact for all smaller floating-point types."""
    return value.detach().cpu().double().numpy()


@dataclass(frozen=True, eq=False)
class RecordedPass:
    """A recorded pass over a text, also with a memory. Arrays are float64, which represents the numbers exactly."""

    model: LanguageModel
    ids: list[int]
    trace: Trace
    hidden: Tensor  # (T, D), after the last norm
    _arrays: dict[str, Array] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.model.decoder.config

    @property
    def structure(self) -> Structure:
        return self.trace.structure

    def value(self, name: str) -> Value:
        """The description of a named value, traced or implied; for a gradient, of its value."""
        plain = name.removeprefix(GRADIENT)
        return self.structure.values.get(plain) or self._implied[plain]

    @cached_property
    def _implied(self) -> dict[str, Value]:
        return implied_values(self.structure)

    def dimensions(self, name: str) -> Dimensions:
        """The meaning of each dimension of `stored(name)`."""
        return dimensions_of(self.value(name), self.structure)

    def module(self, value: Value) -> nn.Module:
        """The module whose call produces a value."""
        return self.model.decoder.get_submodule(value.module)

    @property
    def vocabulary(self) -> int:
        """The number of tokens with a logit; a head may have more rows than the tokenizer has tokens."""
        return min(self.model.tokenizer.vocab_size, self.config.vocab_size)

    @cached_property
    def losses(self) -> list[float]:
        """The negative log-probability of each token except the first, given the tokens before it."""
        return (-self.model.token_log_probabilities(self.ids, self.hidden)).tolist()

    def stored(self, name: str) -> Tensor:
        """The value in its own dtype, without the batch row and dimensions that always have size 1."""
        return one_row(self.value(name), self.trace[name])

    def array(self, name: str) -> Array:
        """The value in float64."""
        if name not in self._arrays:
            self._arrays[name] = to_array(self.stored(name))
        return self._arrays[name]

    def logits(self, position: int) -> Tensor:
        """The logits (V,) after a position: recorded ones, or the head applied to its hidden state."""
        if "head" in self.trace.selected:
            return self.stored("head")[position].cpu()
        with torch.no_grad():
            return self.model.decoder.head(self.hidden[position]).cpu()

    def next_logits(self, position: int) -> Tensor:
        """The logits (V,) after a position, only of the tokenizer's tokens. Raises the error of `check_logits`."""
        return check_logits(self.logits(position)[: self.model.tokenizer.vocab_size])

    def pass_logits(self, position: int) -> Tensor:
        """The logits (V,) after a position, bit-identical to a pass over all; a single row may round differently."""
        if "head" in self.trace.selected:
            return self.stored("head")[position].cpu()
        rows = rows_at_once(self.model.decoder)
        start = max(0, min(position, len(self.hidden) - rows))
        with torch.no_grad():
            return self.model.decoder.head(self.hidden[start : start + rows])[position - start].cpu()

    def parameter(self, path: str) -> Tensor | None:
        return dict(self.model.decoder.named_parameters()).get(path)

    def weight(self, path: str, *index: int) -> Array:
        """A row or one number of a current weight, in float64."""
        if (layer := self._quantized(path)) is not None:
            row, *rest = index
            return to_array(layer.rows(slice(row, row + 1)).to(layer.dtype)[0])[tuple(rest)]
        return to_array(self.model.decoder.get_parameter(path)[index])

    def weight_column(self, path: str, column: int) -> Array:
        """The weights of one input, (outputs,), in float64."""
        layer = self._quantized(path)
        whole = self.model.decoder.get_parameter(path) if layer is None else layer.weight
        return to_array(whole[:, column])

    def stored_weight(self, path: str, row: int) -> dict[str, list[int] | list[float]]:
        """The integers, scales and minima of a row of a quantised weight; empty for a weight in floating point."""
        layer = self._quantized(path)
        return {name: values.tolist() for name, values in layer.stored(row).items()} if layer is not None else {}

    def _quantized(self, path: str) -> QuantizedMatrix | None:
        """The layer whose weight is at a path, if it is stored as integers."""
        owner, _, name = path.rpartition(".")
        layer = self.model.decoder.get_submodule(owner)
        return layer if name == "weight" and isinstance(layer, QuantizedMatrix) else None

    def setting(self, value: Value, name: str) -> Any:
        return setting_of(self.model.decoder, value, name)

    def weight_path(self, value: Value) -> str:
        return weight_path(self.model.decoder, value)

    def position(self, at: int) -> int:
        """A position counted from 0; a negative `at` counts from the end."""
        return resolve_position(at, len(self.ids))

    def after(self, position: int) -> str:
        """`after 'the end of the text' (position 3)`."""
        return f"after {ending(self.model.tokenizer.decode(self.ids[: position + 1]))} (position {position})"

    def token(self, position: int) -> str:
        return self.named(self.ids[position])

    def token_on(self, meaning: str, position: int) -> str:
        """The token at a position along a dimension of the text or the memory."""
        if meaning.startswith(MEMORY_PREFIX) and self.model.memory is not None:
            return quoted(self.model.memory.pieces[position])
        return self.token(position)

    def ids_on(self, meaning: str) -> Sequence[int]:
        """The ids that a dimension indexes, of the text or the memory."""
        memory = self.model.memory
        return memory.ids if memory is not None and meaning.startswith(MEMORY_PREFIX) else self.ids

    def named(self, token: int) -> str:
        """The text of a token id, in quotes; `no token (id)` for an id without a token."""
        return quoted(self.model.tokenizer.text_of(token)) if token < self.vocabulary else f"no token ({token})"

    def meanings(self, dimensions: Dimensions, index: tuple[int, ...], texts: Texts) -> list[str]:
        """The meaning of each entry of an index: `head 1`, `query 3 ' of'`. texts: of the indices of a dimension."""
        words = []
        for meaning, entry in zip(dimensions, index, strict=True):
            words.append(f"{meaning} {entry}")
            if meaning in texts:
                words[-1] += f" {texts[meaning][entry]}"
            elif meaning.removeprefix(MEMORY_PREFIX) in POSITIONS_OF_TEXT:
                words[-1] += f" {self.token_on(meaning, entry)}"
            elif meaning == "token":
                words[-1] += f" {self.named(entry)}"
        return words


def setting_of(decoder: Decoder, value: Value, name: str) -> Any:
    """A module attribute that a value's formula needs. Raises `UsageError` if the module does not have it."""
    module = decoder.get_submodule(value.module)
    try:
        return getattr(module, name)
    except AttributeError:
        kind = type(module).__name__
        raise UsageError(
            f"{value.module} is a {kind}, which declares the formula '{value.formula}' but has no '{name}'"
        ) from None


def weight_path(decoder: Decoder, value: Value) -> str:
    """The path of the weight that a value's module multiplies with, which may belong to another module."""
    module = decoder.get_submodule(value.module)
    layer = stored_matrix(module)
    for path, quantized in quantized_layers(decoder).items():
        if quantized is layer:
            return f"{path}.weight"
    weight = setting_of(decoder, value, "weight")
    for path, parameter in decoder.named_parameters():
        if parameter is weight:
            return path
    kind = type(module).__name__
    raise UsageError(f"{value.module} is a {kind}, whose weight is not a parameter and cannot be shown")


def record(
    model: LanguageModel,
    text: str | list[int],
    select: str | Sequence[str],
    replace: Mapping[str, Replacement] | None = None,
    *,
    structure: Structure | None = None,
    budget_bytes: int = TRACE_BYTES,
    kv: KVView | None = None,
) -> RecordedPass:
    """Run the model once over a text and record the selected names; with the options of `Trace`.

    kv: the view of the pass, for a caller that keeps keys and values. Raises the errors of `steady_ids`.
    """
    ids = steady_ids(model, text)
    trace = Trace(model, select, replace=replace, budget_bytes=budget_bytes, structure=structure)
    with torch.no_grad(), trace:
        hidden = model.decoder.hidden(torch.tensor([ids], device=model.device), kv)  # (1, T, D)
        # If the head is not selected, the logits of all positions are not needed
        if any(name.partition(".")[0] == HEAD for name in trace.selected):
            model.decoder.head(hidden)
    return RecordedPass(model, ids, trace, hidden[0])


@dataclass(frozen=True)
class TracedScalar:
    """One number of a value, at an index counted from 0."""

    value: Value
    index: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def source(self) -> str:
        """The name of the first value that the number is computed from."""
        return self.value.reads[0]
