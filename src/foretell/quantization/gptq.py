"""int4 rounding that makes up for its errors on the inputs of a layer (Frantar et al. 2022, GPTQ).

The columns of a weight are rounded one after another. The error of each is spread over the columns that are not yet
rounded, so that the layer's output on the calibration inputs changes least: by the inverse of X'X, where X (N, I) are
the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.model.quantization import MAX_INT4, fit_int4, pack_int4

DAMPING = 0.01  # of the mean of X'X's diagonal, added to it; the paper's value
COLUMNS_AT_ONCE = 128  # rounded before their errors reach the columns after them; the paper's value


class InputProducts:
    """X'X of the inputs of a layer, added up batch by batch."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Inputs (..., I)."""
        x = x.detach().flatten(0, -2).float()
        self.total = x.T @ x if self.total is None else self.total.addmm_(x.T, x)

    def inverse_factor(self) -> Tensor:
        """The upper triangular U (I, I) with U'U = (X'X + damping)^-1; row i spreads the error of column i."""
        assert self.total is not None, "no inputs were seen"
        products = self.total.double()
        damping = DAMPING * products.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        products.diagonal().add_(damping)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(products))
        return torch.linalg.cholesky(inverse, upper=True).float()


def round_with_feedback(weight: Tensor, factor: Tensor, group: int) -> dict[str, Tensor]:
    """The integers, scales and minima of a weight (O, I), given `inverse_factor` (I, I) of its inputs."""
    rest = weight.detach().float().clone()
    outputs, inputs = rest.shape
    integers, scales = torch.empty_like(rest), rest.new_empty(outputs, inputs // group)
    minima = torch.empty_like(scales)
    step = max(group, COLUMNS_AT_ONCE // group * group)
    for start in range(0, inputs, step):
        end = min(start + step, inputs)
        errors = rest.new_empty(outputs, end - start)
        for column in range(start, end):
            index = column // group
            if column % group == 0:
                scales[:, index], minima[:, index] = fit_int4(rest[:, column : column + group])
            scale, minimum = scales[:, index], minima[:, index]
            given = rest[:, column]
            integers[:, column] = ((given - minimum) / torch.where(scale == 0, 1.0, scale)).round_().clamp_(0, MAX_INT4)
            rounded = integers[:, column] * scale + minimum
            error = (given - rounded) / factor[column, column]
            rest[:, column:end] -= torch.outer(error, factor[column, column:end])
            errors[:, column - start] = error
        rest[:, end:] -= errors @ factor[start:end, end:]
    dtype = weight.dtype
    return {"integers": pack_int4(integers), "scales": scales.to(dtype), "minima": minima.to(dtype)}
