"""Rounding for a layer's inputs: better on them than rounding to nearest, and the same where nothing can be gained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foretell.convert.gptq import InputProducts, round_with_feedback
from foretell.model.quantization import dequantize_int4, quantize_int4

GROUP = 16


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def factor_of(x: Tensor) -> Tensor:
    products = InputProducts()
    for part in x.split(100):
        products.add(part)
    return products.inverse_factor()


def output_error(weight: Tensor, rounded: Tensor, x: Tensor) -> float:
    return float(((rounded - weight) @ x.T).square().mean().sqrt())


@pytest.mark.parametrize("width", [GROUP, 48, 160])  # within a step of 128 columns, and beyond
def test_the_error_of_the_output_is_smaller_on_correlated_inputs(width: int) -> None:
    weight, x = draw(24, width), draw(400, width // 4, seed=1) @ draw(width // 4, width, seed=2)
    nearest = dequantize_int4(**quantize_int4(weight, GROUP))
    calibrated = dequantize_int4(**round_with_feedback(weight, factor_of(x), GROUP))
    assert output_error(weight, calibrated, x) < 0.8 * output_error(weight, nearest, x)


def test_uncorrelated_inputs_give_the_nearest_integers() -> None:
    weight = draw(24, 64)
    stored, nearest = round_with_feedback(weight, torch.eye(64), GROUP), quantize_int4(weight, GROUP)
    assert all(torch.equal(stored[name], nearest[name]) for name in nearest)


def test_the_factor_multiplies_to_the_inverse_of_the_products() -> None:
    x = draw(300, 8)
    products = x.double().T @ x.double()
    products += 0.01 * products.diagonal().mean() * torch.eye(8)
    factor = factor_of(x).double()
    assert torch.equal(factor, factor.triu())
    torch.testing.assert_close(factor.T @ factor, products.inverse(), rtol=1e-4, atol=1e-7)


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    x = draw(300, 32)
    x[:, 5] = 0
    stored = round_with_feedback(draw(4, 32), factor_of(x), GROUP)
    assert dequantize_int4(**stored).isfinite().all()
    assert dequantize_int4(**round_with_feedback(draw(4, 32), factor_of(0 * x), GROUP)).isfinite().all()
