"""Weights in the layout that the processor's matrix kernels want, made once a generation instead of in every step.

With few rows a product takes as long as its weights take to be read, and torch's own path rearranges or strides through
them in each call. oneDNN keeps them packed: the decoding of GPT-2's shape, one row, was 1.2 to 1.5 times as fast on two
Zen 4 cores. The packed weights stand beside the others until the generation ends, and take as much memory again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.device import memory_of
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.linear import Linear

MAX_ROWS = 64  # of more rows the products themselves take the time
MIN_TOKENS = 32  # packing takes about as long as ten steps
PRECISIONS = {torch.float32: lambda: True, torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported}


class PackedProduct:
    """x W' + b with packed weights. torch's compiler uses the same two operators; there are no public ones."""

    def __init__(self, weight: Tensor):
        self.version = weight._version
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        is_small = x.numel() <= MAX_ROWS * x.shape[-1] and x.dtype == weight.dtype
        if torch.is_grad_enabled() or not is_small or weight._version != self.version:
            return F.linear(x, weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")


@contextmanager
def packed_weights(decoder: Decoder, max_tokens: int | None) -> Generator[None]:
    """All linear layers with packed weights while the block runs, where that pays and there is room."""
    layers = [layer for layer in decoder.modules() if isinstance(layer, Linear | TiedHead)]
    layers = layers if pays(decoder, max_tokens) else []
    layers = [layer for layer in layers if "product" not in vars(layer)]  # packed by a generation beside this one
    try:
        for layer in layers:
            layer.product = PackedProduct(layer.weight)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("product", None)


def pays(decoder: Decoder, max_tokens: int | None) -> bool:
    """Are there enough steps to come, a kernel for the precision, and memory for the weights once more?"""
    weight = decoder.embed.token.weight
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available() or weight.is_inference():
        return False
    if max_tokens is not None and max_tokens < MIN_TOKENS:
        return False
    needed = sum(parameter.nbytes for parameter in decoder.parameters())
    return PRECISIONS.get(weight.dtype, lambda: False)() and needed < memory_of(weight.device) / 4
