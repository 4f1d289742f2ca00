"""The CPU kernel of RMSNorm has the values and gradients of torch's rms_norm."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.model import rms_norm as module
from foretell.model.rms_norm import ScaleToUnit

EPSILON = 1e-6
rms_norm = ScaleToUnit.apply


def torch_rms_norm(x: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """torch's function, called as in the plain layer."""
    return F.rms_norm(x, scale.shape, scale.to(x.dtype), epsilon).to(dtype)


TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def rows(dtype: torch.dtype) -> Tensor:
    """Residual-stream vectors, (B, T, D)."""
    return torch.randn(3, 5, 8, dtype=dtype)


def heads(dtype: torch.dtype) -> Tensor:
    """Head vectors (B, H, T, E), stored as (B, T, H, E)."""
    return torch.randn(3, 5, 4, 8, dtype=dtype).transpose(1, 2)


def single(dtype: torch.dtype) -> Tensor:
    """One vector, (D,)."""
    return torch.randn(8, dtype=dtype)


def repeated(dtype: torch.dtype) -> Tensor:
    """One row expanded to several without a copy."""
    return torch.randn(1, 5, 8, dtype=dtype).expand(3, 5, 8)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("make", [rows, heads, single, repeated])
@pytest.mark.parametrize("at_once", [1, 40, 2**17])
def test_values_and_gradients_equal_torchs(make, dtype, at_once, monkeypatch):
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", at_once)
    torch.manual_seed(0)
    x, scale = make(dtype), torch.rand(8, dtype=torch.promote_types(dtype, torch.float32)) + 0.5
    d_y = torch.randn_like(x)
    actual, expected = [], []
    for results, norm in ((actual, rms_norm), (expected, torch_rms_norm)):
        inputs = x.detach().requires_grad_(), scale.clone().requires_grad_()
        y = norm(*inputs, EPSILON, dtype)
        results += [y, *torch.autograd.grad(y, inputs, d_y)]
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.dtype == reference.dtype
        torch.testing.assert_close(ours, reference, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_backward_within_autocast_gives_the_same_gradient():
    x, scale = torch.randn(3, 64, requires_grad=True), torch.ones(64)
    outside = torch.autograd.grad(rms_norm(x, scale, EPSILON, torch.float32).square().sum(), x)[0]
    y = rms_norm(x, scale, EPSILON, torch.float32).square().sum()
    with torch.autocast("cpu"):
        torch.testing.assert_close(torch.autograd.grad(y, x)[0], outside, rtol=0, atol=0)


def test_the_output_has_the_requested_dtype():
    assert rms_norm(torch.randn(2, 8), torch.ones(8), EPSILON, torch.bfloat16).dtype == torch.bfloat16


def test_tiny_and_huge_vectors_are_normalised():
    x = torch.tensor([[1e-12], [1.0], [1e15]]) * torch.ones(3, 4)
    y = rms_norm(x, torch.ones(4), 0.0, torch.float32)
    torch.testing.assert_close(y, torch.ones(3, 4))
