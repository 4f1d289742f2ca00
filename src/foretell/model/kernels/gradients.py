"""The gradient of a kernel without a backward pass: the plain form's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ValueWithGradient(torch.autograd.Function):
    """A value with the gradient of another computation of it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, plain: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, Tensor]:
        return None, grad_outputs[0]


def with_gradient_of(plain: Callable[..., Tensor], kernel: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """The result of a kernel without a backward pass; where a gradient is needed, the plain form is computed too."""
    with torch.no_grad():
        value = kernel(*inputs)
    if not torch.is_grad_enabled():
        return value
    expected = plain(*inputs)
    return ValueWithGradient.apply(value, expected) if expected.requires_grad else value
