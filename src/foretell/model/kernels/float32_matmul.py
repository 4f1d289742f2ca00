"""Matrix products of bfloat16 activations on a CPU without bfloat16 instructions: in float32, with converted weights.

torch multiplies bfloat16 there at a fifth (AVX-512) or a seventh (AVX2) of its rate in float32. Weights are converted
in parts, so there is no second copy of all of them; a layer of GPT-2's size is one part. With parts of 1 MiB, reading
512 tokens took 1.2 times as long (AVX2). It is faster from four rows on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.device import multiplies_bfloat16
from foretell.model.decoder import TiedHead

MIN_ROWS = 4
ELEMENTS_AT_ONCE = 2**22  # of a weight: 16 MiB in float32, a tenth of GPT-2's head
STEP = 32  # parts have a multiple of it: 85 outputs at once took 1.3 times as long per output as 96 with AVX2


@cache
def is_bfloat16_slow() -> bool:
    """True if this processor has no instructions for bfloat16."""
    return not multiplies_bfloat16(torch.device("cpu"))


def fastest_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which products of these rows are fastest on their device."""
    is_slow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and is_bfloat16_slow()
    return torch.float32 if is_slow and x.numel() >= MIN_ROWS * x.shape[-1] else x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` in the fastest dtype: x (..., I) and weight (O, I) to (..., O) in the dtype of x."""
    dtype = fastest_dtype(x)
    if dtype == x.dtype or weight.dtype != x.dtype:
        return F.linear(x, weight, bias)
    return linear_in_parts(x.to(dtype), lambda part: weight[part].to(dtype), bias, len(weight)).to(x.dtype)


def linear_in_parts(x: Tensor, rows: Callable[[slice], Tensor], bias: Tensor | None, outputs: int) -> Tensor:
    """x W' + b for x (..., I), with W (outputs, I) made in parts in the dtype of x."""
    step = max(STEP, ELEMENTS_AT_ONCE // x.shape[-1] // STEP * STEP)
    parts = [slice(start, start + step) for start in range(0, outputs, step)]
    biases = [None if bias is None else bias[part].to(x.dtype) for part in parts]
    return torch.cat([F.linear(x, rows(part), each) for part, each in zip(parts, biases, strict=True)], dim=-1)


class Float32Linear(nn.Linear):
    """`nn.Linear` for a model in bfloat16, multiplied in the fastest dtype."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class Float32TiedHead(TiedHead):
    """`TiedHead` for a model in bfloat16, multiplied in the fastest dtype."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)  # (..., V)
