"""Linear layers with weights in the layout that the processor's matrix kernels want, packed once per generation.

With few rows a matrix product takes as long as its weights take to be read, and torch's own path rearranges or strides
through them in each call. oneDNN keeps them packed: decoding one row of GPT-2's shape was 1.2 to 1.5 times as fast on
two Zen 4 cores. The packed weights exist next to the others until the generation ends, and take as much memory again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.device import memory_of
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.surgery import copy_with, recast

MAX_ROWS = 64  # with more rows the arithmetic takes the time, not the reading
MIN_TOKENS = 32  # packing takes about as long as ten steps
PRECISIONS = {torch.float32: lambda: True, torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported}


class PackedWeight:
    """A weight (O, I) packed for oneDNN. torch's compiler uses the same two operators; there are no public ones."""

    def __init__(self, weight: Tensor):
        self.version = weight._version
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)

    def matmul(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b. Falls back to torch's product for many rows, for gradients, and after the weight has changed."""
        is_small = x.numel() <= MAX_ROWS * x.shape[-1] and x.dtype == weight.dtype and x.device == weight.device
        if torch.is_grad_enabled() or not is_small or weight._version != self.version:
            return F.linear(x, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")


class PackedLinear(nn.Linear):
    """`nn.Linear` with a packed copy of its weight."""

    packed: PackedWeight

    def forward(self, input: Tensor) -> Tensor:
        return self.packed.matmul(input, self.weight, self.bias)


class PackedTiedHead(TiedHead):
    """`TiedHead` with a packed copy of the weight it shares."""

    packed: PackedWeight

    def forward(self, x: Tensor) -> Tensor:
        return self.packed.matmul(x, self.weight, self.bias)  # (..., V)


PACKED: dict[type[nn.Module], type[PackedLinear] | type[PackedTiedHead]] = {
    nn.Linear: PackedLinear,
    TiedHead: PackedTiedHead,
}


def pack(layer: nn.Module) -> nn.Module:
    """A layer that shares the weights of this one and has a packed copy of them."""
    packed = recast(layer, PACKED[type(layer)])
    packed.packed = PackedWeight(packed.weight)
    return packed


def with_packed_weights(decoder: Decoder, max_tokens: int | None) -> Decoder:
    """A copy of the decoder whose linear layers are packed, if that pays; else the decoder itself.

    The copy shares weights and hooks. The decoder is not changed, so that other calls of it at the same time have the
    same bits as alone. Only plain layers are packed, not subclasses; compiled models are left as they are.
    """
    modules = dict(decoder.named_modules())
    layers = {path: layer for path, layer in modules.items() if type(layer) in PACKED}
    is_compiled = any(module._compiled_call_impl is not None for module in modules.values())
    if not layers or is_compiled or not pays(decoder, max_tokens):
        return decoder
    return copy_with(decoder, {path: pack(layer) for path, layer in layers.items()})


def pays(decoder: Decoder, max_tokens: int | None) -> bool:
    """True if there are enough steps to come, a kernel for the precision, and memory for a copy of the weights."""
    weight = next(decoder.parameters())
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or weight.is_inference():
        return False
    if max_tokens is not None and max_tokens < MIN_TOKENS:
        return False
    needed = sum(parameter.nbytes for parameter in decoder.parameters())
    return PRECISIONS.get(weight.dtype, lambda: False)() and needed < memory_of(weight.device) / 4
