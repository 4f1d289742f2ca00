"""The sums for softmax, entropy and ranks of rows of logits, in one pass over memory; torch needs seven."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from foretell.model.kernels import vectors as v
from foretell.model.kernels.compiling import inlined
from foretell.model.kernels.threads import CALL, claim, run_on_threads
from foretell.model.kernels.vector_math import exponential

LEAST = -87.0  # below this, e^x is about 0 in float32
ROWS = np.dtype([*CALL, *v.fields("logits stride n V largest target sums")])
rows_call_at = v.record_at(ROWS)


def softmax_sums(logits: Tensor, largest: Tensor, target: Tensor) -> Tensor:
    """Sums (3, n) over each row x of float32 logits (n, V): of e^y and y e^y with y = x - largest, and of x > target.

    largest and target are (n, 1).
    """
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    (n, V), sums = logits.shape, logits.new_empty(3, len(logits))
    largest, target = largest.contiguous(), target.contiguous()
    addresses = (tensor.data_ptr() for tensor in (largest, target, sums))
    call = (0, 0, 0, logits.data_ptr(), logits.stride(0), n, V, *addresses)
    run_on_threads(sum_rows, np.array(call, ROWS), 1, 0, False)
    return sums


# --- compiled code ---------------------------------------------------------------------------------------------------


def sum_rows(address):
    call = rows_call_at(address)
    n, whole = call.n, call.V // 16 * 16
    row = claim(call.counters, 0)
    while row < n:
        first = row * call.stride
        largest, target = v.broadcast_at(call.largest, row), v.broadcast_at(call.target, row)
        total, weighted, above = v.broadcast(0.0), v.broadcast(0.0), v.broadcast(0.0)
        for i in range(first, first + whole, 16):
            odds, product, is_above = terms(v.load_float(call.logits, i), largest, target)
            total, weighted, above = v.add(total, odds), v.add(weighted, product), v.add(above, is_above)
        sums = v.reduce_add(total), v.reduce_add(weighted), v.reduce_add(above)
        for i in range(first + whole, first + call.V):
            odds, product, is_above = terms(v.broadcast_at(call.logits, i), largest, target)
            sums = sums[0] + v.lane(odds), sums[1] + v.lane(product), sums[2] + v.lane(is_above)
        v.write_float(call.sums, row, sums[0])
        v.write_float(call.sums, n + row, sums[1])
        v.write_float(call.sums, 2 * n + row, sums[2])
        row = claim(call.counters, 0)


@inlined
def terms(x, largest, target):
    """The terms of the three sums for 16 logits."""
    below = v.maximum(v.subtract(x, largest), v.broadcast(LEAST))  # -infinity times 0 would be NaN
    odds = exponential(below)
    return odds, v.multiply(odds, below), v.is_larger(x, target)
