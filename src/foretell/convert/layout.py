"""The weights of a model under a family's names, and back under ours, by the family's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from foretell.config import ModelConfig
from foretell.convert.family import Family, Row
from foretell.convert.transforms import Shape
from foretell.textbook.family_weights import weight_shapes

KINDS = ("weight", "bias")


@dataclass(frozen=True)
class Pairing:
    """One tensor of theirs and those of ours that are in it."""

    theirs: str
    shape: Shape  # theirs
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]  # ours
    row: Row


def pairings(family: Family, config: ModelConfig) -> Iterator[Pairing]:
    """Every tensor that a file of this family holds for this configuration."""
    expected = weight_shapes(config)
    for row in family.rows:
        for kind in KINDS:
            yield from _row_pairings(row, kind, expected, config.num_layers)


def _row_pairings(row: Row, kind: str, expected: Mapping[str, Shape], num_layers: int) -> Iterator[Pairing]:
    layers = range(num_layers) if "*" in row.theirs else range(1)
    first = [f"{path}.{kind}".replace("*", "0") for path in row.ours]
    if first[0] not in expected:
        return
    shapes = tuple(expected[path] for path in first)  # the same in all layers
    theirs = shapes
    for transform in reversed(row.transforms):
        theirs = transform.their_shapes(theirs)
    for layer in layers:
        paths = tuple(f"{path}.{kind}".replace("*", str(layer)) for path in row.ours)
        yield Pairing(f"{row.theirs}.{kind}".replace("*", str(layer)), theirs[0], paths, shapes, row)


def iter_theirs(family: Family, config: ModelConfig, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) in their layout, for weights that are under our module paths."""
    for pairing in pairings(family, config):
        yield pairing.theirs, _to_theirs(pairing.row, [weights[path] for path in pairing.ours]).contiguous()


def iter_ours(family: Family, config: ModelConfig, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(module path, tensor) in our layout; `read` gives the tensor of one of their names, and each is read once."""
    for pairing in pairings(family, config):
        tensors = [read(pairing.theirs)]
        for transform in pairing.row.transforms:
            tensors = transform.to_ours(tensors, pairing.shapes)
        for path, tensor in zip(pairing.ours, tensors, strict=True):
            yield path, tensor.contiguous()


def _to_theirs(row: Row, tensors: list[Tensor]) -> Tensor:
    for transform in reversed(row.transforms):
        tensors = transform.to_theirs(tensors)
    return tensors[0]
