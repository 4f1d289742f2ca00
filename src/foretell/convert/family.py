"""The table of a model family: the names of its config.json fields and its weights, and how each maps to ours.

A weight can differ in three declared ways, each a `Transform` that works in both directions: `Split`, `Transpose` and
`Permute`. A transform maps tensors in our format (one, or several that are fused in theirs) to tensors in theirs. The
last dimension of our matrices is the input dimension; biases are vectors and pass through the same transforms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

REQUIRED = ...  # the default of a field that must be present
Shape = tuple[int, ...]


class Transform(Protocol):
    """A declared difference between two weight formats."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes in their format, for tensors of these shapes in ours."""
        ...

    def to_theirs(self, tensors: list[Tensor]) -> list[Tensor]:
        """Convert from our format to theirs."""
        ...

    def to_ours(self, tensors: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """Convert from their format to ours; `shapes` are those of the result."""
        ...


@dataclass(frozen=True)
class Split:
    """Several of our matrices are one of theirs, concatenated along the outputs: GPT-2's fused query, key and value."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(sum(shape[0] for shape in shapes), *shapes[0][1:])]

    def to_theirs(self, tensors: list[Tensor]) -> list[Tensor]:
        return [torch.cat(tensors)]

    def to_ours(self, tensors: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return list(tensors[0].split([shape[0] for shape in shapes]))


@dataclass(frozen=True)
class Transpose:
    """Their matrices are (inputs, outputs), ours (outputs, inputs): GPT-2's Conv1D."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [shape[::-1] for shape in shapes]

    def to_theirs(self, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor.T if tensor.dim() == 2 else tensor for tensor in tensors]

    def to_ours(self, tensors: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return self.to_theirs(tensors)


@dataclass(frozen=True)
class Permute:
    """They rotate pairs (2i, 2i+1) of each head, we rotate (i, i + E/2): the format of Llama's original release."""

    head_width: int

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return list(shapes)

    def to_theirs(self, tensors: list[Tensor]) -> list[Tensor]:
        return [self._regrouped(tensor, (-1, 2, self.head_width // 2)) for tensor in tensors]

    def to_ours(self, tensors: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [self._regrouped(tensor, (-1, self.head_width // 2, 2)) for tensor in tensors]

    @staticmethod
    def _regrouped(tensor: Tensor, sizes: Shape) -> Tensor:
        return tensor.unflatten(0, sizes).transpose(1, 2).flatten(0, 2)


@dataclass(frozen=True)
class Field:
    """A value of a config.json and the fields of `ModelConfig` that it sets (dotted where nested).

    default: the value that transformers uses if the field is absent. words: their word -> our word; if several of
    theirs map to one of ours, the first is written.
    """

    ours: tuple[str, ...]
    default: Any = REQUIRED
    words: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Row:
    """A module path in their format and ours (one or several), `*` for the layer. Transforms apply in reading order."""

    theirs: str
    ours: tuple[str, ...]
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True)
class Family:
    """Everything specific to one `model_type` of Hugging Face."""

    name: str  # the model_type
    architecture: str
    prefix: str  # of every weight except the head; missing in files that hold only the trunk
    rows: tuple[Row, ...]
    fields: Mapping[str, Field]
    shared: Mapping[str, Any]  # fields of ModelConfig that have the same value in the whole family
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # their field -> the values we can express
    noted: Mapping[str, str] = field(default_factory=dict)  # their field -> why ignoring it is safe; noted when set
    harmless: frozenset[str] = frozenset()  # their fields that do not affect the logits
    buffers: tuple[str, ...] = ()  # globs of names in the files that are not weights
    is_rotary: bool = False  # rope_theta, rope_scaling and rope_parameters are understood
    tokenizer_class: str | None = None  # the class transformers builds for this family, ignoring the tokenizer files
    splits_width: bool = False  # transformers requires the width to be a multiple of the number of heads


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
