"""A decoder prepared for generation without numba, and until its kernels are compiled: its weights packed for oneDNN.

With few rows, a matrix product takes as long as reading its weights, and torch's own path rearranges or strides through
them in each call. oneDNN keeps them packed: decoding one row of GPT-2's shape was 1.2 to 1.5 times as fast on two Zen 4
cores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from foretell.model.cpu_matmul import CPULinear, CPUTiedHead, linear, onednn_linear
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.dispatch import plain_form
from foretell.model.kernels.fast_decoder import MAX_ROWS
from foretell.model.surgery import copy_with, recast

PRECISIONS = {torch.float32: lambda: True, torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported}  # oneDNN's


class PackedWeight:
    """A weight (O, I) packed for oneDNN, with two internal operators of torch's compiler; there are no public ones."""

    def __init__(self, weight: Tensor):
        self.version = weight._version
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)

    def matmul(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b. Falls back to torch's product for many rows, for gradients, and after the weight has changed."""
        is_small = x.numel() <= MAX_ROWS * x.shape[-1] and x.dtype == weight.dtype and x.device == weight.device
        if torch.is_grad_enabled() or not is_small or weight._version != self.version:
            return linear(x, weight, bias)
        return onednn_linear(x, self.packed, bias)


class PackedForward(nn.Module):
    """Mix-in for a plain layer: its forward with a packed copy of the weight."""

    packed: PackedWeight
    weight: Any
    bias: Any

    def forward(self, input: Tensor) -> Tensor:
        return self.packed.matmul(input, self.weight, self.bias)


class PackedLinear(PackedForward, CPULinear):
    """`nn.Linear` with a packed copy of its weight."""


class PackedTiedHead(PackedForward, CPUTiedHead):
    """`TiedHead` with a packed copy of the weight it shares."""


PACKED: dict[type[nn.Module], type[PackedForward]] = {nn.Linear: PackedLinear, TiedHead: PackedTiedHead}


def prepared_decoder(decoder: Decoder) -> Decoder:
    """A copy of the decoder with packed linear layers, or the decoder itself if oneDNN does not support its weights."""
    weight = next(decoder.parameters())
    is_supported = torch.backends.mkldnn.is_available() and PRECISIONS.get(weight.dtype, lambda: False)()
    layers = {path: layer for path, layer in decoder.named_modules() if plain_form(type(layer)) in PACKED}
    if not layers or not is_supported or weight.is_inference():
        return decoder
    return copy_with(decoder, {path: pack(layer) for path, layer in layers.items()})


def pack(layer: nn.Module) -> nn.Module:
    """A layer that shares this layer's weights and has a packed copy of them."""
    packed = recast(layer, PACKED[plain_form(type(layer))])
    packed.packed = PackedWeight(packed.weight)
    return packed
