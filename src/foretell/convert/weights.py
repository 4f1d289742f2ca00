"""Convert the weights of a model to a family's names and shapes, and back, by the family's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from foretell.config import ModelConfig
from foretell.convert.family import Family, Row, Shape
from foretell.errors import ConfigError
from foretell.model.init import weight_shapes

KINDS = ("weight", "bias")


@dataclass(frozen=True)
class Pairing:
    """One of their tensors and those of ours that it holds."""

    theirs: str
    shape: Shape  # in their format
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]  # in ours
    row: Row


def pairings(family: Family, config: ModelConfig) -> Iterator[Pairing]:
    """Every tensor that a file of this family holds for this configuration."""
    shapes = weight_shapes(config.replaced(num_layers=1, window=None))  # all layers have the same
    for row in family.rows:
        for kind in KINDS:
            yield from _row_pairings(row, kind, shapes, config.num_layers)


def _row_pairings(row: Row, kind: str, shapes: Mapping[str, Shape], num_layers: int) -> Iterator[Pairing]:
    layers = range(num_layers) if "*" in row.theirs else range(1)
    first = [f"{path}.{kind}".replace("*", "0") for path in row.ours]
    if first[0] not in shapes:
        return
    ours = tuple(shapes[path] for path in first)
    theirs = ours
    for transform in reversed(row.transforms):
        theirs = transform.their_shapes(theirs)
    for layer in layers:
        paths = tuple(f"{path}.{kind}".replace("*", str(layer)) for path in row.ours)
        yield Pairing(f"{row.theirs}.{kind}".replace("*", str(layer)), theirs[0], paths, ours, row)


def check_weights(family: Family, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise `ConfigError` unless the table covers exactly these weights: a replaced module may hold others."""
    shapes = {
        path: shape for pair in pairings(family, config) for path, shape in zip(pair.ours, pair.shapes, strict=True)
    }
    for path, weight in weights.items():
        if path not in shapes:
            raise ConfigError(f"the model has a weight '{path}' that {family.name} cannot express")
        if tuple(weight.shape) != shapes[path]:
            raise ConfigError(
                f"the model's '{path}' has shape {tuple(weight.shape)}, and {family.name} expresses {shapes[path]}"
            )
    for path in shapes:
        if path not in weights:
            raise ConfigError(f"the model lacks the weight '{path}' that {family.name} needs")


def iter_theirs(family: Family, config: ModelConfig, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) in their format, for weights under our module paths. See `check_weights`."""
    for pairing in pairings(family, config):
        tensors = [weights[path] for path in pairing.ours]
        for transform in reversed(pairing.row.transforms):
            tensors = transform.to_theirs(tensors)
        yield pairing.theirs, tensors[0].contiguous()


def iter_ours(family: Family, config: ModelConfig, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(module path, tensor) in our format; `read` returns the tensor of one of their names and is called once each."""
    for pairing in pairings(family, config):
        tensors = [read(pairing.theirs)]
        for transform in pairing.row.transforms:
            tensors = transform.to_ours(tensors, pairing.shapes)
        for path, tensor in zip(pairing.ours, tensors, strict=True):
            yield path, tensor.contiguous()
