"""The catalog of named values of a decoder: where each is read, and which are derived from others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from torch import nn

from foretell.insight import derive
from foretell.insight.derive import DerivedFormula, StagedAttention
from foretell.language_model import LanguageModel
from foretell.model.attention import Attention
from foretell.model.decoder import Decoder
from foretell.model.norm import LayerNorm, RMSNorm
from foretell.model.position import NoRotation, RotaryPosition

CORE_INPUTS = ("query", "key", "value", "mask")
# Modules whose output is not one tensor: the names of the tensors in it
PARTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.ModuleList: (),
    NoRotation: (),
    RotaryPosition: ("cosine", "sine"),
}
NORMS: dict[type[nn.Module], dict[str, DerivedFormula]] = {LayerNorm: derive.LAYER_NORM, RMSNorm: derive.RMS_NORM}


class PointKind(Enum):
    """Which part of a module's call a value is."""

    OUTPUT = auto()
    PART = auto()  # one element of an output tuple
    INPUT = auto()


@dataclass(frozen=True)
class Point:
    """A value that can be read from the call of the module at path `module`."""

    name: str
    module: str
    kind: PointKind = PointKind.OUTPUT
    index: int = 0

    def read(self, inputs: tuple[Any, ...], output: Any) -> Any:
        """The value, from a call's positional inputs and its output."""
        if self.kind is PointKind.OUTPUT:
            return output
        return (inputs if self.kind is PointKind.INPUT else output)[self.index]


@dataclass(frozen=True)
class Derived:
    """A value that no module returns: a formula of the inputs of one module's call."""

    name: str
    formula: DerivedFormula
    needs: tuple[Point, ...]


@dataclass
class Catalog:
    """Every name of a decoder, in the order of its modules."""

    entries: dict[str, Point | Derived] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.entries)

    def points(self, names: list[str]) -> list[Point]:
        """The points to record for these names, each once."""
        points: dict[str, Point] = {}
        for name in names:
            entry = self.entries[name]
            for point in [entry] if isinstance(entry, Point) else entry.needs:
                points[point.name] = point
        return list(points.values())


def trace_names(model: LanguageModel | Decoder) -> list[str]:
    """Every name that a trace of this model can record, derived values included."""
    return make_catalog(model.decoder if isinstance(model, LanguageModel) else model).names


def make_catalog(decoder: Decoder) -> Catalog:
    """The catalog of a decoder as it is now."""
    modules = dict(decoder.named_modules())
    del modules[""]  # the decoder itself: its output is the head's
    cores = {f"{path}.core" for path, module in modules.items() if isinstance(module, Attention)}
    catalog = Catalog()
    for path, module in modules.items():
        for entry in [*_outputs(path, module), *_norm_values(path, module)]:
            catalog.entries[entry.name] = entry
        if path in cores:
            for entry in _core_values(path, module):
                catalog.entries[entry.name] = entry
    return catalog


def _outputs(path: str, module: nn.Module) -> Iterator[Point]:
    parts = PARTS.get(type(module))
    if parts is None:
        yield Point(path, path)
        return
    for index, part in enumerate(parts):
        yield Point(f"{path}.{part}", path, PointKind.PART, index)


def _norm_values(path: str, module: nn.Module) -> Iterator[Derived]:
    norm_input = Point(f"{path}.input", path, PointKind.INPUT)
    formulas = next((NORMS[kind] for kind in type(module).__mro__ if kind in NORMS), {})
    for name, formula in formulas.items():
        yield Derived(f"{path}.{name}", formula, (norm_input,))


def _core_values(path: str, core: nn.Module) -> Iterator[Point | Derived]:
    inputs = {name: Point(f"{path}.{name}", path, PointKind.INPUT, index) for index, name in enumerate(CORE_INPUTS)}
    yield from (point for name, point in inputs.items() if name != "mask")
    if isinstance(core, StagedAttention):  # its stages are submodules, listed by _outputs
        return
    for name, (formula, needs) in derive.ATTENTION.items():
        yield Derived(f"{path}.{name}", formula, tuple(inputs[need] for need in needs))
