"""Matrix products of bfloat16 activations on a CPU without bfloat16 instructions: in float32, with converted weights.

torch multiplies bfloat16 there at a fifth (AVX-512) or a seventh (AVX2) of its rate in float32. Weights are converted
in parts that stay in a core's cache, so there is no second copy of them. 512 rows times a matrix (3072, 768) took 71 ms
in bfloat16, 17 ms in this way and 15 ms with weights in float32 (one thread, AVX-512). It is faster from four rows on.
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
ELEMENTS_AT_ONCE = 2**18  # of a weight: 1 MiB in float32


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


def linear_in_parts(
    x: Tensor,
    rows: Callable[[slice], Tensor],
    bias: Tensor | None,
    outputs: int,
    elements: int = ELEMENTS_AT_ONCE,
) -> Tensor:
    """x W' + b for x (..., I), with W (outputs, I) made in parts of about this many elements, in the dtype of x."""
    step = max(1, elements // x.shape[-1])
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
