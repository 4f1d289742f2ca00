"""One description of a model: every value of a forward pass, by name, with its shape, its inputs and its formula.

Collected from the descriptions of the modules (`description.py`), for trace, explain, page, attribution, budget, memory
plan and mask check. It needs no weights: a decoder on the meta device has the same structure. The output of a module
without a description is a value too, with dims measured on the meta device; code that needs more refuses the module by
name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.errors import UsageError
from foretell.model.decoder import Decoder
from foretell.model.description import (
    OWN_INPUT,
    PASSED_BACK,
    STATISTIC,
    UNDECLARED,
    UNKNOWN_FORMULA,
    Declared,
    Derivation,
    Description,
    describe,
)
from foretell.model.measured_dims import measured_dims
from foretell.model.surgery import is_in_wrapper

PASSED_ON = ("", "identity", "replacement")  # formulas of values that equal the last value they read
IDS, POSITIONS = "ids", "positions"  # inputs of a pass; not values of a module
MEMORY_IDS, MEMORY_POSITIONS = "memory_ids", "memory_positions"  # inputs of an encoder's pass


Names = tuple[str, ...]  # names of values
Dims = tuple[str, ...]  # size letters or sizes


class Source(Enum):
    """The origin of a value."""

    OUTPUT = auto()  # the output of a module's call
    PART = auto()  # an element of an output that is a tuple
    INPUT = auto()  # an input of a module's call
    DERIVED = auto()  # computed from inputs of a module's call


@dataclass(frozen=True)
class Value:
    """A named value of a pass.

    module: the path of the module whose call produces it. index: the number of the part or input.
    dims: size letters of its shape, or measured sizes; empty if they could not be measured. formula: how one number
    follows from `reads`, the names of other values. The output of a child has no formula and reads only that child; an
    undeclared value has UNKNOWN_FORMULA. backward: how gradients of `reads` and weights follow from its own; empty if
    undeclared. operands: the module's inputs that a derived value is computed from.
    """

    name: str
    module: str
    source: Source
    dims: tuple[str, ...]
    reads: tuple[str, ...] = ()
    formula: str = ""
    index: int = 0
    derivation: Derivation | None = None
    operands: tuple[Value, ...] = ()
    backward: str = ""

    @property
    def is_derived(self) -> bool:
        """True for a value that no module returns."""
        return self.source is Source.DERIVED

    def read(self, inputs: tuple[Any, ...], output: Any) -> Any:
        """The value, from the positional inputs and the output of its module's call."""
        if self.source is Source.OUTPUT:
            return output
        return (inputs if self.source is Source.INPUT else output)[self.index]

    def compute(self, operands: tuple[Any, ...]) -> Tensor:
        """A derived value from its operands, in their precision, without autocast."""
        assert self.derivation is not None, f"{self.name} is not derived"
        with torch.no_grad(), torch.autocast(operands[0].device.type, enabled=False):
            return self.derivation.compute(*operands)


@dataclass(frozen=True)
class Structure:
    """All values of a model, in the order of its modules, and the numbers that the size letters stand for.

    stream: the names of the values of the residual stream: the input of the first block, then the output of each block.
    memory_stream: the same for the encoder whose output is the memory; empty without an encoder.
    """

    values: Mapping[str, Value]
    sizes: Mapping[str, int]
    descriptions: Mapping[str, Description] = field(default_factory=dict)  # by module path
    stream: tuple[str, ...] = ()
    memory_stream: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    @property
    def names(self) -> list[str]:
        return list(self.values)

    def with_formula(self, formula: str, under: str = "") -> list[Value]:
        """The values with this formula whose names begin with `under`, in the order of the model."""
        return [value for name, value in self.values.items() if value.formula == formula and name.startswith(under)]

    def layer_of(self, name: str) -> int:
        """The index of the block that a value is inside."""
        streams = (self.stream, self.memory_stream)
        blocks = ((layer, block) for stream in streams for layer, block in enumerate(stream[1:]))
        return next(layer for layer, block in blocks if name.startswith(f"{block}."))

    @property
    def memory(self) -> str:
        """The name of the memory, the output of an encoder; empty without an encoder."""
        return self.memory_stream[0].partition(".")[0] if self.memory_stream else ""

    def memory_axes(self, name: str) -> str:
        """The letters among a value's dims that count tokens of the memory instead of the text."""
        path = name
        while path:
            if axes := self.descriptions.get(path, UNDECLARED).memory_axes:
                return axes
            path = path.rpartition(".")[0]
        return ""

    def elements_per_row(self, name: str, length: int) -> int:
        """The number of elements of a value for one row of `length` tokens (queries and keys); 0 if unknown."""
        return self.count_elements(self.values[name].dims, length)

    def count_elements(self, dims: tuple[str, ...], length: int) -> int:
        """The number of elements of a tensor with these dims for one row of `length` tokens; 0 for unknown dims."""
        sizes = {**self.sizes, "B": 1, "T": length, "S": length}
        return math.prod(size_of(dim, sizes) for dim in dims) if dims else 0

    def saved_bytes_per_token(self, length: int, matmul_bytes: int) -> int:
        """Bytes kept for the backward pass per token of a row; a tensor that several modules keep counts once.

        matmul_bytes: the bytes of an element in the precision of matrix products (2 for bfloat16).
        """
        kept: dict[tuple[str, int], int] = {}
        for path, description in self.descriptions.items():
            for name, element_bytes in self._saved(path, description, matmul_bytes):
                elements = self.elements_per_row(name.partition("#")[0], length)
                kept[name, element_bytes] = element_bytes * elements
        return sum(kept.values()) // length

    def _saved(self, path: str, description: Description, matmul_bytes: int) -> Iterator[tuple[str, int]]:
        """(name, bytes per element) of each tensor that a module keeps; an unnamed one gets a name with `#`."""
        for name in description.saved_as_given:
            given = self._input_of(path, description, name)
            if not given:
                continue
            owner = self.descriptions.get(self.values[self.origin(given)].module, UNDECLARED)
            yield given, 4 if owner.is_float32 else matmul_bytes
        for name in description.saved:
            if name in ("output", "inner"):
                yield (path if name == "output" else f"{path}#inner"), matmul_bytes
            elif name in description.inputs:
                if given := self._input_of(path, description, name):
                    yield given, matmul_bytes
            else:
                yield f"{path}.{name}", matmul_bytes

    def _input_of(self, path: str, description: Description, name: str) -> str:
        """The name of a module's input; empty for an undeclared input.

        If an input is made from several values, its name is the first one with `#` and the module's path.
        """
        own = f"{path}.{name}"
        if own in self.values:
            return own
        reads = self.values[path].reads
        if not reads:
            return ""
        wanted = reads[description.inputs.index(name)] if len(description.inputs) > 1 else reads[0]
        return self.origin(wanted) if len(reads) == max(1, len(description.inputs)) else f"{wanted}#{path}"

    def origin(self, name: str) -> str:
        """The value whose tensor this is, traced back through modules that return an input or a child's output."""
        value = self.values.get(name)
        while value is not None and value.reads and value.formula in PASSED_ON:
            name = value.reads[-1]
            value = self.values.get(name)
        return name


def size_of(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of a dimension: of a letter, a number, or a product such as H*E."""
    return math.prod(sizes[letter] if letter in sizes else int(letter) for letter in dim.split("*"))


def letter_sizes(config: ModelConfig) -> dict[str, int]:
    """The sizes that do not depend on the text."""
    return {
        "D": config.width,
        "H": config.num_heads,
        "G": config.num_kv_heads,
        "E": config.head_width,
        "F": config.feedforward_width,
        "V": config.vocab_size,
        "L": config.num_layers,
    }


def model_structure(decoder: Decoder) -> Structure:
    """The structure of a decoder in its present state, with replaced modules. UsageError if a wrapper hides modules."""
    # Names inside have one part more, and a copy of the wrapper would change the module inside
    if wrapped := [path for path, module in decoder.named_modules() if is_in_wrapper(module)]:
        raise UsageError(f"torch.compile({wrapped[0]}) hides the values inside; use its method compile() instead")
    collector = Collector(decoder)
    collector.visit("", describe(decoder).inputs, Declared("B T V"))
    by_module: dict[str, list[Value]] = {}
    for value in collector.values.values():
        by_module.setdefault(value.module, []).append(value)
    in_order = {value.name: value for path in collector.modules for value in by_module.get(path, ()) if value.name}
    descriptions = {path: describe(module) for path, module in collector.modules.items() if path}
    memory = next((value.name for value in in_order.values() if MEMORY_IDS in value.reads), "").partition(".")[0]
    streams = collector.streams.items()
    stream = next((names for path, names in streams if path.partition(".")[0] != memory), ())
    memory_stream = next((names for path, names in streams if path.partition(".")[0] == memory), ())
    return Structure(in_order, letter_sizes(decoder.config), descriptions, stream, memory_stream)


class Collector:
    """Collects the values of a model, following the descriptions of its modules."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.modules = dict(decoder.named_modules())
        self.values: dict[str, Value] = {}
        self.streams: dict[str, Names] = {}  # keyed by the path of the list of blocks
        self._measured: dict[str, Dims] | None = None

    def visit(
        self, path: str, reads: Names, declared: Declared | None, declared_inputs: Mapping[str, Declared] | None = None
    ) -> None:
        """Enter the output of the module at `path`, which reads the values `reads`, and all values inside it.

        declared, declared_inputs: the surrounding module's declarations of its output and its inputs.
        """
        module = self.decoder.get_submodule(path)
        description = describe(module)
        dims: Dims = ()
        if description.is_container or description.parts:
            self._enter_parts(path, description)
        else:
            dims = self._dims(path, declared)
            self._enter(self._output(path, description, reads, declared, dims))
        inputs = self._enter_inputs(path, description, declared_inputs or {}, dims)
        self._enter_derived(path, module, description, inputs, dims)
        self._visit_children(path, module, description, reads)

    def _output(
        self, path: str, description: Description, reads: Names, declared: Declared | None, dims: Dims
    ) -> Value:
        if description.returns:
            return Value(path, path, Source.OUTPUT, dims, (join(path, description.returns),), backward=PASSED_BACK)
        formula, backward = (description.formula, description.backward) if reads else ("", "")
        if declared and declared.formula and declared.refines == formula:
            formula, backward = declared.formula, declared.backward
        reads = tuple(join(path, name) for name in description.reads) or reads
        return Value(path, path, Source.OUTPUT, dims, reads, formula or UNKNOWN_FORMULA, backward=backward)

    def _visit_children(self, path: str, module: nn.Module, description: Description, reads: Names) -> None:
        """Enter the values of all children, in module order; the inputs of undeclared children are unknown."""
        inputs: dict[str, dict[str, Declared]] = {}
        for name, declared in description.values.items():
            child, _, given = name.rpartition(".")
            reads_in_full = tuple(join(path, source) for source in declared.reads)
            inputs.setdefault(child, {})[given] = replace(declared, reads=reads_in_full)
        for name, child in module.named_children():
            own = join(path, name)
            if name == description.chain:
                self._visit_chain(own, child, reads)
                continue
            declared = description.values.get(name)
            sources = declared.reads if declared else ()
            resolved = tuple(self._resolve(path, source, description, reads) for source in sources)
            self.visit(own, resolved if all(resolved) else (), declared, inputs.get(name))

    def _visit_chain(self, path: str, children: nn.Module, reads: Names) -> None:
        """Enter a list of modules, each of which reads the output of the one before."""
        self._enter_parts(path, describe(children))
        previous = reads[0] if reads else ""
        stream = [previous]
        for name, _ in children.named_children():
            own = join(path, name)
            self.visit(own, (previous, *reads[1:]) if previous else (), Declared("B T D"))
            previous = own
            stream.append(own)
        self.streams[path] = tuple(stream)

    def _resolve(self, path: str, source: str, description: Description, reads: Names) -> str:
        """The full name of `source`, a name in a declaration; empty if it is not declared."""
        if source in description.inputs:
            index = description.inputs.index(source)
            return reads[index] if index < len(reads) else "".join(reads[:1])
        if source == OWN_INPUT:
            return "".join(reads[:1])
        if source == description.chain:
            children = [name for name, _ in self.modules[join(path, source)].named_children()]
            return join(path, f"{source}.{children[-1]}") if children else "".join(reads[:1])
        return join(path, source)

    def _enter(self, value: Value) -> Value:
        self.values[value.name] = value
        return value

    def _enter_parts(self, path: str, description: Description) -> None:
        for index, (name, dims) in enumerate(description.parts.items()):
            letters = tuple(dims.split())
            self._enter(Value(join(path, name), path, Source.PART, letters, (POSITIONS,), description.formula, index))

    def _enter_inputs(
        self, path: str, description: Description, declared: Mapping[str, Declared], dims: Dims
    ) -> dict[str, Value]:
        """The inputs of a module. The module around it may declare some of them as values."""
        inputs = {}
        names = tuple(declared) if description is UNDECLARED and declared else description.inputs
        for index, name in enumerate(names):
            own = f"{path}.{name}"
            if name in declared:
                given = declared[name]
                letters = tuple(given.dims.split())
                inputs[name] = self._enter(
                    Value(own, path, Source.INPUT, letters, given.reads, given.formula, index, backward=given.backward)
                )
            else:
                inputs[name] = Value(own, path, Source.INPUT, dims if len(names) == 1 else (), index=index)
        return inputs

    def _enter_derived(
        self, path: str, module: nn.Module, description: Description, inputs: Mapping[str, Value], dims: Dims
    ) -> None:
        children = {name for name, _ in module.named_children()} if description.derived else set()
        for name, derivation in description.derived.items():
            if name in children:  # a child of that name returns the value
                continue
            letters = (*dims[:-1], "1") if derivation.dims == STATISTIC else tuple(derivation.dims.split())
            operands = tuple(inputs[need] for need in derivation.needs)
            named = tuple(operand.name for operand in operands if operand.name in self.values)
            own, reads = join(path, name), named or self.values[path].reads
            formula = derivation.formula if reads else UNKNOWN_FORMULA
            self._enter(Value(own, path, Source.DERIVED, letters, reads, formula, 0, derivation, operands))

    def _dims(self, path: str, declared: Declared | None) -> Dims:
        if declared is not None:
            return tuple(declared.dims.split())
        if self._measured is None:
            self._measured = measured_dims(self.decoder)
        return self._measured.get(path, ())


def join(path: str, name: str) -> str:
    """`path.name`; the name alone at the top of a model."""
    return f"{path}.{name}" if path else name
