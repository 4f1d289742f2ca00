"""A program for compiled code, made of the operations of a module: their phases, their memory and their weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from foretell.model.dispatch import plain_form
from foretell.model.kernels import operations as op
from foretell.model.kernels.fast_linear import FastWeight, Sources, form_of, pack_layers
from foretell.model.kernels.lowering import Lowering, Operation, Value
from foretell.model.kernels.matmul import padded_rows, prepared_per_row
from foretell.model.kernels.packing import INPUTS, LANES
from foretell.model.kernels.threads import LINE, run_on_threads
from foretell.model.quantized_linear import Int4Embedding, QuantizedEmbedding, QuantizedMatrix, stored_matrix

Packs = dict[tuple[nn.Module, ...], FastWeight]  # packed weights by the layers that they were packed from
ROWS, ALONE = -1, 0  # phases of operations on rows, and of attention; another number is the width of tiles


class View(NamedTuple):
    """The memory of a value: the fields of VIEW, and the width of its array."""

    at: int
    first: int
    pitch: int
    step: int
    width: int

    @property
    def is_input(self) -> bool:
        """True for a whole array that a matrix product can read."""
        return self.first == 0 and self.step == LANES and self.pitch == padded(self.width, INPUTS)


NO_VIEW = View(0, 0, 0, 0, 0)
NO_OPERATION = {name: NO_VIEW[:4] if name in ("source", "other", "target") else 0 for name in op.OPERATION.fields or ()}


def padded(width: int, unit: int) -> int:
    return width + -width % unit


NO_CACHE = (0,) * (len(op.PASS.names or ()) - 4)


class Step:
    """One pass over M tokens for compiled code; more: the fields of op.PASS that describe a cache."""

    def __init__(self, M: int, T: int, is_narrow: bool, *more: int):
        self.rows = padded_rows(M)
        self.record = np.array((M, T, self.rows, is_narrow, *(more or NO_CACHE)), op.PASS)
        self.address = self.record.ctypes.data


class Program:
    """The operations of a module in compiled code.

    sources: the tensors whose changes make it outdated. groups: the layers that are packed together, and whether their
    tiles alternate.
    """

    def __init__(self, lowering: Lowering, packs: Packs, positions: int = 0):
        """packs: gets the weights that are packed here. positions: the length of tables of positions."""
        self.packs, self.positions, self.dtype = packs, positions, lowering.dtype
        self.width, self.vocabulary = lowering.operations[-1].reads[0].width, 0
        self.dropouts, self.kept = lowering.dropouts, list[Any]()  # kept: the memory of addresses
        self.groups: list[tuple[list[Any], bool, FastWeight]] = []
        self.tensors: list[Tensor] = []
        layout = Layout(self, joined(lowering.operations))
        self.operations, self.phases = layout.table(), len(layout.starts)
        self.per_row, self.is_padded = layout.per_row, layout.is_padded
        self.sources = Sources(self.tensors)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("a decoder prepared for generation has addresses of its weights; copy the plain one")

    def is_current(self) -> bool:
        """True if no weight has changed since it was packed, and no element is dropped."""
        return self.sources.are_current() and not any(dropout.training for dropout in self.dropouts)

    def run(self, step: Step, x: int = 0, out: int = 0, ids: int = 0, chosen: np.ndarray | None = None) -> None:
        """Run all operations. x, out, ids: addresses; chosen: the indices of the tokens with logits."""
        rows = (0, 0, 0) if chosen is None else (chosen.ctypes.data, len(chosen), padded_rows(len(chosen)))
        operations = (self.operations.ctypes.data, len(self.operations))
        call = np.array((0, 0, 0, step.address, *operations, ids, x, out, *rows), op.PROGRAM)
        run_on_threads(
            op.run_program, call, self.phases, step.rows * self.per_row + LINE, self.is_padded, self.phases == 1
        )

    def weights_of(self, layers: list[Any], in_turns: bool) -> FastWeight:
        """The packed weights of layers with the same input."""
        weight = self.packs.get(tuple(layers)) or pack_layers(layers, in_turns=in_turns)
        self.packs[tuple(layers)] = weight
        self.groups.append((layers, in_turns, weight))
        self.tensors += weight.sources.tensors
        return weight

    def norm_numbers(self, norm: Any) -> dict[str, Any]:
        """The numbers of a norm, whose scale and shift are in float32."""
        weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
        self.tensors += [part for part in (weight, bias) if part is not None]
        width = norm.normalized_shape[-1]
        scale = torch.ones(width) if weight is None else norm.record.weight_offset + weight.detach().float()
        shift = torch.full((width,), -0.0) if bias is None else bias.detach().float().contiguous()
        self.kept += [scale, shift]
        addresses = {"scale": scale.data_ptr(), "shift": shift.data_ptr()}
        return {"is_centered": norm.record.is_centered, "epsilon": norm.eps, **addresses}

    def table_address(self, module: Any, is_position: int) -> int:
        """The address of the record of an embedding's table."""
        self.tensors += [*module.parameters(), *module.buffers()]
        parts: tuple[Tensor | None, ...] = (None, None)
        sizes = (0, False, is_position)
        if isinstance(module, QuantizedEmbedding):
            table, parts = module.integers, float_factors(module)
            sizes = (module.group, isinstance(module, Int4Embedding), is_position)
        elif is_position:
            # without hooks, which must not see this call, nor change the table for good
            table = module.forward(torch.arange(self.positions)).detach().to(self.dtype)
        else:
            table = module.weight.detach()  # keeps the memory, which `Module.to` would free
        self.vocabulary = self.vocabulary if is_position else len(table)
        addresses = (0 if part is None else part.data_ptr() for part in (table, *parts))
        record = np.array((*addresses, *sizes), op.EMBEDDING)
        self.kept += [table, parts, record]
        return record.ctypes.data


def float_factors(token: QuantizedEmbedding) -> tuple[Tensor, Tensor | None]:
    """The scales and minima of an embedding in float32; integers of 4 bits, which are stored unsigned, have minima."""
    scales, minima = token.scales_and_minima()
    if minima is None and isinstance(token, Int4Embedding):
        minima = -8 * scales.float()
    return scales.float(), None if minima is None else minima.float()


def joined(operations: list[Operation]) -> list[Operation]:
    """The operations with one matrix product for all layers of a module that read the same value."""
    products: dict[Any, Operation] = {}
    result = []
    for operation in operations:
        if operation.kind == op.MATMUL:
            key = (operation.reads[0], operation.group, layer_format(operation.modules[0]))
            if first := products.get(key):
                first.makes.extend(operation.makes)
                first.modules.extend(operation.modules)
                continue
            products[key] = operation
        result.append(operation)
    return result


def layer_format(layer: Any) -> tuple[Any, ...]:
    """The properties that must agree in layers that are packed together."""
    store = stored_matrix(layer)
    is_quantized = isinstance(store, QuantizedMatrix)
    return plain_form(type(layer)), *((store.dtype, *form_of(store)) if is_quantized else (store.weight.dtype,))


class Layout:
    """The records of operations, in phases, with memory for their values.

    An array is used again when the last value in it has been read, by values of the same width, which keeps its zeros
    after the width.
    """

    def __init__(self, program: Program, operations: list[Operation]):
        self.program = program
        products = [operation for operation in operations if operation.kind == op.MATMUL]
        multiplied = {value for operation in operations if operation.kind == op.MULTIPLY for value in operation.reads}
        self.in_turns = {product for product in products if len(product.makes) == 2 and product.makes[1] in multiplied}
        self.weights = {product: program.weights_of(product.modules, product in self.in_turns) for product in products}
        matmuls = [weight.matmul for weight in self.weights.values()]
        self.is_padded = any(matmul.is_padded for matmul in matmuls)
        # the prepared activations of all products have one array, at the start
        self.per_row = max((padded(prepared_per_row(matmul.matrix), LANES) + LANES for matmul in matmuls), default=0)
        self.last_reads = {value: operation for operation in operations for value in operation.reads}
        self.views: dict[Value, View] = {}
        self.users = Counter[int]()  # values in each array
        self.free, self.unused = defaultdict[tuple[int, int], list[int]](list), list[View]()
        self.records, self.starts = list[dict[str, Any]](), list[int]()
        self.domain, self.is_chosen = ALONE, False
        self.multiplied = -1  # the array that the last product reads, also while others compute on its tiles
        for operation in operations:
            self.add(operation)
        for start, end in pairwise([*self.starts, len(self.records)]):
            for record in self.records[start:end]:
                record["end"] = end

    def table(self) -> np.ndarray:
        return np.array([tuple((NO_OPERATION | record).values()) for record in self.records], op.OPERATION)

    def add(self, operation: Operation) -> None:
        kind, numbers = operation.kind, dict(operation.numbers)
        ending = [value for value in dict.fromkeys(operation.reads) if self.last_reads[value] is operation]
        sources = [self.views[value] for value in operation.reads]
        if kind == op.MATMUL:
            self.multiply(operation, sources[0])
        else:
            if kind in op.ON_TILES:
                width = numbers["width"] = operation.reads[0].width
                numbers["tiles"] = padded(width, LANES) // LANES
            if kind == op.NORM:
                numbers |= self.program.norm_numbers(operation.modules[0])
            if kind == op.EMBED:
                numbers["embedding"] = self.program.table_address(operation.modules[0], numbers.pop("is_position", 0))
            target = NO_VIEW
            for value in operation.makes:
                is_ending = bool(ending) and ending[0] is operation.reads[0]
                is_whole = kind in op.ON_TILES and sources[0].is_input and sources[0].at != self.multiplied
                if is_ending and (is_whole or kind in (op.NORM, op.ROTATE, op.SCALE)):
                    target = sources[0]  # in place
                    ending = ending[1:]
                else:
                    numbers.setdefault("width", value.width)
                    target = self.take(value.width, INPUTS)
                self.views[value] = target
            self.emit(kind, *sources, target=target, **numbers)
        for value in ending:
            self.leave(self.views[value])

    def multiply(self, operation: Operation, source: View) -> None:
        """Add a product of one matrix, and before it the preparation of its activations."""
        matmul, makes = self.weights[operation].matmul, operation.makes
        outputs, record = matmul.matrix.outputs, matmul.record
        if not source.is_input:
            copy = self.take(source.width, INPUTS)
            self.emit(op.COPY, source, target=copy, tiles=padded(source.width, LANES) // LANES, width=source.width)
            self.leave(copy)
            source = copy
        if record["plane_bytes"] or record["minima"]:
            self.emit(op.PREPARE, source, matrix=matmul.address)
        turns = 2 if operation in self.in_turns else 1
        whole = self.take(outputs, LANES, len(makes))
        firsts = (
            [LANES * index for index in range(2)]
            if turns == 2
            else accumulate((value.width for value in makes), initial=0)
        )
        self.views |= {
            value: whole._replace(first=first, step=LANES * turns) for value, first in zip(makes, firsts, strict=False)
        }
        tiles = padded(outputs, LANES) // LANES // turns
        self.multiplied = source.at
        self.emit(op.MATMUL, source, target=whole, matrix=matmul.address, tiles=tiles, turns=turns)
        self.domain = makes[0].width if turns == 2 or len(makes) == 1 else ALONE

    def emit(
        self, kind: int, source: View = NO_VIEW, other: View = NO_VIEW, target: View = NO_VIEW, **numbers: Any
    ) -> None:
        """Add a record to the present phase, or to a new one."""
        is_epilogue = kind in op.ON_TILES and self.domain == numbers["width"]
        if kind in (op.MATMUL, op.ATTEND, op.CHOOSE) or not (is_epilogue or self.domain == ROWS):
            self.starts.append(len(self.records))
            self.domain = ALONE if kind in (op.MATMUL, op.ATTEND) else ROWS
            for view in self.unused:
                self.free[view.width, view.pitch].append(view.at)
            self.unused.clear()
        self.is_chosen |= kind == op.CHOOSE
        views = {"source": source[:4], "other": other[:4], "target": target[:4]}
        self.records.append({**views, "kind": kind, "is_chosen": self.is_chosen, **numbers})

    def take(self, width: int, unit: int, users: int = 1) -> View:
        """An array for vectors of `width` numbers, in rows of a multiple of `unit`."""
        pitch = padded(width, unit)
        if not (free := self.free[width, pitch]):
            free.append(self.per_row)
            self.per_row += pitch
        view = View(free.pop(), 0, pitch, LANES, width)
        self.users[view.at] = users
        return view

    def leave(self, view: View) -> None:
        """Free the array of a value after this phase, if it was the last one there."""
        self.users[view.at] -= 1
        if self.users[view.at] == 0:
            self.unused.append(view)
