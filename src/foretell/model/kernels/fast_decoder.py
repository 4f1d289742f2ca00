"""A decoder prepared for generation, with the forms of its layers and blocks that are fastest on this machine.

Without numba, and until its kernels are compiled, linear layers are packed for oneDNN. With few rows, a matrix
product takes as long as reading its weights, and torch's own path rearranges or strides through them in each
call. oneDNN keeps them packed: decoding one row of GPT-2's shape was 1.2 to 1.5 times as fast on two Zen 4 cores.

Packed weights take as much memory again, until the generation ends.
"""

from __future__ import annotations

import importlib
import logging
import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from foretell.device import memory_of
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.kernels.cpu_matmul import CPULinear, CPUTiedHead, linear, onednn_linear
from foretell.model.kernels.dispatch import plain_form
from foretell.model.surgery import copy_with, is_compiled, recast

MAX_ROWS = 64  # with more, arithmetic takes longer than reading, and torch is as fast or faster
MIN_TOKENS = 32  # packing takes about as long as ten steps
KERNELS = "foretell.model.kernels.fast_linear"
BLOCKS = "foretell.model.kernels.fused_block"
PASS = "foretell.model.kernels.fused_pass"
WARMING = "foretell.model.kernels.warming"
NOTE = "numba is missing: decoding runs on torch's kernels; pip install numba for faster ones"
PRECISIONS = {torch.float32: lambda: True, torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported}  # oneDNN's

logger = logging.getLogger(__name__)


def with_fast_kernels(decoder: Decoder, max_tokens: int | None = None, wait: bool = False) -> Decoder:
    """A copy of the decoder with faster kernels, or the decoder itself if that is not worthwhile.

    The copy shares weights and hooks. The decoder does not change, so concurrent calls of it give the same bits. wait:
    compile missing kernels first; otherwise a background process compiles them, and this copy is packed for oneDNN.
    """
    if is_in_shards(decoder) or is_torch_compiled(decoder):
        return decoder
    if not is_worthwhile(decoder, max_tokens):
        return decoder
    if not has_numba():
        tell_once(NOTE)
        return with_packed_weights(decoder)
    if not importlib.import_module(WARMING).are_ready(decoder, wait):
        return with_packed_weights(decoder)
    return importlib.import_module(PASS).fused_decoder(copy_with(decoder, fast_forms(decoder)))


def is_in_shards(decoder: Decoder) -> bool:
    """True if this process has only a part of the weights: they are not plain tensors, and each pass gathers them."""
    return any(type(weight) not in (nn.Parameter, Tensor) for weight in decoder.parameters())


def is_worthwhile(decoder: Decoder, max_tokens: int | None) -> bool:
    """True on a CPU if enough tokens will be generated, and there is memory for a copy of the weights."""
    if decoder.device.type != "cpu" or (max_tokens is not None and max_tokens < MIN_TOKENS):
        return False
    needed = sum(tensor.nbytes for tensor in (*decoder.parameters(), *decoder.buffers()))
    return needed < memory_of(decoder.device) / 4


def is_torch_compiled(decoder: Decoder) -> bool:
    """True if torch.compile was applied to a module; a copy would not use the compiled code."""
    return any(map(is_compiled, decoder.modules()))


@cache
def has_numba() -> bool:
    """True if numba is installed and can be imported."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


def is_compiling() -> bool:
    """True while a background process started by this process compiles kernels."""
    return WARMING in sys.modules and sys.modules[WARMING].is_compiling()


@cache
def tell_once(note: str) -> None:
    """Log a note, once per process."""
    logger.warning(note)


def fast_forms(decoder: Decoder) -> dict[str, nn.Module]:
    """The blocks and layers that have a faster form in numba on this machine, by path."""
    kernels: Any = importlib.import_module(KERNELS)
    blocks: Any = importlib.import_module(BLOCKS)
    forms: dict[str, nn.Module] = {}
    for path, module in list(decoder.named_modules())[1:]:
        if not any(path.startswith(f"{above}.") for above in forms):  # blocks precede their layers
            form = kernels.fast_form(blocks.fused_form(module))
            forms |= {path: form} if form is not module else {}
    return forms


# --- without numba ---------------------------------------------------------------------------------------------------


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


def with_packed_weights(decoder: Decoder) -> Decoder:
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
