"""Addresses of single numbers, `trunk.blocks.0.attention.core.weights[1,3,2]`, and the dimensions of named values."""

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

STREAM: Dimensions = ("position", "element")
SCORES: Dimensions = ("head", "query", "key")
POSITIONS = ("position", "query", "key")  # dimensions that index the tokens of the text
# Dimensions without the batch row, by the last one or two segments of a name; any other value is a stream (T, D)
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
    """The meaning of each dimension of a value, without the batch row and dimensions that always have size 1."""
    parent, _, last = name.rpartition(".")
    if last in STATISTICS:
        return dimensions_of(parent)[:-1]
    return BY_ENDING.get(".".join(name.split(".")[-2:]), BY_ENDING.get(last, STREAM))


def one_row(name: str, value: Tensor, row: int = 0) -> Tensor:
    """One batch row, without dimensions that always have size 1: a rotation's heads, the last one of a statistic."""
    if name.startswith("trunk.rotation."):
        return value[min(row, len(value) - 1), 0]  # one row for all where every row has the same positions
    return value[row, ..., 0] if name.rpartition(".")[2] in STATISTICS else value[row]


def resolve_index(address: Address, shape: Sequence[int]) -> tuple[int, ...]:
    """The full index of one number, counted from 0. Raises `UsageError` if it does not fit the shape."""
    dimensions = dimensions_of(address.name)
    if len(address.index) != len(dimensions):
        given, wanted = len(address.index), len(dimensions)
        problem = f"{given} of {wanted} numbers are given" if given else "an index is missing"
        example = ",".join("0" for _ in dimensions)
        raise UsageError(f"{describe_shape(address.name, shape)}; {problem}, as in {address.name}[{example}]")
    return resolve_leading(address, shape)


def resolve_leading(address: Address, shape: Sequence[int]) -> tuple[int, ...]:
    """The index into the leading dimensions, as many as the address gives, counted from 0."""
    dimensions = dimensions_of(address.name)
    if len(address.index) > len(dimensions):
        raise UsageError(f"{describe_shape(address.name, shape)}; the index {list(address.index)} has too many numbers")
    index = []
    for meaning, entry, size in zip(dimensions, address.index, shape, strict=False):
        if not isinstance(entry, int):
            raise UsageError(f"{entry!r} in {address} is the index of a {meaning}; give it as a whole number")
        if not -size <= entry < size:
            raise UsageError(f"{meaning} {entry} of {address} is out of range; {describe_shape(address.name, shape)}")
        index.append(entry % size)
    return tuple(index)


def describe_shape(name: str, shape: Sequence[int]) -> str:
    """`head has shape (5, 11): position 0 to 4, token 0 to 10`."""
    ranges = [
        f"{meaning} {'0' if size == 1 else f'0 to {size - 1}'}"
        for meaning, size in zip(dimensions_of(name), shape, strict=True)
    ]
    return f"{name} has shape ({', '.join(map(str, shape))}): {', '.join(ranges)}"
