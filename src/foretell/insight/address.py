"""Addresses of single numbers: a trace name and an index, `trunk.blocks.0.attention.core.weights[1,3,2]`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from foretell.errors import UsageError

ADDRESS = re.compile(r"(?P<name>[^\[\]\s]+)\s*(?:\[(?P<index>.*)\])?", re.DOTALL)

Index = tuple[int | str, ...]


@dataclass(frozen=True)
class Address:
    """A name, and where in its value to look; an entry that is text stands for the token of that text."""

    name: str
    index: Index = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.index))}]" if self.index else self.name


def parse_address(text: str) -> Address:
    """`name[1,-1,'!']`; whatever is not of this form is a `UsageError`."""
    found = ADDRESS.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"'{text}' is no address; write a name and an index, such as head[0,3]")
    inside = found["index"]
    return Address(found["name"], () if inside is None else _parse_index(inside, text))


def _parse_index(inside: str, text: str) -> Index:
    try:
        entries: list = list(ast.literal_eval(f"({inside},)"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        entries = [None]
    if not all(type(entry) in (int, str) for entry in entries):  # True and False are of type bool
        raise UsageError(f"the index of '{text}' is not made of whole numbers or of tokens in quotes, as in [4,'!']")
    return tuple(entries)


Dimensions = tuple[str, ...]

STREAM: Dimensions = ("position", "element")
SCORES: Dimensions = ("head", "query", "key")
PLACES = ("position", "query", "key")  # these count the tokens of the text
# By the end of a name; every other value is a stream of vectors
BY_ENDING: dict[str, Dimensions] = {
    "head": ("position", "token"),
    "logits": ("position", "token"),
    "probabilities": ("position", "token"),
    "loss": ("position",),
    "query_norm": ("head", "position", "element"),
    "key_norm": ("key head", "position", "element"),
    "core": ("head", "query", "element"),
    "core.query": ("head", "query", "element"),
    "core.key": ("key head", "key", "element"),
    "core.value": ("key head", "key", "element"),
    **dict.fromkeys(("core.scores", "core.scaled", "core.masked", "core.weights", "core.dropout"), SCORES),
}
STATISTICS = ("mean", "variance", "mean_square")


def dimensions_of(name: str) -> Dimensions:
    """The meaning of each index of a name, without the batch row and without what is always of size 1."""
    parent, _, last = name.rpartition(".")
    if last in STATISTICS:
        return dimensions_of(parent)[:-1]
    return BY_ENDING.get(".".join(name.split(".")[-2:]), BY_ENDING.get(last, STREAM))


def one_row(name: str, value: Tensor, row: int = 0) -> Tensor:
    """The value of one row, without what is always of size 1: of rotations the heads, of statistics the last."""
    if name.startswith("trunk.rotation."):
        return value[min(row, len(value) - 1), 0]  # all rows share one, where all stand at the same positions
    return value[row, ..., 0] if name.rpartition(".")[2] in STATISTICS else value[row]


def resolve_index(address: Address, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of one number, counted from 0; what does not fit the shape is a `UsageError` that explains it."""
    dimensions = dimensions_of(address.name)
    if len(address.index) != len(dimensions):
        found, wanted = len(address.index), len(dimensions)
        given = f"{found} of {wanted} numbers are given" if found else "an index is missing"
        example = ",".join("0" for _ in dimensions)
        raise UsageError(f"{describe_shape(address.name, shape)}; {given}, as in {address.name}[{example}]")
    return resolve_leading(address, shape)


def resolve_leading(address: Address, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the first dimensions, as many as are given, counted from 0."""
    dimensions = dimensions_of(address.name)
    if len(address.index) > len(dimensions):
        raise UsageError(f"{describe_shape(address.name, shape)}; the index {list(address.index)} has too many numbers")
    index = []
    for meaning, place, size in zip(dimensions, address.index, shape, strict=False):
        if not isinstance(place, int):
            raise UsageError(f"{place!r} in {address} stands for a {meaning}, which is given as a number")
        if not -size <= place < size:
            raise UsageError(f"{meaning} {place} of {address} is out of range; {describe_shape(address.name, shape)}")
        index.append(place % size)
    return tuple(index)


def describe_shape(name: str, shape: Sequence[int]) -> str:
    """`head has shape (5, 11): position 0 to 4, token 0 to 10`."""
    ranges = [
        f"{meaning} {'0' if size == 1 else f'0 to {size - 1}'}"
        for meaning, size in zip(dimensions_of(name), shape, strict=True)
    ]
    return f"{name} has shape ({', '.join(map(str, shape))}): {', '.join(ranges)}"
