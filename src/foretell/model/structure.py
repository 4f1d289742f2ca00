"""One description of a model: every value of a forward pass, by name, with its shape, its inputs and its formula.

Collected from what the module classes declare (`description.py`), for trace, explain, page, attribution, budget, memory
plan and mask check. It needs no weights: a decoder on the meta device has the same structure. A module whose class
declares nothing still has a value, its output, with dims found by running the model on the meta device; a reader that
needs more than the declaration says refuses it by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretell.config import ModelConfig
from foretell.errors import UsageError
from foretell.model.decoder import Decoder
from foretell.model.description import OWN_INPUT, Declared, Derivation, Description

UNDECLARED = Description()
# Classes of torch's own, which cannot carry a description; looked up along the class hierarchy
TORCH_CLASSES: dict[type[nn.Module], Description] = {
    nn.Linear: Description(formula="linear", saved=("x",)),
    nn.Embedding: Description(formula="token vector", inputs=("ids",), is_float32=True),
    nn.Identity: Description(formula="identity"),
    nn.GELU: Description(formula="activation", saved=("x",)),
    nn.SiLU: Description(formula="activation", saved=("x",)),
    nn.ReLU: Description(formula="activation", saved=("output",)),
    nn.ModuleList: Description(is_container=True),
}
PASSED_ON = ("", "identity", "replacement")  # formulas of values that are the last of what they read
IDS, POSITIONS = "ids", "positions"  # what a pass begins with; not values of a module
BLOCK = "blocks"
UNKNOWN = "N"  # the letter of a dimension that no class has declared


class Source(Enum):
    """Where a value is found."""

    OUTPUT = auto()  # of a module's call
    PART = auto()  # of an output that is a tuple
    INPUT = auto()  # of a module's call
    DERIVED = auto()  # computed from inputs of a module's call


@dataclass(frozen=True)
class Value:
    """A named value of a pass.

    module: the path of the module at whose call it is found; index: of the part or input.
    dims: size letters of its shape. formula: how one number follows from `reads`, the names of other values; a value
    that is the output of a part of its module has no formula and reads that part alone.
    derivation: for derived values; their operands are inputs of the module, named by `operands`.
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
        """A derived value from its operands, in their own precision, not that of autocast."""
        assert self.derivation is not None, f"{self.name} is not derived"
        with torch.no_grad(), torch.autocast(operands[0].device.type, enabled=False):
            return self.derivation.compute(*operands)


@dataclass(frozen=True)
class Structure:
    """All values of a model in the order of its modules, and the sizes that the letters stand for."""

    values: Mapping[str, Value]
    sizes: Mapping[str, int]
    descriptions: Mapping[str, Description] = field(default_factory=dict)  # by module path

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def elements_per_row(self, name: str, length: int) -> int:
        """Elements of a value for one row of so many tokens, each of which is a query and a key."""
        sizes = {**self.sizes, "B": 1, "T": length, "S": length}
        return math.prod(size_of(dim, sizes) for dim in self.values[name].dims)

    def saved_bytes_per_token(self, length: int, matmul_bytes: int) -> int:
        """Bytes kept for the backward pass per token of a row; every tensor counts once, however many modules keep it.

        matmul_bytes: of an element in the precision of matrix products (2 for bfloat16).
        """
        kept: dict[tuple[str, int], int] = {}
        for path, description in self.descriptions.items():
            for name, element_bytes in self._saved(path, description, matmul_bytes):
                elements = self.elements_per_row(name.partition("#")[0], length)
                kept[name, element_bytes] = element_bytes * elements
        return sum(kept.values()) // length

    def _saved(self, path: str, description: Description, matmul_bytes: int) -> Iterator[tuple[str, int]]:
        """(name, bytes of an element) of what a module keeps; `#` and a path mark tensors without a name."""
        for name in description.saved_as_given:
            given = self._input_of(path, description, name)
            origin = self.values[self.origin(given)]
            yield given, 4 if self._is_float32(origin) else matmul_bytes
        for name in description.saved:
            if name in ("output", "inner"):
                yield (path if name == "output" else f"{path}#inner"), matmul_bytes
            elif name in description.inputs:
                yield self._input_of(path, description, name), matmul_bytes
            else:
                yield f"{path}.{name}", matmul_bytes

    def _input_of(self, path: str, description: Description, name: str) -> str:
        """The name of what a module reads; of several values made into one, the first with the module's path."""
        own = f"{path}.{name}"
        if own in self.values:
            return own
        reads = self.values[path].reads
        wanted = reads[description.inputs.index(name)] if len(description.inputs) > 1 else reads[0]
        return self.origin(wanted) if len(reads) == max(1, len(description.inputs)) else f"{wanted}#{path}"

    def origin(self, name: str) -> str:
        """The value whose tensor a name has, followed through modules that return one of their inputs or children."""
        value = self.values.get(name)
        while value is not None and value.reads and value.formula in PASSED_ON:
            name = value.reads[-1]
            value = self.values.get(name)
        return name

    def _is_float32(self, value: Value) -> bool:
        return value.name in self.values and self.descriptions.get(value.module, UNDECLARED).is_float32


def size_of(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of a dimension: of a letter, a number, or a product such as H*E."""
    return math.prod(sizes[letter] if letter in sizes else int(letter) for letter in dim.split("*"))


def describe(module: nn.Module) -> Description:
    """What a module's class says about itself, or the nearest of its base classes that says anything."""
    for kind in type(module).__mro__:
        if isinstance(own := vars(kind).get("description"), Description):
            return own
        if kind in TORCH_CLASSES:
            return TORCH_CLASSES[kind]
    return UNDECLARED


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
    """The structure of a decoder as it is now, replaced modules included."""
    collector = Collector(decoder)
    collector.visit("", (IDS, POSITIONS), Declared("B T V"))
    values = {name: value for name, value in collector.values.items() if name}
    in_order = {name: values[name] for name in ordered(decoder, values)}
    sizes = {**letter_sizes(decoder.config), **collector.extra_sizes}
    return Structure(in_order, sizes, {path: describe(module) for path, module in decoder.named_modules() if path})


def ordered(decoder: Decoder, values: Mapping[str, Value]) -> list[str]:
    """Names in the order of the modules; what belongs to a module's call follows it."""
    by_module: dict[str, list[str]] = {}
    for name, value in values.items():
        by_module.setdefault(value.module, []).append(name)
    return [name for path, _ in decoder.named_modules() for name in by_module.get(path, [])]


class Collector:
    """Walks through a model along the declarations of its modules."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.values: dict[str, Value] = {}
        self.extra_sizes: dict[str, int] = {}
        self._measured: dict[str, tuple[str, ...]] | None = None

    def visit(self, path: str, reads: tuple[str, ...], declared: Declared | None) -> None:
        """Enter the value of the module at `path`, which reads these values, and all values inside it."""
        module = self.decoder.get_submodule(path)
        description = describe(module)
        dims: tuple[str, ...] = ()
        if description.is_container or description.parts:
            self._enter_parts(path, description)
        else:
            dims = self._dims(path, declared)
            returned = join(path, description.returns) if description.returns else ""
            own_formula = (declared.formula if declared else "") or description.formula
            formula = "" if returned else own_formula
            self._enter(Value(path, path, Source.OUTPUT, dims, (returned,) if returned else reads, formula))
        self._enter_inputs(path, description)
        self._enter_derived(path, description, dims)
        self._visit_children(path, module, description, reads)

    def _visit_children(self, path: str, module: nn.Module, description: Description, reads: tuple[str, ...]) -> None:
        """Enter the values of all children, in the order of the module tree."""
        for name, child in module.named_children():
            own = join(path, name)
            if name == description.chain:
                self._visit_chain(own, child, reads)
                continue
            declared = description.values.get(name)
            sources = declared.reads if declared else description.inputs
            self.visit(own, tuple(self._resolve(path, source, description, reads) for source in sources), declared)

    def _visit_chain(self, path: str, children: nn.Module, reads: tuple[str, ...]) -> None:
        """Enter a list of modules of which each reads the one before."""
        previous = reads[0]
        for name, _ in children.named_children():
            own = join(path, name)
            self.visit(own, (previous,), Declared("B T D"))
            previous = own

    def _resolve(self, path: str, source: str, description: Description, reads: tuple[str, ...]) -> str:
        """The full name of what a declaration calls `source`."""
        if source in description.inputs:
            index = description.inputs.index(source)
            return reads[index] if index < len(reads) else reads[0]
        if source == OWN_INPUT:
            return reads[0]
        if source == description.chain:
            last = len(list(self.decoder.get_submodule(join(path, source)).children())) - 1
            return join(path, f"{source}.{last}") if last >= 0 else reads[0]
        return join(path, source)

    def _enter(self, value: Value) -> None:
        self.values[value.name] = value

    def _enter_parts(self, path: str, description: Description) -> None:
        for index, (name, dims) in enumerate(description.parts.items()):
            own = join(path, name)
            letters = tuple(dims.split())
            self._enter(Value(own, path, Source.PART, letters, (POSITIONS,), description.formula, index))

    def _enter_inputs(self, path: str, description: Description) -> None:
        """The inputs of a module that are values of their own, as the module around it declares them."""
        parent, _, name = path.rpartition(".")
        around = describe(self.decoder.get_submodule(parent)) if path else UNDECLARED
        for index, given in enumerate(description.inputs):
            declared = around.values.get(f"{name}.{given}")
            if declared is not None:
                reads = tuple(join(parent, source) for source in declared.reads)
                dims = tuple(declared.dims.split())
                own = join(path, given)
                self._enter(Value(own, path, Source.INPUT, dims, reads, declared.formula, index))

    def _enter_derived(self, path: str, description: Description, dims: tuple[str, ...]) -> None:
        children = {name for name, _ in self.decoder.get_submodule(path).named_children()}
        inputs = {
            name: self.values.get(join(path, name)) or Value(f"{path}.{name}", path, Source.INPUT, dims, index=index)
            for index, name in enumerate(description.inputs)
        }
        for name, derivation in description.derived.items():
            if name in children:  # a module of that name returns it
                continue
            letters = (*dims[:-1], "1") if derivation.dims == "statistic" else tuple(derivation.dims.split())
            operands = tuple(inputs[need] for need in derivation.needs)
            named = [operand.name for operand in operands if operand.name in self.values]
            reads = tuple(named) or self.values[path].reads
            own, rule = join(path, name), derivation.formula
            self._enter(Value(own, path, Source.DERIVED, letters, reads, rule, 0, derivation, operands))

    def _dims(self, path: str, declared: Declared | None) -> tuple[str, ...]:
        if declared is not None:
            return tuple(declared.dims.split())
        if self._measured is None:
            self._measured = self._measure()
        return self._measured.get(path, ())

    def _measure(self) -> dict[str, tuple[str, ...]]:
        """The dims of every module's output, found by two passes on the meta device with texts of unequal lengths."""
        shapes = [output_shapes(self.decoder, rows, length) for rows, length in ((2, 3), (3, 4))]
        found = {}
        for path, shape in shapes[0].items():
            letters = []
            for first, second in zip(shape, shapes[1].get(path, ()), strict=False):
                changed = {(2, 3): "B", (3, 4): "T"}.get((first, second))
                letters.append(changed if changed and first != second else str(first))
            found[path] = tuple(letters)
        return found


def output_shapes(decoder: Decoder, rows: int, length: int) -> dict[str, tuple[int, ...]]:
    """The shape of each module's output tensor in a pass over ids (rows, length), without weights or arithmetic."""
    if length > decoder.config.context_length:
        raise UsageError(f"a context of {decoder.config.context_length} is too short to examine undeclared modules")
    shapes: dict[str, tuple[int, ...]] = {}

    def remember(path: str):
        def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                shapes[path] = tuple(output.shape)

        return hook

    handles = [module.register_forward_hook(remember(path)) for path, module in decoder.named_modules()]
    weights = {path: weight.to("meta") for path, weight in decoder.named_parameters()}
    try:
        with torch.no_grad():
            functional_call(decoder, weights, (torch.zeros(rows, length, dtype=torch.long, device="meta"),))
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def join(path: str, name: str) -> str:
    """`path.name`; the name alone at the top of a model."""
    return f"{path}.{name}" if path else name
