"""Matrices as integers with scales: bounds of the rounding, and what the bytes hold."""

from __future__ import annotations

import pytest
import torch

from foretell.errors import ConfigError
from foretell.model import quantization
from foretell.model.quantization import (
    check_group,
    choose_group,
    dequantize_int4,
    pack_int4,
    quantize_int4,
    quantize_int8,
    times_scales,
    unpack_int4,
)

SHAPES = [(1, 2, 2), (3, 48, 16), (5, 96, 96), (17, 352, 32)]  # outputs, inputs, group


def draw(rows: int, width: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale


def per_weight(values: torch.Tensor, group: int) -> torch.Tensor:
    return values.float().repeat_interleave(group, dim=-1)


@pytest.mark.parametrize("scale", [1e-30, 0.02, 1e30])
@pytest.mark.parametrize(("rows", "width", "group"), SHAPES)
def test_an_int8_weight_is_within_half_a_scale(rows: int, width: int, group: int, scale: float) -> None:
    weight = draw(rows, width, scale=scale)
    stored = quantize_int8(weight, group)
    assert stored["integers"].dtype == torch.int8 and stored["integers"].shape == (rows, width)
    assert stored["scales"].shape == (rows, width // group)
    error = (times_scales(**stored, dtype=torch.float32) - weight).abs()
    assert (error <= 0.5001 * per_weight(stored["scales"], group)).all()


@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
@pytest.mark.parametrize(("rows", "width", "group"), SHAPES)
def test_an_int4_weight_is_within_half_a_scale_and_the_rounding_of_the_range(
    rows: int, width: int, group: int, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "RANGE_SHARES", (1.0,))  # a smaller range rounds its ends further
    weight = draw(rows, width) + shift
    stored = quantize_int4(weight, group)
    assert stored["integers"].dtype == torch.uint8 and stored["integers"].shape == (rows, width // 2)
    error = (dequantize_int4(**stored) - weight).abs()
    # Scale and minimum are rounded to 8 bits, so each end of the range may be off by 15 scales / 256
    assert (error <= (0.5 + 15 / 256) * per_weight(stored["scales"], group)).all()


@pytest.mark.parametrize(("rows", "width", "group"), SHAPES)
def test_a_smaller_range_is_taken_where_its_squared_error_is_smaller(
    rows: int, width: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = draw(rows, width)

    def errors() -> torch.Tensor:
        difference = dequantize_int4(**quantize_int4(weight, group)) - weight
        return difference.square().unflatten(-1, (-1, group)).sum(-1)

    searched = errors()
    monkeypatch.setattr(quantization, "RANGE_SHARES", (1.0,))
    assert (searched <= errors()).all()
    assert (searched < errors()).any() or rows < 5


def test_groups_of_zeros_stay_zeros() -> None:
    zeros = torch.zeros(2, 8)
    assert times_scales(**quantize_int8(zeros, 4), dtype=torch.float32).eq(0).all()
    assert dequantize_int4(**quantize_int4(zeros, 4)).eq(0).all()


def test_quantising_again_changes_nothing() -> None:
    once = times_scales(**quantize_int8(draw(7, 64), 32), dtype=torch.float32)
    assert torch.equal(times_scales(**quantize_int8(once, 32), dtype=torch.float32), once)


def test_the_low_half_of_a_byte_is_the_even_input() -> None:
    assert pack_int4(torch.tensor([[1, 2, 15, 0]])).tolist() == [[1 + 2 * 16, 15]]
    integers = torch.arange(16).view(2, 8)
    assert torch.equal(unpack_int4(pack_int4(integers)), integers.to(torch.uint8))


def test_scales_in_bfloat16_cost_half_a_percent_of_the_error() -> None:
    weight = draw(2048, 768)
    grouped = weight.unflatten(-1, (-1, 64))
    exact = grouped.abs().amax(-1, keepdim=True) / 127
    with_exact_scales = ((grouped / exact).round() * exact - grouped).square().mean().sqrt()
    rounded = (times_scales(**quantize_int8(weight, 64), dtype=torch.float32) - weight).square().mean().sqrt()
    assert rounded < 1.005 * with_exact_scales


def test_the_group_is_the_default_where_it_divides_all_widths() -> None:
    assert choose_group("int8", [768, 3072]) == 64
    assert choose_group("int4", [768, 3072]) == 32
    assert choose_group("int8", [128, 352]) == 32
    assert choose_group("int8", [48]) == 48


@pytest.mark.parametrize(("width", "group"), [(48, 32), (48, 3), (7, 7)])
def test_a_group_that_does_not_fit_is_refused_with_groups_that_do(width: int, group: int) -> None:
    with pytest.raises(ConfigError) as raised:
        check_group("trunk.blocks.0.attention.query", width, group)
    message = str(raised.value)
    assert "trunk.blocks.0.attention.query" in message and f"width of {width}" in message and "keep 'trunk" in message
    assert ("2, 4, 6, 8, 12, 16, 24, 48" in message) == (width == 48)


def test_int8_weights_computed_in_bfloat16_equal_rounded_float32():
    stored = quantize_int8(torch.randn(40, 256) * 10 ** torch.randn(40, 256), 64)
    narrow = times_scales(stored["integers"], stored["scales"], torch.bfloat16)
    assert torch.equal(narrow, times_scales(**stored, dtype=torch.float32).bfloat16())
