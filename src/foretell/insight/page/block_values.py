"""The values inside a layer that a page shows, in the order of the pass.

They are found by the inputs of each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from foretell.insight.layers import UPDATES, stream_path, sublayer_of, updates_of
from foretell.model.decoder import Decoder
from foretell.model.description import UNDECLARED
from foretell.model.norm import RecordedNorm
from foretell.model.structure import PASSED_ON, Structure, Value

# The tokens that the axis of positions of a value counts
OF_TOKEN, OF_KEY, OF_MEMORY = "token", "key", "memory"
LABELS = {"core": "head output", "output": "attention output", "down": "feed-forward output"}
SUBLAYERS = {"feedforward": "the feed-forward layer", "cross_attention": "encoder-decoder attention"}  # in words
ROTATED, SPLIT = "rotated heads", "heads"  # without rotary positions, both have the same numbers as their input


@dataclass(frozen=True)
class BlockValue:
    """A value of one layer, and the section of the page that has it.

    path: its name inside the block. axes: the size letters of its shape without the row axis. of: the tokens that its
    axis of positions counts. epsilon: for a statistic s, if the norm divides by sqrt(s + epsilon). offset: the start of
    its numbers in the layer's values at one position; None for values in other sections or of the memory.
    """

    name: str
    path: str
    section: str
    label: str
    axes: tuple[str, ...]
    of: str
    epsilon: float | None
    offset: int | None

    @property
    def is_statistic(self) -> bool:
        """True for one number per vector."""
        return self.axes[-1] == "1"


@dataclass(frozen=True)
class BlockPart:
    """A sublayer with its norm, and its values from the input stream to the output stream."""

    name: str
    values: list[BlockValue]


Sections = Mapping[tuple[str, int], str]


def same_numbers(structure: Structure, name: str) -> tuple[str, int]:
    """A key that is equal for names of the same tensor in the same shape: (origin, number of dimensions)."""
    return structure.origin(name), len(structure[name].dims)


def block_parts(
    decoder: Decoder, structure: Structure, layer: int, sections: Sections, prefix: str = "values"
) -> list[BlockPart]:
    """The sublayers of a layer in the order of the pass. Raises the errors of `updates_of`.

    sections: the sections of values found elsewhere, by `same_numbers`; other values are in `<prefix>.<layer>.<path>`.
    """
    finder = BlockFinder(decoder, structure, layer, sections, prefix)
    return [finder.part(update) for update in updates_of(decoder, structure, layer)]


class BlockFinder:
    """Finds the values of a layer; each belongs to the first sublayer that reads it.

    size: the number of elements at one position so far, for the next offset.
    """

    def __init__(self, decoder: Decoder, structure: Structure, layer: int, sections: Sections, prefix: str):
        self.decoder, self.structure, self.sections, self.prefix = decoder, structure, sections, f"{prefix}.{layer}"
        self.input, self.block = structure.stream[layer : layer + 2]
        self.stream = [value.name for value in stream_path(structure, layer)]
        self.has_rotation = decoder.config.position == "rotary"
        self.seen: set[str] = set()
        self.size = 0

    def part(self, update: Value) -> BlockPart:
        """The values from the stream before a sublayer to the stream after its update."""
        names = dict.fromkeys([*self.values_before(update.reads[1]), update.name, *self.norms_after(update.name)])
        positions = {name: of for core in names for name, of in self.keys_and_values(core)}
        repeated = {read for name in names for read in self.repeated(name)}
        values = []
        for name in names:
            of = positions.get(name, OF_TOKEN)
            values += [self.describe(value, of) for value in self.statistics(name)]
            values += [] if name in repeated else [self.describe(self.structure[name], of)]
        return BlockPart(self.path(sublayer_of(self.structure, update)), values)

    def values_before(self, name: str) -> Iterator[str]:
        """A value and the values it is computed from, each after its inputs; the stream comes first."""
        value = self.structure.values.get(name)
        if value is None or name in self.seen:
            return
        if name in self.stream or not self.is_inside(name):
            is_known = name == self.input or same_numbers(self.structure, name) in self.sections  # False for the memory
            if self.is_inside(name) or is_known:
                yield name
            return
        self.seen.add(name)
        for read in value.reads:
            yield from self.values_before(read)
        if value.formula not in PASSED_ON and value.dims[:1] == ("B",):
            yield name

    def is_inside(self, name: str) -> bool:
        return name.startswith(f"{self.block}.")

    def path(self, name: str) -> str:
        return name.removeprefix(f"{self.block}.")

    def repeated(self, name: str) -> list[str]:
        """Any value with the same numbers in another shape."""
        value = self.structure[name]
        repeats = value.formula == SPLIT or (value.formula == ROTATED and not self.has_rotation)
        return [self.structure.origin(read) for read in value.reads] if repeats else []

    def keys_and_values(self, core: str) -> Iterator[tuple[str, str]]:
        """The names that lead to the keys and values of a core, with the tokens that they belong to."""
        if self.structure[core].formula != "attention":
            return
        of = OF_MEMORY if self.structure.memory_axes(core) == "S" else OF_KEY
        attention = core.rpartition(".")[0]
        for name in self.structure[core].reads[1:]:
            while name.startswith(f"{attention}."):
                yield name, of
                name = self.structure[name].reads[0]

    def norms_after(self, update: str) -> list[str]:
        """The norm after an update, in post-norm models."""
        after = self.stream[self.stream.index(update) + 1 :][:1]
        return [name for name in after if self.structure[name].formula not in UPDATES]

    def statistics(self, norm: str) -> list[Value]:
        """The statistics of a norm; none for any other value."""
        derived = self.structure.descriptions.get(norm, UNDECLARED).derived
        values = (self.structure.values.get(f"{norm}.{name}") for name in derived)
        return [value for value in values if value is not None and value.dims[-1:] == ("1",)]

    def describe(self, value: Value, of: str) -> BlockValue:
        path, elsewhere = self.path(value.name), self.sections.get(same_numbers(self.structure, value.name))
        offset = self.size if elsewhere is None and of != OF_MEMORY else None
        self.size += 0 if offset is None else self.structure.elements_per_row(value.name, 1)
        section, label = elsewhere or f"{self.prefix}.{path}", self.label(value, path)
        return BlockValue(value.name, path, section, label, value.dims[1:], of, self.epsilon(value), offset)

    def epsilon(self, value: Value) -> float | None:
        module = self.decoder.get_submodule(value.module)
        if not value.is_derived or not isinstance(module, RecordedNorm) or not module.record.has_root:
            return None
        return float(module.eps) if value.name == f"{value.module}.{module.record.spread}" else None

    def label(self, value: Value, path: str) -> str:
        """The value in words: `query, rotated`, `mean of the stream`."""
        *modules, last = path.split(".")
        if not self.is_inside(value.name):
            return "stream"
        if value.is_derived:
            return f"{last.replace('_', ' ')} of the {normalized(modules)}"
        if repeated := self.repeated(value.name):
            return self.label(self.structure[repeated[0]], self.path(repeated[0]))
        if value.formula in UPDATES:
            sublayer = last.removesuffix("_residual")
            return f"stream after {SUBLAYERS.get(sublayer, sublayer)}"
        if value.formula == ROTATED:
            return f"{last}, rotated"
        return f"{normalized([*modules, last])}, normalized" if last.endswith("_norm") else LABELS.get(last, last)


def normalized(modules: list[str]) -> str:
    """The input of a norm in words, from the norm's path in the block: a head's vectors, or the stream."""
    *sublayer, norm = modules
    of_stream = not sublayer and not norm.endswith("_update_norm")
    return "stream" if of_stream else norm.removesuffix("_norm").replace("_", " ")
