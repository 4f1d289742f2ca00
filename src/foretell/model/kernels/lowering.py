"""The operations that compute a module for few rows, from what its classes declare (`description.py`).

A module's `operation` is one of HANDLERS, or PARTS: then its description names the modules inside it in order, and the
values that each of them reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from foretell.model.attention import keep, multiply, norm_all_heads, norm_each_head
from foretell.model.decoder import HEAD, Decoder, rounded
from foretell.model.description import OWN_INPUT, PARTS, Description, describe, operation_of
from foretell.model.dispatch import plain_form
from foretell.model.kernels import operations as op
from foretell.model.kernels.fast_linear import can_pack
from foretell.model.kernels.vector_math import ACTIVATIONS
from foretell.model.position import keep_heads, rotate_globally, rotate_heads, rotate_locally
from foretell.model.quantized_linear import QuantizedMatrix, stored_matrix
from foretell.model.structure import join
from foretell.model.surgery import HOOKS
from foretell.numerics.activations import activation_name

ROTATIONS = {rotate_heads: False, rotate_globally: False, rotate_locally: True}  # whether by angles of a window
# Attributes of modules that are functions, or partial forms of these
FUNCTIONS = (*ROTATIONS, keep_heads, norm_each_head, norm_all_heads, keep, multiply)


class NotLoweredError(Exception):
    """A module that compiled code does not compute."""

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason


@dataclass(eq=False)
class Value:
    """A vector of `width` numbers for each token."""

    width: int


@dataclass(eq=False)
class Operation:
    """An operation of compiled code: the values that it reads and makes.

    modules: those whose weights it reads. Matrix products of one `group` may be joined.
    """

    kind: int
    reads: list[Value]
    makes: list[Value]
    modules: list[Any] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    group: str = ""


class Lowering:
    """The operations of a module and of all modules inside it. Raises NotLoweredError for the first one without any."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.dtype: torch.dtype | None = None
        self.dropouts: list[nn.Module] = []

    def complete(self, path: str, module: nn.Module, reads: list[Value]) -> Lowering | NotLoweredError:
        """Lower a module, and write its output to memory outside of the program; itself, or what prevents it."""
        try:
            output = self.lower(path, module, reads)
        except NotLoweredError as obstacle:
            return obstacle
        self.operations.append(Operation(op.WRITE, [output], []))
        return self

    def lower(self, path: str, module: nn.Module, reads: list[Value], around: nn.Module | None = None) -> Value:
        """The output of a module that reads these values, inside the module `around`."""
        operation = operation_of(plain_form(type(module)))
        if not operation:
            raise NotLoweredError(path, f"{type(module).__name__} has no operation")
        if module.training:
            raise NotLoweredError(path, "it is in training mode")
        if any(tensor.is_inference() for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            raise NotLoweredError(path, "its weights were made in inference mode, so changes would not be noticed")
        description = describe(module)
        values = self.lower_parts(path, module, description, reads) if description.values else {}
        if operation == PARTS:
            return values[description.returns]
        return HANDLERS[operation](self, path, module, [values[name] for name in description.reads] or reads, around)

    def lower_parts(self, path: str, module: Any, description: Description, reads: list[Value]) -> dict[str, Value]:
        """The values inside a module by name, with its inputs."""
        functions = {name: value for name, value in vars(module).items() if callable(value)}
        if unknown := [name for name, value in functions.items() if getattr(value, "func", value) not in FUNCTIONS]:
            raise NotLoweredError(path, f"its function {unknown[0]} has no operation")
        values = {OWN_INPUT: reads[0] if reads else NOTHING, **dict(zip(description.inputs, reads, strict=False))}
        if description.chain:
            value, chain = reads[0], join(path, description.chain)
            for name, child in getattr(module, description.chain).named_children():
                value = self.lower(join(chain, name), child, [value, *reads[1:]])
            values[description.chain] = value
        for name, declared in description.values.items():
            if missing := [read for read in declared.reads if read not in values]:
                raise NotLoweredError(path, f"{name} reads {missing[0]}")
            operands, is_input = [values[read] for read in declared.reads], "." in name  # an input of a child
            if declared.formula == "gated linear":
                operands = [self.add(op.MULTIPLY, operands, operands[0].width)]
            if is_input and declared.formula == "rotated heads" and module.rotate in ROTATIONS:
                is_local = ROTATIONS[module.rotate]
                operands = [self.add_heads(op.ROTATE, operands[0], module.head_width, is_local=is_local)]
            if name == "core.query" and module.scale_query is not keep:
                operands = [self.scale(operands[0], *module.scale_query.args)]
            if join(path, name) == HEAD:
                operands = [self.choose(operands[0])]
            values[name] = (
                operands[0] if is_input else self.lower(join(path, name), getattr(module, name), operands, module)
            )
        for name, child in module.named_children():
            if name not in values:
                self.lower(join(path, name), child, reads, module)
        return values

    def add(
        self, kind: int, reads: list[Value], width: int, /, module: Any = None, group: str = "", **numbers: Any
    ) -> Value:
        """Append an operation; returns its new value of this width."""
        made, modules = Value(width), [] if module is None else [module]
        self.operations.append(Operation(kind, reads, [made], modules, numbers, group))
        return made

    def add_heads(self, kind: int, value: Value, width: int, module: Any = None, **numbers: Any) -> Value:
        """Append an operation on each head of this width."""
        return self.add(kind, [value], value.width, module, width=width, count=value.width // width, **numbers)

    def scale(self, value: Value, factor: float) -> Value:
        """Append a product with a number."""
        return self.add(op.SCALE, [value], value.width, width=value.width, factor=factor)

    def choose(self, value: Value) -> Value:
        """The rows of the tokens with logits; a norm of all rows becomes one of these."""
        is_norm = self.operations[-1].kind == op.NORM and self.operations[-1].makes == [value]
        norm = self.operations.pop() if is_norm else None
        chosen = self.add(op.CHOOSE, norm.reads if norm else [value], value.width)
        if norm is None:
            return chosen
        norm.reads = [chosen]
        self.operations.append(norm)
        return value

    def check_dtype(self, path: str, dtype: torch.dtype) -> None:
        """Refuse a module with another dtype than the modules before it."""
        self.dtype = self.dtype or dtype
        if dtype != self.dtype:
            raise NotLoweredError(path, f"it computes in {dtype}, modules before it in {self.dtype}")

    # --- the operations of single modules ----------------------------------------------------------------------------

    def matmul(self, path: str, layer: Any, reads: list[Value], around: Any) -> Value:
        store = stored_matrix(layer)
        is_quantized = isinstance(store, QuantizedMatrix)
        if not can_pack(layer):
            raise NotLoweredError(path, "no kernel multiplies its weights")
        self.check_dtype(path, store.dtype if is_quantized else store.weight.dtype)
        width = store.out_features if is_quantized else len(store.weight)
        return self.add(op.MATMUL, reads, width, layer, group=path.rpartition(".")[0])

    def norm(self, path: str, norm: Any, reads: list[Value], around: Any) -> Value:
        return self.add_heads(op.NORM, reads[0], norm.normalized_shape[-1], norm)

    def activate(self, path: str, module: nn.Module, reads: list[Value], around: Any) -> Value:
        name = activation_name(module)
        if name not in ACTIVATIONS:
            raise NotLoweredError(path, "no kernel computes this activation")
        return self.add(op.ACTIVATE, reads, reads[0].width, module, activation=ACTIVATIONS[name])

    def attend(self, path: str, core: nn.Module, reads: list[Value], around: Any) -> Value:
        query, key, value = reads
        E, numbers = around.head_width, {"layer": around.layer, "width": around.head_width}
        kv_heads = key.width // E
        self.operations.append(Operation(op.STORE, [key, value], [], [], {**numbers, "count": kv_heads}))
        numbers |= {"window": around.window or 0, "kv_heads": kv_heads, "count": query.width // E}
        return self.add(op.ATTEND, [query], query.width, **numbers)

    def embed(self, path: str, token: Any, reads: list[Value], around: Any) -> Value:
        if not all(tensor.is_contiguous() for tensor in (*token.parameters(), *token.buffers())):
            raise NotLoweredError(path, "its table is not contiguous")
        is_quantized = isinstance(token, QuantizedMatrix)
        self.check_dtype(path, token.dtype if is_quantized else token.weight.dtype)
        return self.add(op.EMBED, [], token.in_features if is_quantized else token.embedding_dim, token)

    def scaled_embed(self, path: str, token: Any, reads: list[Value], around: Any) -> Value:
        vectors = self.embed(path, token, reads, around)
        assert self.dtype is not None
        return self.scale(vectors, rounded(token.scale, self.dtype))

    def position(self, path: str, module: Any, reads: list[Value], around: Any) -> Value:
        return self.add(op.EMBED, [], self.operations[-1].makes[0].width, module, is_position=1)

    def identity(self, path: str, module: nn.Module, reads: list[Value], around: Any) -> Value:
        self.dropouts += [] if isinstance(module, nn.Identity) else [module]
        return reads[0]


NOTHING = Value(0)  # ids and positions, which are not vectors
HANDLERS: dict[str, Callable[[Lowering, str, Any, list[Value], Any], Value]] = {
    "matmul": Lowering.matmul,
    "norm": Lowering.norm,
    "activate": Lowering.activate,
    "attend": Lowering.attend,
    "embed": Lowering.embed,
    "scaled embed": Lowering.scaled_embed,
    "position": Lowering.position,
    "identity": Lowering.identity,
    "add": lambda lowering, path, module, reads, around: lowering.add(op.ADD, reads, reads[0].width),
    "replace": lambda lowering, path, module, reads, around: reads[1],
    "angles": lambda lowering, path, module, reads, around: NOTHING,  # computed before the program runs
}


def lower_rows(path: str, module: nn.Module, width: int) -> Lowering | NotLoweredError:
    """The operations of a module that reads and writes vectors of `width` numbers, or what prevents them."""
    lowering = Lowering()
    return lowering.complete(path, module, [lowering.add(op.READ, [], width)])


def lower_block(path: str, block: nn.Module, width: int) -> Lowering | NotLoweredError:
    """The operations of a block without hooks, or what prevents them."""
    return find_hook(path, block) or lower_rows(path, block, width)


def lower_pass(decoder: Decoder) -> Lowering | NotLoweredError:
    """The operations of a pass from ids to logits, or what prevents them; hooks may be removed later."""
    return Lowering().complete("", decoder, [NOTHING, NOTHING])


def find_hook(path: str, module: nn.Module) -> NotLoweredError | None:
    """The first hook of a module or inside it."""
    modules = module.named_modules(prefix=path)
    hooked = (below for below, inner in modules if any(getattr(inner, name) for name in HOOKS))
    return next((NotLoweredError(below, "it has a hook") for below in hooked), None)


def find_obstacle(decoder: Decoder) -> NotLoweredError | None:
    """The first module that a pass from ids to logits calls, because compiled code does not compute it."""
    lowering = lower_pass(decoder)
    return lowering if isinstance(lowering, NotLoweredError) else find_hook("", decoder)
