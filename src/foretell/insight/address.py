"""Addresses of numbers, `trunk.blocks.0.attention.core.weights[1,3,2]`, and the dimensions and display of values."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foretell.errors import UsageError
from foretell.model.structure import POSITIONS, Structure, Value
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Part
from foretell.typesetting.expression import Matrix
from foretell.typesetting.html import Shown

ADDRESS = re.compile(r"(?P<name>[^\[\]\s]+)\s*(?:\[(?P<index>.*)\])?", re.DOTALL)

Index = tuple[int | str, ...]
Dimensions = tuple[str, ...]

POSITIONS_OF_TEXT = ("position", "source", "query", "key")  # dimensions that index the text's tokens
MEMORY_PREFIX = "memory "  # prefix of dimensions that index the memory's tokens
MEANINGS = {"T": "position", "S": "key", "H": "head", "G": "key head", "V": "token"}  # by size letter; others: elements
ONE_ROW = (POSITIONS,)  # `reads` of a value that is equal for all rows with the same positions


@dataclass(frozen=True)
class Address:
    """A trace name and an index into its value; strings in the index are texts of tokens."""

    name: str
    index: Index = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.index))}]" if self.index else self.name


def parse_address(text: str) -> Address:
    """Parse `name[1,-1,'!']`. Raises `UsageError` for any other form."""
    match = ADDRESS.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise UsageError(f"'{text}' is not an address; write a name and an index, such as head[0,3]")
    if match["index"] is None:
        return Address(match["name"])
    try:
        entries: list = list(ast.literal_eval(f"({match['index']},)"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        entries = [None]
    if not all(type(entry) in (int, str) for entry in entries):  # True and False are of type bool
        raise UsageError(f"the index of '{text}' can contain only whole numbers and tokens in quotes, as in [4,'!']")
    return Address(match["name"], tuple(entries))


def address_of(name: str, *index: int | str) -> str:
    """`name[1,3]`, or `name[1,:]` for a vector, with ":" for the index of its elements; without indices, `name`."""
    return f"{name}[{','.join(map(str, index))}]" if index else name


def dimensions_of(value: Value, structure: Structure) -> Dimensions:
    """The meaning of each dimension of a value, without the batch row and dimensions of constant size 1."""
    owner = structure.values.get(value.module)
    is_in_core = "S" in value.dims or (owner is not None and owner.formula == "attention")
    meanings = {**MEANINGS, "T": "query" if is_in_core else "position"}
    meanings |= {letter: MEMORY_PREFIX + meanings[letter] for letter in structure.memory_axes(value.name)}
    return tuple(meanings.get(letter, "element") for letter in value.dims if letter not in ("B", "1"))


def one_row(value: Value, tensor: Tensor, row: int = 0) -> Tensor:
    """One batch row of a value's tensor, without dimensions of constant size 1.

    A rotation has such a dimension for heads, and the statistics of a norm have one at the end.
    """
    if "B" not in value.dims:
        return tensor
    kept: list[int | slice] = [0 if letter == "1" else slice(None) for letter in value.dims]
    kept[value.dims.index("B")] = min(row, len(tensor) - 1) if value.reads == ONE_ROW else row
    return tensor[tuple(kept)]


def resolve_index(address: Address, dimensions: Dimensions, shape: Sequence[int]) -> tuple[int, ...]:
    """The full index of one number, counted from 0. Raises `UsageError` if it does not fit the shape."""
    given, wanted = len(address.index), len(dimensions)
    if given and not wanted:
        raise UsageError(f"{address.name} is one number; give it without an index")
    if given != wanted:
        problem = f"{given} of {wanted} numbers are given" if given else "an index is missing"
        example = ",".join("0" for _ in dimensions)
        described = describe_shape(address.name, dimensions, shape)
        raise UsageError(f"{described}; {problem}, as in {address.name}[{example}]")
    return resolve_leading(address, dimensions, shape)


def resolve_leading(address: Address, dimensions: Dimensions, shape: Sequence[int]) -> tuple[int, ...]:
    """The address's index into the leading dimensions, counted from 0; raises the errors of `resolve_index`."""
    described = describe_shape(address.name, dimensions, shape)
    if len(address.index) > len(dimensions):
        raise UsageError(f"{described}; the index {list(address.index)} has too many numbers")
    index = []
    for meaning, entry, size in zip(dimensions, address.index, shape, strict=False):
        if not isinstance(entry, int):
            raise UsageError(f"{entry!r} in {address} is the index of a {meaning}; give it as a whole number")
        if not -size <= entry < size:
            raise UsageError(f"{meaning} {entry} of {address} is out of range; {described}")
        index.append(entry % size)
    return tuple(index)


def describe_shape(name: str, dimensions: Dimensions, shape: Sequence[int]) -> str:
    """`head has shape (5, 11): position 0 to 4, token 0 to 10`."""
    ranges = [
        f"{meaning} {'0' if size == 1 else f'0 to {size - 1}'}" for meaning, size in zip(dimensions, shape, strict=True)
    ]
    return f"{name} has shape ({', '.join(map(str, shape))}): {', '.join(ranges)}"


MATRICES = 4  # matrices shown of a value with three or more dimensions
LARGE = (16, 8)  # maximum rows and columns of a matrix shown in full
SHADED = 32  # maximum rows and columns of a heat map


@dataclass(frozen=True, eq=False, repr=False)
class View(Shown):
    """A value, or the part of it at the leading indices; `dimensions` names the remaining dimensions."""

    title: str
    values: np.ndarray
    dimensions: Dimensions
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
        parts: list[Part] = [
            DocumentSection(f"{self.dimensions[0]} {index}", self._matrix(matrix))
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
        if self.are_weights and labels:
            parts.append(shades(values, labels, self._labels(self.dimensions[-1])))
        parts.append(Formula(Matrix(table, row_labels=labels)))
        if any(size > most for size, most in zip(table.shape, LARGE, strict=True)):
            parts.append(Paragraph(f"The middle of these {table.shape[0]} x {table.shape[1]} numbers may be left out."))
        return parts

    def _labels(self, meaning: str) -> list[str]:
        tokens = self.memory_tokens if meaning.startswith(MEMORY_PREFIX) else self.tokens
        return [repr(token) for token in tokens] if meaning.removeprefix(MEMORY_PREFIX) in POSITIONS_OF_TEXT else []


def shades(weights: np.ndarray, queries: list[str], keys: list[str]) -> HeatMap:
    """A heat map of the last queries and keys that fit."""
    cut = [max(0, len(labels) - SHADED) for labels in (queries, keys)]
    counts = " and ".join(str(len(labels)) for labels in ([queries] if queries == keys else [queries, keys]))
    caption = f"the last {SHADED} of {counts} queries and keys" if any(cut) else "row: query, column: key"
    return HeatMap(weights[cut[0] :, cut[1] :], queries[cut[0] :], keys[cut[1] :], caption)


def make_view(
    tensor: Tensor,
    address: Address,
    structure: Structure,
    row: int,
    tokens: Sequence[str],
    memory_tokens: Sequence[str] = (),
) -> View:
    """The view of an address in one row of a recorded tensor; trailing indices can be left out."""
    value = structure[address.name]
    if not 0 <= row < len(tensor) and (row < 0 or value.reads != ONE_ROW):
        raise UsageError(f"{address.name} has no row {row}; its rows are 0 to {len(tensor) - 1}")
    whole, dimensions = one_row(value, tensor, row), dimensions_of(value, structure)
    index = resolve_leading(address, dimensions, whole.shape)
    values = whole[index].detach().cpu().double().numpy()
    return View(
        title=f"{address.name}[{','.join(map(str, index))}]" if index else address.name,
        values=values,
        dimensions=dimensions[len(index) :],
        tokens=tuple(tokens) if len(tokens) in values.shape else (),
        memory_tokens=tuple(memory_tokens) if len(memory_tokens) in values.shape else (),
        are_weights=value.formula == "attention weight",
    )
