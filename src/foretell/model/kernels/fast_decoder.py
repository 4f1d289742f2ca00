"""A decoder prepared for generation, with the forms of its layers and blocks that are fastest on this machine.

Packed weights take as much memory again, as long as the decoder lives.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.model.decoder import Decoder
from foretell.model.surgery import is_compiled
from foretell.system.device import memory_of

MAX_ROWS = 64  # with more, arithmetic takes longer than reading, and torch is as fast or faster
MIN_TOKENS = 32  # packing takes about as long as ten steps
SMALL = 2**26  # bytes of weights; with more, a pass of plain int8 or int4 takes longer than packing
KEPT = "foretell.model.kernels.kept_form"
KERNELS = "foretell.model.kernels.fast_linear"
PASS = "foretell.model.kernels.fused_pass"
SOFTMAX = "foretell.model.kernels.softmax_sums"
WARMING = "foretell.model.kernels.warming"
LOWERING = "foretell.model.kernels.lowering"
WITHOUT_NUMBA = "foretell.model.kernels.onednn_linear"
NOTE = "numba is missing: decoding runs on torch's kernels; pip install numba for faster ones"

logger = logging.getLogger(__name__)


def prepare_for_generation(decoder: Decoder, max_tokens: int | None = None, wait: bool = False) -> Decoder:
    """A copy of the decoder with faster kernels, or the decoder itself if that is not worthwhile.

    The copy shares weights and hooks. It is kept until the decoder changes, so the next call returns it. The decoder
    does not change, so concurrent calls of it give the same bits. wait: compile missing kernels first; otherwise a
    background process compiles them, and this copy is packed for oneDNN.
    """
    is_torch_compiled = any(map(is_compiled, decoder.modules()))  # a copy would not use torch's code
    if is_in_shards(decoder) or is_torch_compiled or not is_worthwhile(decoder, max_tokens):
        return decoder
    if not has_numba():
        tell_once(NOTE)
    has_kernels = has_numba() and importlib.import_module(WARMING).are_ready(decoder, wait)
    make: Any = importlib.import_module(PASS if has_kernels else WITHOUT_NUMBA)
    return importlib.import_module(KEPT).kept_form(decoder, make.prepared_decoder)


def is_in_shards(decoder: Decoder) -> bool:
    """True if this process has only a part of the weights: they are not plain tensors, and each pass gathers them."""
    return any(type(weight) not in (nn.Parameter, Tensor) for weight in decoder.parameters())


def is_worthwhile(decoder: Decoder, max_tokens: int | None) -> bool:
    """True on a CPU if enough numbers will be read to generate, and there is memory for a copy of the weights."""
    if decoder.device.type != "cpu":
        return False
    is_short = max_tokens is not None and max_tokens < MIN_TOKENS and is_small(decoder)
    return not is_short and weight_bytes(decoder) < memory_of(decoder.device) / 4


def is_small(decoder: Decoder) -> bool:
    """True if the plain modules read a few tokens in less time than numba takes to be imported."""
    return weight_bytes(decoder) < SMALL


def weight_bytes(decoder: Decoder) -> int:
    return sum(tensor.nbytes for tensor in (*decoder.parameters(), *decoder.buffers()))


@cache
def has_numba() -> bool:
    """True if numba is installed and can be imported."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return False
    return True


def needed_kernels(decoder: Decoder) -> dict[str, bool]:
    """The compiled kernels that a decoder generates with on this machine, by name: True for those that are compiled.

    Raises UsageError without numba.
    """
    if not has_numba():
        raise UsageError("kernels need numba: pip install numba")
    warming: Any = importlib.import_module(WARMING)
    names = warming.needed_kernels(decoder) if is_worthwhile(decoder, None) else []
    return {name: warming.compiling.is_compiled(name) for name in names}


def find_obstacle(decoder: Decoder) -> dict[str, str] | None:
    """The first module that ends a compiled pass from ids to logits, with the reason; None if there is none."""
    if not has_numba():
        return {"path": "", "reason": "numba is missing"}
    obstacle = importlib.import_module(LOWERING).find_obstacle(decoder)
    return obstacle and {"path": obstacle.path, "reason": obstacle.reason}


def compile_kernels(names: Iterable[str]) -> Iterator[str]:
    """Compile kernels, or load them; yields each name afterwards."""
    return importlib.import_module(WARMING).compile_kernels(names)


def is_compiling() -> bool:
    """True while a background process started by this process compiles kernels."""
    return WARMING in sys.modules and sys.modules[WARMING].is_compiling()


def compiled_softmax_sums() -> Callable[..., Any] | None:
    """The kernel `softmax_sums` for float32 on a CPU; None without numba, and until it is compiled."""
    if not has_numba():
        return None
    warming = importlib.import_module(WARMING)
    is_ready = warming.are_compiled((warming.SOFTMAX,))
    return importlib.import_module(SOFTMAX).softmax_sums if is_ready else None


@cache
def tell_once(note: str) -> None:
    """Log a note, once per process."""
    logger.warning(note)
