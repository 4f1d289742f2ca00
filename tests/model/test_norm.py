"""RMSNorm on a CPU is torch's function, with torch's gradient."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.model.kernels import rms_norm as module
from foretell.model.kernels.rms_norm import rms_norm

EPSILON = 1e-6


def torch_rms_norm(x: Tensor, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """torch's function, in the way that the plain layer calls it."""
    return F.rms_norm(x, scale.shape, scale.to(x.dtype), epsilon).to(dtype)


TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def rows(dtype: torch.dtype) -> Tensor:
    """Vectors of a stream, (B, T, D)."""
    return torch.randn(3, 5, 8, dtype=dtype)


def heads(dtype: torch.dtype) -> Tensor:
    """Vectors of heads, (B, H, T, E), which lie in memory as (B, T, H, E)."""
    return torch.randn(3, 5, 4, 8, dtype=dtype).transpose(1, 2)


def one(dtype: torch.dtype) -> Tensor:
    """A vector alone, (D,)."""
    return torch.randn(8, dtype=dtype)


def repeated(dtype: torch.dtype) -> Tensor:
    """One row many times, without memory of its own."""
    return torch.randn(1, 5, 8, dtype=dtype).expand(3, 5, 8)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("make", [rows, heads, one, repeated])
@pytest.mark.parametrize("at_once", [1, 40, 2**17])
def test_value_and_gradient_are_torchs(make, dtype, at_once, monkeypatch):
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", at_once)
    torch.manual_seed(0)
    x, scale = make(dtype), torch.rand(8, dtype=torch.promote_types(dtype, torch.float32)) + 0.5
    d_y = torch.randn_like(x)
    found, expected = [], []
    for results, norm in ((found, rms_norm), (expected, torch_rms_norm)):
        inputs = x.detach().requires_grad_(), scale.clone().requires_grad_()
        y = norm(*inputs, EPSILON, dtype)
        results += [y, *torch.autograd.grad(y, inputs, d_y)]
    for ours, torchs in zip(found, expected, strict=True):
        assert ours.dtype == torchs.dtype
        torch.testing.assert_close(ours, torchs, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_the_gradient_is_the_same_where_backward_is_called_within_autocast():
    x, scale = torch.randn(3, 64, requires_grad=True), torch.ones(64)
    outside = torch.autograd.grad(rms_norm(x, scale, EPSILON, torch.float32).square().sum(), x)[0]
    y = rms_norm(x, scale, EPSILON, torch.float32).square().sum()
    with torch.autocast("cpu"):
        torch.testing.assert_close(torch.autograd.grad(y, x)[0], outside, rtol=0, atol=0)


def test_float32_comes_out_in_the_precision_of_products():
    assert rms_norm(torch.randn(2, 8), torch.ones(8), EPSILON, torch.bfloat16).dtype == torch.bfloat16


def test_tiny_and_huge_vectors_become_unit_ones():
    x = torch.tensor([[1e-12], [1.0], [1e15]]) * torch.ones(3, 4)
    y = rms_norm(x, torch.ones(4), 0.0, torch.float32)
    torch.testing.assert_close(y, torch.ones(3, 4))
