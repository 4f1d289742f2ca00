"""A decoder prepared to generate: its layers and blocks in the forms that are fastest on this machine.

The kernels in numba need the extra `fast`; without it, torch's packed weights are used.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from typing import Any

from torch import Tensor, nn

from foretell.device import memory_of
from foretell.model.decoder import Decoder
from foretell.model.kernels.packed_linear import MIN_TOKENS, with_packed_weights
from foretell.model.surgery import copy_with
from foretell.model.transformer import Transformer

KERNELS = "foretell.model.kernels.fast_linear"
BLOCKS = "foretell.model.kernels.fused_block"
NOTE = "numba is missing: decoding runs on torch's kernels; pip install 'foretell[fast]' for faster ones"

logger = logging.getLogger(__name__)


def with_fast_kernels(
    decoder: Decoder, max_tokens: int | None = None, max_rows: int | None = 64, fuse: bool = True
) -> Decoder:
    """A copy of the decoder with the kernels of this package, if that pays; else the decoder itself.

    The copy shares weights and hooks, and the decoder is not changed. With `max_rows` None the kernels compute calls of
    any size, so a token's logits have the same bits however many rows are read with it. fuse: compute blocks that
    nobody watches at once.
    """
    if is_in_shards(decoder):
        return decoder  # each pass gathers the weights
    if not pays(decoder, max_tokens):
        return with_packed_weights(decoder, max_tokens)
    if not has_numba():
        tell_once(NOTE)
        return with_packed_weights(decoder, max_tokens)
    fast = copy_with(decoder, fast_forms(decoder, max_rows, fuse))
    if type(fast.trunk) is Transformer:  # which calls its blocks one after the other
        importlib.import_module(BLOCKS).link_blocks(fast.trunk.blocks)
    return fast


def fast_forms(decoder: Decoder, max_rows: int | None, fuse: bool = True) -> dict[str, nn.Module]:
    """The layers that have a faster form on this machine, by path."""
    kernels: Any = importlib.import_module(KERNELS)
    blocks: Any = importlib.import_module(BLOCKS)
    modules = {path: module for path, module in decoder.named_modules() if path}
    forms: dict[str, nn.Module] = {}
    for path, module in modules.items():
        if not any(path.startswith(f"{above}.") for above in forms):  # a block comes before its layers
            block = blocks.fused_form(module, max_rows) if fuse else module
            form = kernels.fast_form(block, max_rows)
            forms |= {path: form} if form is not module else {}
    return forms


def is_in_shards(decoder: Decoder) -> bool:
    """True where this process has only a part of the weights: they are not plain tensors then."""
    return any(type(weight) not in (nn.Parameter, Tensor) for weight in decoder.parameters())


@cache
def has_numba() -> bool:
    """True if the extra `fast` is installed and can be imported."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


@cache
def tell_once(note: str) -> None:
    """Log a note, once per process."""
    logger.warning(note)


def pays(decoder: Decoder, max_tokens: int | None) -> bool:
    """True on a CPU if there are enough steps to come, and memory for a copy of the weights."""
    if decoder.device.type != "cpu" or (max_tokens is not None and max_tokens < MIN_TOKENS):
        return False
    if any(module._compiled_call_impl is not None for module in decoder.modules()):
        return False
    needed = sum(tensor.nbytes for tensor in (*decoder.parameters(), *decoder.buffers()))
    return needed < memory_of(decoder.device) / 4
