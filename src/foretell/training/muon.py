"""Muon (Jordan et al. 2024): SGD with momentum whose updates are orthogonalized.

The gradient of a matrix has a few large singular values and many small ones, so a plain step moves mainly in a few
directions. Muon sets all singular values to about 1 with a polynomial of the matrix, which needs matrix products only.

An orthogonal R x C matrix has entries of root mean square 1 / sqrt(max(R, C)). The update is scaled by 0.2 sqrt(max(R,
C)), which gives the entries the size they have under AdamW (Liu et al. 2025, section 2.2). So one learning rate and one
weight decay suit both optimizers. Jordan's factor, sqrt(max(1, R/C)), needs a separate learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from foretell.distributed.placement import apply_to_whole, own_part
from foretell.training.step import SkippingOptimizer, unchanged_where

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: steep at 0, where most singular values are
ITERATIONS = 5
SMALLEST_NORM = 1e-7
UPDATE_SIZE = 0.2  # root mean square of AdamW's updates, as observed by Liu et al. 2025
# Elements of matrices that are stacked for one product. On a CPU larger matrices gain nothing from batching. On a GPU
# all of GPT-2's matrices of one shape are one stack, of at most 256 MiB in float32
ELEMENTS_AT_ONCE = {"cpu": 2**20}
ELEMENTS_AT_ONCE_ON_GPU = 2**26


class Muon(SkippingOptimizer):
    """Muon for matrices (R, C), with Nesterov momentum and decoupled weight decay.

    `dtype` is the precision of the products; use the training's: a processor without bfloat16 instructions emulates
    them. Measured on one core with AVX2 alone, 16 matrices of 128 x 128: float32 16 ms,
    bfloat16 310 ms; with AVX512-BF16 13 and 6.5 ms, and 11 ms where they are not stacked.
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, momentum: float, dtype: torch.dtype):
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum, "weight_decay": 0.0, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrices in iter_stacks([weight for weight in group["params"] if weight.grad is not None]):
                self.update(matrices, group)

    def update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """One step of matrices of the same shape."""
        gradients = [own_part(matrix.grad) for matrix in matrices if matrix.grad is not None]
        means = [own_part(self.mean_gradient(matrix)) for matrix in matrices]
        parts = [own_part(matrix) for matrix in matrices]  # (R, C), or some rows of it where it is in shards
        size = UPDATE_SIZE * max(matrices[0].shape) ** 0.5
        with unchanged_where(self.skip, [*parts, *means]):
            directions = advance(means, gradients, group["momentum"])
            steps = apply_to_whole(matrices[0], list(directions), lambda whole: orthogonalize(whole, group["dtype"]))
            torch._foreach_mul_(parts, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parts, steps, alpha=-group["lr"] * size)

    def mean_gradient(self, matrix: Tensor) -> Tensor:
        """The momentum: a running mean of the gradients, zeros at first."""
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        return state["momentum"]


def iter_stacks(matrices: list[Tensor]) -> Iterator[list[Tensor]]:
    """The matrices in stacks of one shape, as large as the device gains from."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for shape, members in by_shape.items():
        limit = ELEMENTS_AT_ONCE.get(members[0].device.type, ELEMENTS_AT_ONCE_ON_GPU)
        count = max(1, limit // shape.numel())
        for first in range(0, len(members), count):
            yield members[first : first + count]


def advance(means: list[Tensor], gradients: list[Tensor], momentum: float) -> tuple[Tensor, ...]:
    """Update the momenta and return the Nesterov directions: the momenta after one more step with these gradients."""
    torch._foreach_lerp_(means, gradients, 1 - momentum)
    return torch._foreach_lerp(gradients, means, momentum)


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """U S V' to about U V' for matrices (N, R, C).

    Singular values that are not tiny relative to the norm end between 0.68 and 1.14. A Newton-Schulz iteration: odd
    polynomials of a matrix are polynomials of its singular values.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)  # no singular value is above 1
    x = (x.mT if is_tall else x).to(dtype).contiguous()  # the products X X' are then as small as possible
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def orthogonalize_flops(rows: int, columns: int) -> int:
    """Floating-point operations of `orthogonalize` for one (R, C) matrix: three products per iteration."""
    short, long = sorted((rows, columns))
    return ITERATIONS * (4 * short * short * long + 2 * short**3)
