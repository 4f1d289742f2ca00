"""Linear layers and heads for few rows on a CPU, with weights packed for the kernels of this package.

Each form falls back to the plain one for gradients, for many rows and for weights that have changed since packing.
Strict forms never do, because the plain form has other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.model.cpu_matmul import CPULinear, CPUTiedHead, is_bfloat16_slow
from foretell.model.decoder import TiedHead
from foretell.model.dispatch import plain_form
from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.kernels.gradients import with_gradient_of
from foretell.model.kernels.matmul import Matmul, make_matmul
from foretell.model.kernels.packing import LANES, PackedMatrix, pack_floats, pack_int4, pack_int8
from foretell.model.kernels.vectors import HAS_FLOAT16
from foretell.model.quantization import unpack_int4
from foretell.model.quantized_linear import (
    Int4Linear,
    Int8Linear,
    Int8Matrix,
    QuantizedMatrix,
    QuantizedTiedHead,
    stored_matrix,
)
from foretell.model.surgery import recast

DTYPES = (torch.float32, torch.bfloat16)


class Sources:
    """The tensors that something was packed from; their versions show changes in place."""

    version = attrgetter("_version")

    def __init__(self, tensors: Iterable[Tensor]):
        self.tensors = list(tensors)
        self.versions = list(map(self.version, self.tensors))

    def are_current(self) -> bool:
        """True if no tensor has changed since it was packed."""
        return list(map(self.version, self.tensors)) == self.versions


class FastWeight:
    """The packed weights of one layer, or of several with the same input, and the tensors they were packed from."""

    is_strict = False  # the kernel computes every output

    def __init__(self, matmul: Matmul, sources: list[Tensor], dtype: torch.dtype, max_rows: int | None):
        self.matmul, self.sources, self.dtype, self.max_rows = matmul, Sources(sources), dtype, max_rows

    def suits(self, x: Tensor) -> bool:
        """True if the kernel computes the output for this input. Raises UsageError if a strict one cannot."""
        is_current = x.dtype == self.dtype and x.device.type == "cpu" and self.sources.are_current()
        if self.is_strict and not is_current:
            raise UsageError("the weights have changed since model.strict() was called; call it again")
        is_few = self.max_rows is None or x.numel() <= self.max_rows * x.shape[-1]
        is_faster = is_few and is_current and not torch.is_grad_enabled()
        return x.shape[-1] == self.matmul.matrix.inputs and (self.is_strict or is_faster)


class FastForward(nn.Module):
    """Mix-in for a plain linear layer or head: its forward with packed weights."""

    fast: FastWeight

    def forward(self, input: Tensor) -> Tensor:
        if not self.fast.suits(input):
            return super().forward(input)
        return with_gradient_of(super().forward, self.fast.matmul, input)


class FastLinear(FastForward, CPULinear):
    """`nn.Linear` with weights packed for few rows."""


class FastTiedHead(FastForward, CPUTiedHead):
    """`TiedHead` with a packed copy of the weight it shares."""


class FastInt8Linear(FastForward, Int8Linear):
    """`Int8Linear` that multiplies integers directly, without dequantisation."""


class FastInt4Linear(FastForward, Int4Linear):
    """`Int4Linear` that multiplies integers directly, without dequantisation."""


class FastQuantizedTiedHead(FastForward, QuantizedTiedHead):
    """`QuantizedTiedHead` that multiplies integers directly, without dequantisation."""


FAST: dict[type[nn.Module], type[Any]] = {
    nn.Linear: FastLinear,
    TiedHead: FastTiedHead,
    Int8Linear: FastInt8Linear,
    Int4Linear: FastInt4Linear,
    QuantizedTiedHead: FastQuantizedTiedHead,
}


def fast_form(layer: nn.Module, is_strict: bool = False) -> nn.Module:
    """A layer with packed copies of this layer's weights, or the layer itself if no kernel suits.

    A call with many rows uses the plain form, unless the kernel `is_always_fastest` or strict.
    """
    if not can_pack(layer):
        return layer
    fast = recast(layer, FAST[plain_form(type(layer))])
    fast.fast = pack_layers([layer])
    fast.fast.is_strict = is_strict
    return fast


def can_pack(layer: nn.Module) -> bool:
    """True if the layer has a faster form, and a kernel for the dtype and group size of its weights."""
    if plain_form(type(layer)) not in FAST:
        return False
    store = stored_matrix(layer)
    if isinstance(store, QuantizedMatrix):
        step = 4 if isinstance(store, Int8Matrix) else 8  # inputs that a kernel reads at once
        is_in_memory = store.integers.device.type == "cpu" and not store.integers.is_inference()
        return store.group % step == 0 and store.dtype in DTYPES and is_in_memory
    return is_readable(store.weight)


def is_readable(tensor: Tensor) -> bool:
    """True if compiled code can read a tensor, and changes to it can be detected."""
    return tensor.dtype in DTYPES and tensor.device.type == "cpu" and not tensor.is_inference()


def pack_layers(layers: list[Any], max_rows: int | None = MAX_ROWS, in_turns: bool = False) -> FastWeight:
    """The weights of layers with the same input, packed as one matrix with all their outputs.

    The layers have the same class, dtype and group size. in_turns: interleave the layers, 16 outputs at a time.
    """
    join = joined_in_turns if in_turns else joined
    stores = [stored_matrix(layer) for layer in layers]
    bias = joined_bias(stores, [layer.bias for layer in layers], join)
    if not isinstance(stores[0], QuantizedMatrix):
        matrix, dtype = pack_floats(join([store.weight for store in stores]), bias), stores[0].weight.dtype
    else:
        matrix, dtype = pack_integers(stores, bias, join), stores[0].dtype
    matmul, sources = make_matmul(matrix), [source for layer in layers for source in sources_of(layer)]
    return FastWeight(matmul, sources, dtype, None if is_always_fastest(matmul, dtype) else max_rows)


def pack_integers(stores: list[Any], bias: Tensor | None, join: Callable[[list[Tensor]], Tensor]) -> PackedMatrix:
    """The integers of matrices of one form, with scales and minima in the smallest type that holds their values."""
    _, dtype, _ = form_of(stores[0])
    factors = [store.scales_and_minima() for store in stores]
    scales = join([scale for scale, _ in factors]).to(dtype)
    minima = None if factors[0][1] is None else join([minimum for _, minimum in factors]).to(dtype)
    if isinstance(stores[0], Int8Matrix):
        return pack_int8(join([store.integers for store in stores]), scales, minima, bias)
    integers = unpack_int4(join([store.integers for store in stores]))
    return pack_int4(integers, scales, -8 * scales if minima is None else minima, bias)


def form_of(store: QuantizedMatrix) -> tuple[Any, ...]:
    """The properties that kernels depend on: the group, the type of scales and minima, and whether there are minima."""
    has_minima = store.minima is not None or not isinstance(store, Int8Matrix)
    is_short = store.scales.dtype == torch.bfloat16 or (store.scales.dtype == torch.float16 and HAS_FLOAT16)
    return store.group, store.scales.dtype if is_short else torch.float32, has_minima


def is_always_fastest(matmul: Matmul, dtype: torch.dtype) -> bool:
    """True if a kernel multiplies any number of rows faster than torch.

    This holds for integer weights with bfloat16 activations on processors without bfloat16 instructions: 1.3 to 1.6
    times the rate of float32 products of dequantised weights with VNNI, and 1.1 to 1.2 times with AVX2.
    """
    return matmul.unit == "dots" and dtype == torch.bfloat16 and is_bfloat16_slow()


def sources_of(layer: Any) -> list[Tensor]:
    """The tensors that the weights of a layer were packed from."""
    store = stored_matrix(layer)
    weights = store.named_buffers() if isinstance(store, QuantizedMatrix) else [("weight", store.weight)]
    return [*(tensor for name, tensor in weights if name != "bias"), *([] if layer.bias is None else [layer.bias])]


def layers_on_parts(joined: FastWeight, layers: list[Any], in_turns: bool) -> list[nn.Module] | None:
    """Layers packed together, each with its part of the packed weights; None if one does not fill its last tile."""
    if any(layer.out_features % LANES for layer in layers):
        return None
    firsts = accumulate((layer.out_features // LANES for layer in layers), initial=0)
    forms: list[nn.Module] = []
    for index, (layer, first) in enumerate(zip(layers, firsts, strict=False)):
        columns = (index, layer.out_features, len(layers)) if in_turns else (first, layer.out_features)
        form = recast(layer, FAST[plain_form(type(layer))])
        matmul = make_matmul(joined.matmul.matrix.part(*columns))
        form.fast = FastWeight(matmul, sources_of(layer), joined.dtype, joined.max_rows)
        forms.append(form)
    return forms


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors (O, ...); a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def joined_in_turns(parts: list[Tensor]) -> Tensor:
    """Interleave tensors (O, ...) of one shape, 16 rows at a time, padded with zeros."""
    if missing := -len(parts[0]) % LANES:
        parts = [torch.cat((part, part.new_zeros(missing, *part.shape[1:]))) for part in parts]
    if len(parts) == 1:
        return parts[0]
    return torch.stack([part.unflatten(0, (-1, LANES)) for part in parts], dim=1).flatten(0, 2)


def joined_bias(
    stores: list[Any], biases: list[Tensor | None], join: Callable[[list[Tensor]], Tensor]
) -> Tensor | None:
    """The concatenated biases of layers, with zeros for a layer without bias."""
    if all(bias is None for bias in biases):
        return None
    rows = [len(store.scales if isinstance(store, QuantizedMatrix) else store.weight) for store in stores]
    pairs = zip(rows, biases, strict=True)
    return join([torch.zeros(count) if bias is None else bias.detach().float() for count, bias in pairs])
