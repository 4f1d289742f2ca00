"""Optimizer steps that are skipped on the device, without the host waiting to know whether they must be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SkippingOptimizer(torch.optim.Optimizer):
    """An optimizer whose step changes nothing where `skip`, a float32 scalar on the device of its weights, is 1.

    A training step sets it where a loss or gradient is not finite, and it stays set. None: every step is taken.
    """

    skip: Tensor | None = None


@contextmanager
def unchanged_where(skip: Tensor | None, tensors: list[Tensor]) -> Iterator[None]:
    """Undo what the block does to the tensors where `skip` is 1."""
    if skip is None:
        yield
        return
    before = [tensor.clone() for tensor in tensors]
    yield
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(torch.where(skip > 0, old, tensor))
