"""Attention and activations with bit-identical results for a vector in any batch, on any threads and processor.

torch's fused attention splits keys by the number of threads. MKL's products and torch's exponentials depend on the
instruction set: float32 attention and activations differed between AVX2 and AVX-512 on an Intel processor, and agreed
on an AMD processor, for which MKL has only one path.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.model.attention import SDPAttention
from foretell.model.kernels import vectors as v
from foretell.model.kernels.block_attention import CachedRow, attend
from foretell.model.kernels.gradients import with_gradient_of
from foretell.model.kernels.threads import CALL, claim, run_on_threads
from foretell.model.kernels.vector_math import ACTIVATIONS, activate
from foretell.model.mask import Mask
from foretell.model.paged_cache import POSITIONS_PER_BLOCK
from foretell.numerics.activations import SameActivation, activation_name
from foretell.numerics.norms import in_float32

SMALL = 2**18  # products of queries and keys; fewer take less time than starting a thread on a busy machine
ATTENTION = np.dtype([*CALL, *v.fields("query out keys values table counts T H G E head_stride is_narrow")])
AT_ONCE = 2**14  # numbers that a thread activates at once
ACTIVATION = np.dtype([*CALL, *v.fields("x out count activation is_narrow")])
attention_call_at, activation_call_at = v.record_at(ATTENTION), v.record_at(ACTIVATION)


class StrictAttention(SDPAttention):
    """`SDPAttention` that processes one query at a time, over the keys that it may see."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        return with_gradient_of(super().forward, self.by_query, query, key, value, mask)

    def by_query(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        (B, _, T, _), S = query.shape, key.shape[2]
        allowed = mask.allowed.expand(B, 1, T, S)[:, 0]  # (B, T, S)
        counts = allowed.sum(-1)  # (B, T)
        if torch.equal(allowed, torch.arange(S) < counts[..., None]):
            return torch.stack([mix(query[b], key[b], value[b], counts[b]) for b in range(B)])
        mixed = [  # from copies of the keys that each query sees
            mix(query[b, :, t, None], key[b, :, allowed[b, t]], value[b, :, allowed[b, t]], counts[b, t, None])
            for b in range(B)
            for t in range(T)
        ]
        return torch.stack(mixed).unflatten(0, (B, T)).squeeze(3).transpose(1, 2)  # (B, H, T, E)


def mix(query: Tensor, key: Tensor, value: Tensor, counts: Tensor) -> Tensor:
    """Attention (H, T, E) of queries (H, T, E) over keys and values (G, S, E); query t sees the first counts[t]."""
    (H, T, E), (G, S, _) = query.shape, key.shape
    assert 0 < int(counts.min()) <= int(counts.max()) <= S
    blocks = -(-S // POSITIONS_PER_BLOCK)  # kernels read whole blocks
    padding = (0, 0, 0, blocks * POSITIONS_PER_BLOCK - S)
    keys, values = (F.pad(heads, padding).contiguous() for heads in (key, value))
    queries, table = in_float32(query).transpose(0, 1).contiguous(), torch.arange(blocks, dtype=torch.int32)
    out, counts = torch.empty_like(queries), counts.contiguous()  # (T, H, E)
    addresses = (tensor.data_ptr() for tensor in (queries, out, keys, values, table, counts))
    call = (0, 0, 0, *addresses, T, H, G, E, keys[0].numel(), query.dtype == torch.bfloat16)
    run_on_threads(attend_all, np.array(call, ATTENTION), 1, 0, False, H * T * S * E < SMALL)
    return out.transpose(0, 1).to(query.dtype)


class CompiledActivation(SameActivation, nn.Module):
    """Mix-in for torch's activations: bit-identical results for an element at any position in a tensor.

    With AVX2, GELU by tanh of 512 rows of 3072 numbers takes a third of torch's time.
    """

    def forward(self, input: Tensor) -> Tensor:
        return with_gradient_of(super().forward, self.activated, input)

    def activated(self, input: Tensor) -> Tensor:
        return activated(input, activation_name(self))


class CompiledSiLU(CompiledActivation, nn.SiLU):
    """`nn.SiLU` in compiled code."""


class CompiledGELU(CompiledActivation, nn.GELU):
    """`nn.GELU` in compiled code."""


def activated(x: Tensor, name: str) -> Tensor:
    """Apply an activation to every element."""
    missing = max(0, v.LANES - x.numel())  # kernels need at least one vector
    numbers = F.pad(x.flatten(), (0, missing)) if missing else x.contiguous()
    out = torch.empty_like(numbers)
    call = (0, 0, 0, numbers.data_ptr(), out.data_ptr(), out.numel(), ACTIVATIONS[name], x.dtype == torch.bfloat16)
    run_on_threads(activate_all, np.array(call, ACTIVATION), 1, 0, False, x.numel() <= AT_ONCE)
    return out[: x.numel()].view_as(x) if missing else out


# --- compiled code ---------------------------------------------------------------------------------------------------


def attend_all(address):
    """Attention of all heads of all queries, as tasks for threads."""
    call = attention_call_at(address)
    H, E, per_group, is_narrow = call.H, call.E, call.H // call.G, call.is_narrow != 0
    row = CachedRow(call.keys, call.values, call.head_stride, POSITIONS_PER_BLOCK * E, call.table)
    counters = call.counters
    task = claim(counters, 0)
    while task < call.T * H:
        position, group = v.read_int64(call.counts, task // H) - 1, task % H // per_group
        attend(row, position, group, 0, call.query, task * E, E, call.out, task * E, is_narrow)
        task = claim(counters, 0)


def activate_all(address):
    """Activate all numbers, in parts as tasks for threads; the last vector may overlap the one before it."""
    call = activation_call_at(address)
    x, out, count, is_narrow = call.x, call.out, call.count, call.is_narrow != 0
    first = claim(call.counters, 0) * AT_ONCE
    while first < count:
        for i in range(first, min(first + AT_ONCE, count), 16):
            at = min(i, count - 16)
            value = v.load_bfloat16(x, at) if is_narrow else v.load_float(x, at)
            value = activate(value, call.activation)
            if is_narrow:
                v.store_bfloat16(out, at, value)
            else:
                v.store_float(out, at, value)
        first = claim(call.counters, 0) * AT_ONCE
