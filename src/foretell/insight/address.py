"""Addresses of single numbers, `trunk.blocks.0.attention.core.weights[1,3,2]`, and the dimensions of named values."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from foretell.errors import UsageError
from foretell.model.structure import POSITIONS, Structure, Value

ADDRESS = re.compile(r"(?P<name>[^\[\]\s]+)\s*(?:\[(?P<index>.*)\])?", re.DOTALL)

Index = tuple[int | str, ...]


@dataclass(frozen=True)
class Address:
    """A trace name and an index into its value; a string in the index stands for the token with that text."""

    name: str
    index: Index = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.index))}]" if self.index else self.name


def parse_address(text: str) -> Address:
    """Parse `name[1,-1,'!']`. Raises `UsageError` for any other form."""
    match = ADDRESS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not an address; write a name and an index, such as head[0,3]")
    inside = match["index"]
    return Address(match["name"], () if inside is None else _parse_index(inside, text))


def _parse_index(inside: str, text: str) -> Index:
    try:
        entries: list = list(ast.literal_eval(f"({inside},)"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        entries = [None]
    if not all(type(entry) in (int, str) for entry in entries):  # True and False are of type bool
        raise UsageError(f"the index of '{text}' may hold whole numbers and tokens in quotes only, as in [4,'!']")
    return tuple(entries)


Dimensions = tuple[str, ...]

POSITIONS_OF_TEXT = ("position", "query", "key")  # dimensions that index the tokens of the text
OF_MEMORY = "memory "  # before the meaning of a dimension that indexes the tokens of the memory
MEANINGS = {"T": "position", "S": "key", "H": "head", "G": "key head", "V": "token"}  # by size letter; others: elements
ONE_ROW = (POSITIONS,)  # `reads` of a value that is the same for all rows if they have the same positions


def dimensions_of(value: Value, structure: Structure) -> Dimensions:
    """The meaning of each dimension of a value, without the batch row and dimensions that always have size 1."""
    owner = structure.values.get(value.module)
    is_in_core = "S" in value.dims or (owner is not None and owner.formula == "attention")
    meanings = {**MEANINGS, "T": "query" if is_in_core else "position"}
    meanings |= {letter: OF_MEMORY + meanings[letter] for letter in structure.memory_axes(value.name)}
    return tuple(meanings.get(letter, "element") for letter in value.dims if letter not in ("B", "1"))


def one_row(value: Value, tensor: Tensor, row: int = 0) -> Tensor:
    """One batch row of a value's tensor, without dimensions that always have size 1.

    A rotation has such a dimension for the heads, the statistics of a norm have one at the end.
    """
    if "B" not in value.dims:
        return tensor
    kept: list[int | slice] = [0 if letter == "1" else slice(None) for letter in value.dims]
    kept[value.dims.index("B")] = min(row, len(tensor) - 1) if value.reads == ONE_ROW else row
    return tensor[tuple(kept)]


def resolve_index(address: Address, dimensions: Dimensions, shape: Sequence[int]) -> tuple[int, ...]:
    """The full index of one number, counted from 0. Raises `UsageError` if it does not fit the shape."""
    if len(address.index) != len(dimensions):
        given, wanted = len(address.index), len(dimensions)
        problem = f"{given} of {wanted} numbers are given" if given else "an index is missing"
        example = ",".join("0" for _ in dimensions)
        raise UsageError(
            f"{describe_shape(address.name, dimensions, shape)}; {problem}, as in {address.name}[{example}]"
        )
    return resolve_leading(address, dimensions, shape)


def resolve_leading(address: Address, dimensions: Dimensions, shape: Sequence[int]) -> tuple[int, ...]:
    """The index into the leading dimensions, as many as the address gives, counted from 0."""
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
