"""Attention and activations that give a vector the same bits alone and with others, on any threads and processor.

torch's fused attention splits keys by the number of threads. MKL's products, and the exponentials of torch, depend on
the instructions of the processor: float32 attention and activations differed between AVX2 and AVX-512 on an Intel
processor, and agreed on one of AMD, for which MKL has one path.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.model.attention import SDPAttention
from foretell.model.kernels import vectors as v
from foretell.model.kernels.block_attention import CachedRow, attend
from foretell.model.kernels.compiling import compiled_callback
from foretell.model.kernels.threads import CALL, claim, run_on_threads
from foretell.model.kernels.vector_math import ACTIVATIONS, activate
from foretell.model.mask import Mask
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.norms import in_float32

ADDRESSES = ("query", "out", "keys", "values", "table", "counts")
SMALL = 2**18  # products of queries and keys: less time than the start of another thread on a busy machine
SIZES = ("T", "H", "G", "E", "head_stride", "is_narrow")
ATTENTION = np.dtype([*CALL, *((name, "i8") for name in ADDRESSES + SIZES)])
attention_call_at = v.record_at(ATTENTION)


class StrictAttention(SDPAttention):
    """`SDPAttention`, one query after another over the keys that it may see."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        (B, _, T, _), S = query.shape, key.shape[2]
        allowed = mask.allowed.expand(B, 1, T, S)[:, 0]  # (B, T, S)
        counts = allowed.sum(-1)  # (B, T)
        if torch.equal(allowed, torch.arange(S) < counts[..., None]):
            return torch.stack([mix(query[b], key[b], value[b], counts[b]) for b in range(B)])
        mixed = [  # of copies of the keys that each query sees
            mix(query[b, :, t, None], key[b, :, allowed[b, t]], value[b, :, allowed[b, t]], counts[b, t, None])
            for b in range(B)
            for t in range(T)
        ]
        return torch.stack(mixed).unflatten(0, (B, T)).squeeze(3).transpose(1, 2)  # (B, H, T, E)


def mix(query: Tensor, key: Tensor, value: Tensor, counts: Tensor) -> Tensor:
    """Attention of queries (H, T, E) over the first counts (T,) of keys and values (G, S, E): (H, T, E)."""
    (H, T, E), (G, S, _) = query.shape, key.shape
    assert 0 < int(counts.min()) <= int(counts.max()) <= S
    blocks = -(-S // POSITIONS_PER_BLOCK)  # whole ones are read
    padding = (0, 0, 0, blocks * POSITIONS_PER_BLOCK - S)
    keys, values = (F.pad(heads, padding).contiguous() for heads in (key, value))
    queries, table = in_float32(query).transpose(0, 1).contiguous(), torch.arange(blocks, dtype=torch.int32)
    out, counts = torch.empty_like(queries), counts.contiguous()  # (T, H, E)
    addresses = (tensor.data_ptr() for tensor in (queries, out, keys, values, table, counts))
    call = (0, 0, 0, *addresses, T, H, G, E, keys[0].numel(), query.dtype == torch.bfloat16)
    run_on_threads(attention_program(), np.array(call, ATTENTION), 1, 0, False, H * T * S * E < SMALL)
    return out.transpose(0, 1).to(query.dtype)


class StrictSiLU(nn.SiLU):
    """`nn.SiLU` with the same bits for an element at any place of a tensor."""

    def forward(self, input: Tensor) -> Tensor:
        return activated(input, "silu")


class StrictGELU(nn.GELU):
    """`nn.GELU`, in the same way."""

    def forward(self, input: Tensor) -> Tensor:
        return activated(input, "gelu_tanh" if self.approximate == "tanh" else "gelu_erf")


def activated(x: Tensor, name: str) -> Tensor:
    """An activation of every element."""
    numbers = F.pad(in_float32(x).flatten(), (0, -x.numel() % v.LANES))
    out = torch.empty_like(numbers)
    activation_program().ctypes(numbers.data_ptr(), out.data_ptr(), len(numbers), ACTIVATIONS[name])
    return out[: x.numel()].view_as(x).to(x.dtype)


# --- compiled code ---------------------------------------------------------------------------------------------------


def compile_programs() -> None:
    """Compile the programs of this file, or load them."""
    attention_program()
    activation_program()


@cache
def attention_program() -> Any:
    """The compiled program of attention."""
    return compiled_callback(attend_all, 1)


@cache
def activation_program() -> Any:
    """The compiled program of activations."""
    return compiled_callback(activate_all, 4)


def attend_all(address):
    """Attention of all heads of all queries, which threads claim."""
    call = attention_call_at(address)
    H, E, per_group, is_narrow = call.H, call.E, call.H // call.G, call.is_narrow != 0
    row = CachedRow(call.keys, call.values, call.head_stride, POSITIONS_PER_BLOCK * E, call.table)
    counters = call.counters
    task = claim(counters, 0)
    while task < call.T * H:
        position, group = v.read_int64(call.counts, task // H) - 1, task % H // per_group
        attend(row, position, group, 0, call.query, task * E, E, call.out, task * E, is_narrow)
        task = claim(counters, 0)


def activate_all(x, out, count, activation):
    """An activation, by its number, of `count` numbers."""
    for i in range(0, count, 16):
        v.store_float(out, i, activate(v.load_float(x, i), activation))
