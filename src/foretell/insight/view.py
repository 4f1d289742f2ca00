"""Display of recorded values: matrices of numbers, and heat maps of attention weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.address import (
    OF_MEMORY,
    ONE_ROW,
    POSITIONS_OF_TEXT,
    Address,
    dimensions_of,
    one_row,
    resolve_leading,
)
from foretell.model.structure import Structure
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Part
from foretell.typesetting.expression import Matrix
from foretell.typesetting.notebook import Shown

MATRICES = 4  # shown of a value with three dimensions or more
LARGE = (16, 8)  # the most rows and columns that a matrix shows in full
SHADED = 32  # the most rows and columns of a heat map


@dataclass(frozen=True, eq=False)
class View(Shown):
    """A value, or the part of it at the leading indices; `dimensions` names the remaining dimensions."""

    title: str
    values: np.ndarray
    dimensions: tuple[str, ...]
    tokens: tuple[str, ...]  # empty if unknown
    memory_tokens: tuple[str, ...]
    are_weights: bool

    def document(self) -> DocumentSection:
        shape = " x ".join(str(size) for size in self.values.shape) or "one number"
        meaning = f": {', '.join(self.dimensions)}" if self.dimensions else ""
        return DocumentSection(self.title, [Paragraph(f"{shape}{meaning}"), *self._parts()])

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "dimensions": list(self.dimensions), "values": self.values.tolist()}

    def _parts(self) -> list[Part]:
        if self.values.ndim <= 2:
            return self._matrix(self.values)
        meaning = self.dimensions[0]
        parts: list[Part] = [
            DocumentSection(f"{meaning} {index}", self._matrix(matrix))
            for index, matrix in enumerate(self.values[:MATRICES])
        ]
        if len(self.values) > MATRICES:
            left_out = f"{len(self.values) - MATRICES} more are not shown; select one by index, as in [{MATRICES}]."
            parts.append(Paragraph(left_out))
        return parts

    def _matrix(self, values: np.ndarray) -> list[Part]:
        table = np.atleast_2d(values)
        labels = self._labels(self.dimensions[-2]) if values.ndim == 2 else []
        parts: list[Part] = []
        if self.are_weights and values.ndim == 2 and labels:
            parts.append(self._shades(values, labels, self._labels(self.dimensions[-1])))
        parts.append(Formula(Matrix(table, row_labels=labels)))
        if any(size > most for size, most in zip(table.shape, LARGE, strict=True)):
            parts.append(Paragraph(f"The middle of these {table.shape[0]} x {table.shape[1]} numbers may be left out."))
        return parts

    def _shades(self, values: np.ndarray, queries: list[str], keys: list[str]) -> HeatMap:
        """A heat map of the last queries and keys that fit."""
        cut = [max(0, len(labels) - SHADED) for labels in (queries, keys)]
        counts = " and ".join(str(len(labels)) for labels in ([queries] if queries == keys else [queries, keys]))
        caption = f"the last {SHADED} of {counts} queries and keys" if any(cut) else "row: query, column: key"
        return HeatMap(values[cut[0] :, cut[1] :], queries[cut[0] :], keys[cut[1] :], caption)

    def _labels(self, meaning: str) -> list[str]:
        tokens = self.memory_tokens if meaning.startswith(OF_MEMORY) else self.tokens
        return [repr(token) for token in tokens] if meaning.removeprefix(OF_MEMORY) in POSITIONS_OF_TEXT else []


def make_view(
    tensor: Tensor,
    address: Address,
    structure: Structure,
    row: int,
    tokens: list[str],
    memory_tokens: Sequence[str] = (),
) -> View:
    """The view of an address in one row of a recorded tensor; the address may leave out trailing indices."""
    value = structure[address.name]
    if not 0 <= row < len(tensor) and (row < 0 or value.reads != ONE_ROW):
        raise UsageError(f"{address.name} has no row {row}; its rows are 0 to {len(tensor) - 1}")
    whole, dimensions = one_row(value, tensor, row), dimensions_of(value, structure)
    index = resolve_leading(address, dimensions, whole.shape)
    return View(
        title=f"{address.name}[{','.join(map(str, index))}]" if index else address.name,
        values=(values := whole[index].detach().cpu().double().numpy()),
        dimensions=dimensions[len(index) :],
        tokens=tuple(tokens) if len(tokens) in values.shape else (),
        memory_tokens=tuple(memory_tokens) if len(memory_tokens) in values.shape else (),
        are_weights=value.formula == "attention weight",
    )
