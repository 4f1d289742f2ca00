"""CPU matrix products for two cases where torch is slow: bfloat16 without hardware support, and float32 on AMD.

Without bfloat16 instructions, torch multiplies bfloat16 at a fifth (AVX-512) or a seventh (AVX2) of its float32 rate,
so products with four or more rows are computed in float32. Weights are converted in parts, to avoid a second copy of
all of them; a layer of GPT-2's size is one part. With parts of 1 MiB, a prompt of 512 tokens took 1.2 times as long
(AVX2).

torch multiplies float32 with MKL, which uses only AVX2 on AMD's processors. oneDNN also uses AVX-512: 256 rows of
GPT-2's width ran at 450 GFLOP/s instead of 215 on two Zen 5 cores, and at 235 with AVX2. For few rows or small weights
MKL is as fast or faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.model.decoder import TiedHead
from foretell.system.device import is_amd, multiplies_bfloat16

MIN_ROWS = 4  # from here on, bfloat16 rows are multiplied faster in float32
ELEMENTS_AT_ONCE = 2**22  # elements of a part of a weight: 16 MiB in float32, a tenth of GPT-2's head
STEP = 32  # parts are multiples of this: 85 outputs at once took 1.3 times as long per output as 96 with AVX2
ONEDNN_MULTIPLICATIONS = 2**22  # from here on, oneDNN is faster than MKL in float32 on AMD
# oneDNN compiles a kernel for each number of rows, in 5 to 12 ms for a small matrix, and keeps 1,024 kernels of one
# megabyte each: texts of all lengths took 2.9 GB. So rows are padded to a multiple of 32, or of 256 from 512 on
ROWS_AT_ONCE, MANY_ROWS, MANY_AT_ONCE = 32, 512, 256


@cache
def is_bfloat16_slow() -> bool:
    """True if this processor has no instructions for bfloat16."""
    return not multiplies_bfloat16(torch.device("cpu"))


@cache
def is_mkl_slow() -> bool:
    """True if torch multiplies float32 with MKL on a processor where MKL lacks AVX-512, and oneDNN is available."""
    return torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available() and is_amd()


def fastest_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which products of these rows are fastest on their device."""
    is_slow = x.dtype == torch.bfloat16 and x.device.type == "cpu" and is_bfloat16_slow()
    return torch.float32 if is_slow and x.numel() >= MIN_ROWS * x.shape[-1] else x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` in the fastest dtype and library: x (..., I) and weight (O, I) to (..., O) in the dtype of x."""
    if torch.compiler.is_compiling():  # the compiler cannot trace the tests below, and makes its own kernels
        return F.linear(x, weight, bias)
    dtype = fastest_dtype(x)
    if dtype == x.dtype or weight.dtype != x.dtype:
        return linear_as_given(x, weight, bias)
    return linear_in_parts(x.to(dtype), lambda part: weight[part].to(dtype), bias, len(weight)).to(x.dtype)


def linear_in_parts(x: Tensor, rows: Callable[[slice], Tensor], bias: Tensor | None, outputs: int) -> Tensor:
    """x W' + b for x (..., I), with W (outputs, I) made in parts in the dtype of x."""
    step = max(STEP, ELEMENTS_AT_ONCE // x.shape[-1] // STEP * STEP)
    parts = [slice(start, start + step) for start in range(0, outputs, step)]
    biases = [None if bias is None else bias[part].to(x.dtype) for part in parts]
    return torch.cat([linear_as_given(x, rows(part), each) for part, each in zip(parts, biases, strict=True)], dim=-1)


def linear_as_given(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` in the given dtype, by the faster of torch's libraries."""
    is_on_cpu = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype
    num_rows = x.numel() // max(1, x.shape[-1])
    if not is_on_cpu or num_rows < ROWS_AT_ONCE or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if x.dtype == torch.float32 and is_mkl_slow() and x.numel() * len(weight) >= ONEDNN_MULTIPLICATIONS:
        return in_rounded_rows(OneDNNLinear.apply, x, weight, bias)
    if x.dtype == torch.bfloat16 and not is_bfloat16_slow():
        return in_rounded_rows(F.linear, x, weight, bias)
    return F.linear(x, weight, bias)


def in_rounded_rows(multiply: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product by oneDNN with the rows padded, so that few different numbers of rows occur."""
    rows = x.flatten(0, -2)  # (N, I)
    missing = -len(rows) % (ROWS_AT_ONCE if len(rows) <= MANY_ROWS else MANY_AT_ONCE)
    output = multiply(F.pad(rows, (0, 0, 0, missing)) if missing else rows, weight, bias)
    return output[: len(rows)].unflatten(0, x.shape[:-1])  # (..., O)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` by oneDNN, with the internal operator of torch's compiler; it is the only one and has no gradient.

    It ignores the strides of a bias.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, None if bias is None else bias.contiguous(), "none", [], "")


class OneDNNLinear(torch.autograd.Function):
    """`onednn_linear` with first and second gradients; torch.func is not supported."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight if ctx.needs_input_grad[0] else None)
        return onednn_linear(x, weight, bias)  # (N, O)

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """d_x = d_y W, d_weight = d_y' x, and d_bias = the sum of the rows of d_y (N, O)."""
        (d_y,), (x, weight) = grad_outputs, ctx.saved_tensors
        d_x = None if weight is None else d_y @ weight  # (N, I)
        d_weight = None if x is None else d_y.T @ x  # (O, I)
        return d_x, d_weight, d_y.sum(0) if ctx.needs_input_grad[2] else None


class CPULinear(nn.Linear):
    """`nn.Linear` in the dtype and library that are fastest on this CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class CPUTiedHead(TiedHead):
    """`TiedHead` in the dtype and library that are fastest on this CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)  # (..., V)
