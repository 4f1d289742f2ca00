"""A recorded value as something to look at: matrices with their numbers, attention weights as shades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.address import PLACES, Address, dimensions_of, one_row, resolve_leading
from foretell.typesetting.document import Formula, HeatMap, Paragraph, Part, Section
from foretell.typesetting.expression import Matrix
from foretell.typesetting.notebook import Shown

MATRICES = 4  # of a value with more dimensions than two
LARGE = (16, 8)  # rows and columns of which a matrix shows every number
SHADED = 32  # rows and columns of a heat map
WEIGHTS = ("core.weights", "core.dropout")


@dataclass(frozen=True, eq=False)
class View(Shown):
    """A value, or the part of it at the first indices; `dimensions` says what those that are left mean."""

    title: str
    values: np.ndarray
    dimensions: tuple[str, ...]
    tokens: tuple[str, ...]  # empty where they are not known
    are_weights: bool

    def document(self) -> Section:
        shape = " x ".join(str(size) for size in self.values.shape) or "one number"
        meaning = f": {', '.join(self.dimensions)}" if self.dimensions else ""
        return Section(self.title, [Paragraph(f"{shape}{meaning}"), *self._parts()])

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "dimensions": list(self.dimensions), "values": self.values.tolist()}

    def _parts(self) -> list[Part]:
        if self.values.ndim <= 2:
            return self._matrix(self.values)
        meaning = self.dimensions[0]
        parts: list[Part] = [
            Section(f"{meaning} {place}", self._matrix(one)) for place, one in enumerate(self.values[:MATRICES])
        ]
        if len(self.values) > MATRICES:
            left_out = f"{len(self.values) - MATRICES} more are not shown; name one of them, as in [{MATRICES}]."
            parts.append(Paragraph(left_out))
        return parts

    def _matrix(self, values: np.ndarray) -> list[Part]:
        table = np.atleast_2d(values)
        labels = self._labels(self.dimensions[-2]) if values.ndim == 2 else []
        parts: list[Part] = []
        if self.are_weights and values.ndim == 2 and labels:
            parts.append(self._shades(values, labels))
        parts.append(Formula(Matrix(table, row_labels=labels)))
        if any(size > most for size, most in zip(table.shape, LARGE, strict=True)):
            parts.append(
                Paragraph(f"Of {table.shape[0]} x {table.shape[1]} numbers those in the middle may be left out.")
            )
        return parts

    def _shades(self, values: np.ndarray, labels: list[str]) -> HeatMap:
        """The last queries and keys, where there are more than fit."""
        left_out = max(0, len(labels) - SHADED)
        caption = f"the last {SHADED} of {len(labels)} queries and keys" if left_out else "row: query, column: key"
        shown = labels[left_out:]
        return HeatMap(values[left_out:, left_out:], shown, shown, caption)

    def _labels(self, meaning: str) -> list[str]:
        return [repr(token) for token in self.tokens] if meaning in PLACES else []


def make_view(value: Tensor, address: Address, row: int, tokens: list[str]) -> View:
    """What stands at an address, which may leave out any of the last indices, in one row of a recorded value."""
    if not 0 <= row < max(len(value), row + 1 if address.name.startswith("trunk.rotation.") else 0):
        raise UsageError(f"there is no row {row} of {address.name}; it has {len(value)}, from 0")
    whole = one_row(address.name, value, row)
    index = resolve_leading(address, whole.shape)
    values = whole[index].detach().cpu().double().numpy()
    return View(
        title=f"{address.name}[{','.join(map(str, index))}]" if index else address.name,
        values=values,
        dimensions=dimensions_of(address.name)[len(index) :],
        tokens=tuple(tokens) if len(tokens) in values.shape else (),
        are_weights=address.name.endswith(WEIGHTS),
    )
