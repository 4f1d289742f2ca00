"""Linear layers and heads for few rows on a CPU, with weights packed for the kernels of this package.

Each form falls back to the plain one for gradients, for many rows and for weights that have changed since they were
packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foretell.model.decoder import TiedHead
from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.kernels.matmul import Matmul, make_matmul
from foretell.model.kernels.packing import LANES, pack_floats, pack_int4, pack_int8
from foretell.model.quantization import unpack_int4
from foretell.model.quantized_linear import (
    Int4Linear,
    Int8Linear,
    Int8Matrix,
    QuantizedMatrix,
    QuantizedTiedHead,
)
from foretell.model.surgery import recast

DTYPES = (torch.float32, torch.bfloat16)


class FastWeight:
    """The packed weights of one layer, or of several with the same input, with their sources."""

    def __init__(self, matmul: Matmul, sources: list[Tensor], dtype: torch.dtype, max_rows: int | None):
        self.matmul, self.sources, self.dtype, self.max_rows = matmul, sources, dtype, max_rows
        self.versions = [source._version for source in sources]

    def suits(self, x: Tensor) -> bool:
        """True if the kernel computes the output for this input."""
        is_few = self.max_rows is None or x.numel() <= self.max_rows * self.matmul.matrix.inputs
        is_same = x.dtype == self.dtype and x.device.type == "cpu" and x.shape[-1] == self.matmul.matrix.inputs
        return is_few and is_same and not torch.is_grad_enabled() and self.is_current()

    def is_current(self) -> bool:
        """True if no weight has changed since it was packed."""
        return [source._version for source in self.sources] == self.versions


class FastForward(nn.Module):
    """The forward of a linear layer or head with packed weights; its other base class is the plain layer."""

    fast: FastWeight

    def forward(self, input: Tensor) -> Tensor:
        return self.fast.matmul(input) if self.fast.suits(input) else super().forward(input)


class FastLinear(FastForward, nn.Linear):
    """`nn.Linear` with weights packed for few rows."""


class FastTiedHead(FastForward, TiedHead):
    """`TiedHead` with a packed copy of the weight it shares."""


class FastInt8Linear(FastForward, Int8Linear):
    """`Int8Linear` whose integers are multiplied without a dequantised copy."""


class FastInt4Linear(FastForward, Int4Linear):
    """`Int4Linear` whose integers are multiplied without a dequantised copy."""


class FastQuantizedTiedHead(FastForward, QuantizedTiedHead):
    """`QuantizedTiedHead` whose integers are multiplied without a dequantised copy."""


FAST: dict[type[nn.Module], type[Any]] = {
    nn.Linear: FastLinear,
    TiedHead: FastTiedHead,
    Int8Linear: FastInt8Linear,
    Int4Linear: FastInt4Linear,
    QuantizedTiedHead: FastQuantizedTiedHead,
}


def fast_form(layer: nn.Module, max_rows: int | None = MAX_ROWS) -> nn.Module:
    """A layer that shares the weights of this one and has them packed; itself where no kernel suits.

    A call with more than `max_rows` rows is left to the plain form.
    """
    if type(layer) not in FAST or not can_pack(layer):
        return layer
    fast = recast(layer, FAST[type(layer)])
    fast.fast = pack_layers([layer], max_rows)
    return fast


def can_pack(layer: nn.Module) -> bool:
    """True if a kernel reads weights of this dtype and in groups of this size."""
    store = stored_matrix(layer)
    if isinstance(store, QuantizedMatrix):
        step = 4 if isinstance(store, Int8Matrix) else 8  # inputs that a kernel reads at once
        return store.group % step == 0 and is_readable(store.scales)
    return is_readable(store.weight)


def is_readable(tensor: Tensor) -> bool:
    """True if compiled code can read a tensor, and changes of it can be seen."""
    return tensor.dtype in DTYPES and tensor.device.type == "cpu" and not tensor.is_inference()


def pack_layers(layers: list[Any], max_rows: int | None = MAX_ROWS, in_turns: bool = False) -> FastWeight:
    """The weights of layers that read the same input, packed as one matrix with the outputs of all of them.

    The layers are of one class and dtype, and have groups of one size. in_turns: 16 outputs of each layer in turns.
    """
    join = joined_in_turns if in_turns else torch.cat
    stores = [stored_matrix(layer) for layer in layers]
    biases = [layer.bias for layer in layers]
    bias = joined_bias(stores, biases, join)
    if not isinstance(stores[0], QuantizedMatrix):
        sources = [store.weight for store in stores]
        matrix, dtype = pack_floats(join(sources), bias), sources[0].dtype
    else:
        names = [name for name, _ in stores[0].named_buffers() if name != "bias"]
        parts = {name: join([getattr(store, name) for store in stores]) for name in names}
        sources, dtype = [getattr(store, name) for store in stores for name in names], stores[0].scales.dtype
        if isinstance(stores[0], Int8Matrix):
            matrix = pack_int8(parts["integers"], parts["scales"], bias)
        else:
            matrix = pack_int4(unpack_int4(parts["integers"]), parts["scales"], parts["minima"], bias)
    sources = [*sources, *(bias for bias in biases if bias is not None)]
    return FastWeight(make_matmul(matrix), sources, dtype, max_rows)


def stored_matrix(layer: Any) -> Any:
    """The module that holds the weights of a layer: for a quantised tied head the embedding."""
    return layer.token[0] if isinstance(layer, QuantizedTiedHead) else layer


def joined_in_turns(parts: list[Tensor]) -> Tensor:
    """Rows of tensors (O, ...) of one shape in turns of 16, filled up with zeros."""
    filled = [torch.cat((part, part.new_zeros(-len(part) % LANES, *part.shape[1:]))) for part in parts]
    return torch.stack([part.unflatten(0, (-1, LANES)) for part in filled], dim=1).flatten(0, 2)


def joined_bias(
    stores: list[Any], biases: list[Tensor | None], join: Callable[[list[Tensor]], Tensor]
) -> Tensor | None:
    """The biases of layers one after the other, zeros where one has none."""
    if all(bias is None for bias in biases):
        return None
    rows = [len(store.scales if isinstance(store, QuantizedMatrix) else store.weight) for store in stores]
    pairs = zip(rows, biases, strict=True)
    return join([torch.zeros(count) if bias is None else bias.detach().float() for count, bias in pairs])
