"""The three ways in which a weight can lie differently elsewhere, each both ways.

A transform turns the tensors on our side (one, or several that are one elsewhere) into those on theirs, and back. The
last dimension of a matrix counts inputs here; biases are vectors, and go through the same transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Transform(Protocol):
    """One declared difference between two layouts."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The shapes in their layout of tensors that have these in ours."""
        ...

    def to_theirs(self, tensors: list[Tensor]) -> list[Tensor]:
        """From our layout to theirs."""
        ...

    def to_ours(self, tensors: list[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """From theirs to ours, where the tensors have these shapes in the end."""
        ...


@dataclass(frozen=True)
class Split:
    """Several matrices of ours are one of theirs, outputs after outputs: GPT-2's fused query, key and value."""

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
    """They rotate neighbours (2i, 2i+1) of a head of this width, we rotate (i, i + E/2): Llama's original layout."""

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
