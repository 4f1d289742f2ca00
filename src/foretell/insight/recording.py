"""A pass over a text: its recorded values as exact NumPy arrays, and its prediction at a position."""

from __future__ import annotations

from collections.abc import Sequence
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
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel, check_model, resolve_position
from foretell.model.decoder import HEAD, Decoder, check_logits, rows_at_once
from foretell.model.description import UNKNOWN_FORMULA
from foretell.model.dropout import Dropout
from foretell.model.quantized_linear import QuantizedMatrix, quantized_layers, stored_matrix
from foretell.model.structure import Structure, Value
from foretell.typesetting.document import ending, quoted

Array = NDArray[np.floating[Any]]


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


@dataclass(frozen=True)
class Prediction:
    """A model's next-token prediction at position `at` of the ids; later ids do not influence it."""

    model: LanguageModel
    ids: list[int]
    at: int

    def logits(self) -> Tensor:
        """Run the model: logits (V,) at the position, only for the tokenizer's tokens."""
        hidden = self.model.decoder.hidden(torch.tensor([self.ids], device=self.model.device))  # (1, T, D)
        logits = self.model.decoder.head(hidden[:, self.at : self.at + 1])[0, 0, : self.model.tokenizer.vocab_size]
        return check_logits(logits)

    def __str__(self) -> str:
        return f"after {ending(self.model.tokenizer.decode(self.ids[: self.at + 1]))} (position {self.at})"


def make_prediction(model: LanguageModel, text: str | list[int], at: int = -1) -> Prediction:
    """The prediction after token `at` of a text or ids, counted from 0, or from the end if negative."""
    ids = steady_ids(model, text)
    return Prediction(model, ids, resolve_position(at, len(ids)))


def choose_token(model: LanguageModel, token: str | int | None, logits: Tensor) -> int:
    """The id of a token given as text or id; None for the most probable. Raises `UsageError` for several tokens."""
    if token is None:
        return int(logits.argmax())
    check_type("a token", token, str | Integral, "a text or an id")
    if isinstance(token, str):
        return token_id(model, token)
    model.tokenizer.piece(int(token))  # raises an error if the id is not a token
    return int(token)


def token_id(model: LanguageModel, text: str) -> int:
    """The id of a text that is a single token, special or not. Raises `UsageError` for any other text."""
    ids = model.tokenizer.encode(text, allow_special=True)
    if len(ids) != 1:
        pieces = ", ".join(quoted(model.tokenizer.text_of(piece_id)) for piece_id in ids[:8])
        raise UsageError(
            f"{quoted(text)} is {len(ids)} tokens of this model{f': {pieces}' if ids else ''}; give one token"
        )
    return ids[0]


def with_token_ids(model: LanguageModel, address: Address, dimensions: Dimensions) -> Address:
    """The address with token texts replaced by token ids."""
    index = [
        token_id(model, entry) if isinstance(entry, str) and meaning == "token" else entry
        for meaning, entry in zip(dimensions, address.index, strict=False)
    ]
    return Address(address.name, (*index, *address.index[len(dimensions) :]))


def to_array(value: Tensor) -> Array:
    """The tensor as float64 on the CPU, which is exact for all smaller floating-point types."""
    return value.detach().cpu().double().numpy()


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded pass over a text. Arrays are float64, which represents the recorded numbers exactly."""

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
        """The description of a named value, traced or implied."""
        return self.structure.values.get(name) or self._implied[name]

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
        """A module attribute that a value's formula needs. Raises `UsageError` if the module does not have it."""
        module = self.module(value)
        try:
            return getattr(module, name)
        except AttributeError:
            kind = type(module).__name__
            raise UsageError(
                f"{value.module} is a {kind}, which declares the formula '{value.formula}' but has no '{name}'"
            ) from None

    def weight_path(self, value: Value) -> str:
        """The path of the weight that a value's module multiplies with, which may belong to another module."""
        module = self.module(value)
        layer = stored_matrix(module)
        for path, quantized in quantized_layers(self.model.decoder).items():
            if quantized is layer:
                return f"{path}.weight"
        weight = self.setting(value, "weight")
        for path, parameter in self.model.decoder.named_parameters():
            if parameter is weight:
                return path
        kind = type(module).__name__
        raise UsageError(f"{value.module} is a {kind}, whose weight is not a parameter and cannot be shown")

    def token(self, position: int) -> str:
        """The token at a position, in quotes."""
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

    def meanings(self, name: str, index: tuple[int, ...]) -> list[str]:
        """The meaning of each entry of an index: `head 1`, `query 3 ' of'`."""
        words = []
        for meaning, entry in zip(self.dimensions(name), index, strict=True):
            words.append(f"{meaning} {entry}")
            if meaning.removeprefix(MEMORY_PREFIX) in POSITIONS_OF_TEXT:
                words[-1] += f" {self.token_on(meaning, entry)}"
            elif meaning == "token":
                words[-1] += f" {self.named(entry)}"
        return words


def record(model: LanguageModel, text: str | list[int], select: str | list[str]) -> Recording:
    """Run the model over a text and record the selected names.

    Raises the errors of `steady_ids`.
    """
    ids = steady_ids(model, text)
    with torch.no_grad(), Trace(model, select) as trace:
        hidden = model.decoder.hidden(torch.tensor([ids], device=model.device))  # (1, T, D)
        # If the head is not selected, the logits of all positions are not needed
        if any(name.partition(".")[0] == HEAD for name in trace.selected):
            model.decoder.head(hidden)
    return Recording(model, ids, trace, hidden[0])


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


def address_of(name: str, *index: int | str) -> str:
    """`name[1,3]`, or `name[1,:]` for a vector, with ":" for the index of its elements; without indices, `name`."""
    return f"{name}[{','.join(map(str, index))}]" if index else name


UPDATES = ("residual", "replacement")  # formulas of values that read the stream and an update


def stream_path(structure: Structure, layer: int) -> list[Value]:
    """The successive values of the stream in a layer, in the order of the pass.

    They are the stream after each update and, in post-norm models, the output of each norm. An undeclared layer has
    only its output.
    """
    start, name = structure.stream[layer : layer + 2]
    path = []
    while name != start and name in structure.values:
        value = structure[name]
        if value.formula:
            path.append(value)
        name = value.reads[0] if value.reads else start
    return path[::-1]


def updates_of(decoder: Decoder, structure: Structure, layer: int) -> list[Value]:
    """The values of a layer that add an update to the stream, or replace the stream by it.

    Raises `UsageError`, naming path and class, if the layer's class does not declare any.
    """
    updates = [value for value in stream_path(structure, layer) if value.formula in UPDATES]
    if not updates:
        block = structure.stream[layer + 1]
        kind = type(decoder.get_submodule(block)).__name__
        raise UsageError(f"{block} is a {kind}, which does not declare what it adds to the residual stream")
    return updates


def weights_of(decoder: Decoder, structure: Structure, layer: int) -> Value:
    """The attention weights (B, H, T, S) of a layer, before dropout.

    Raises `UsageError`, naming path and class, if no module of the layer declares any.
    """
    block = structure.stream[layer + 1]
    weights = structure.with_formula("attention weight", f"{block}.")
    if weights:
        return weights[0]
    unknown = [value.module for value in structure.with_formula(UNKNOWN_FORMULA, block) if value.reads]
    path = (*unknown, block)[0]
    kind = type(decoder.get_submodule(path)).__name__
    raise UsageError(f"{path} is a {kind}, which declares no attention weights")


def memory_weights_of(structure: Structure, layer: int) -> Value | None:
    """The weights (B, H, T, S) with which a layer attends to the memory; None if it does not."""
    weights = structure.with_formula("attention weight", f"{structure.stream[layer + 1]}.")
    return next((value for value in weights if structure.memory_axes(value.name)), None)


def encoder_weights(structure: Structure) -> list[Value]:
    """The attention weights (B, H, S, S) of each layer of the encoder; none for a model without one."""
    if not structure.memory:
        return []
    by_block = (structure.with_formula("attention weight", f"{block}.") for block in structure.memory_stream[1:])
    return [weights[0] for weights in by_block if weights]
