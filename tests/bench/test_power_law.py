"""Exponents are found again, and say how well they fit."""

from __future__ import annotations

import pytest
from scale import fit_power_law

SIZES = [64, 128, 256, 512, 1024]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.7, -2.0])
def test_an_exact_power_law_is_found(exponent: float) -> None:
    law = fit_power_law(SIZES, [3e-4 * size**exponent for size in SIZES])
    assert law.exponent == pytest.approx(exponent, abs=1e-12)
    assert law.factor == pytest.approx(3e-4)
    assert law.last == pytest.approx(exponent, abs=1e-12)
    assert law.r_squared == pytest.approx(1)
    assert law.largest_error < 1e-12
    assert law.at(2048) == pytest.approx(3e-4 * 2048**exponent)


def test_the_errors_of_points_beside_the_law_are_told() -> None:
    # deviations in the logarithm that are orthogonal to the line: the law stays, and the errors are these
    law = fit_power_law([1, 2, 4, 8], [1 * 1.1, 4 / 1.1, 16 / 1.1, 64 * 1.1])
    assert law.exponent == pytest.approx(2)
    assert law.largest_error == pytest.approx(0.1)
    assert 0.99 < law.r_squared < 1
    assert law.last > 2.1


def test_a_sum_of_two_powers_has_its_steepest_exponent_at_the_end() -> None:
    law = fit_power_law(SIZES, [size + size**2 / 256 for size in SIZES])
    assert 1 < law.exponent < law.last < 2


@pytest.mark.parametrize(("xs", "ys"), [([1], [1]), ([2, 2], [1, 3]), ([1, 2], [0, 1]), ([1, 2], [1, 2, 3])])
def test_points_without_a_law_are_refused(xs: list[float], ys: list[float]) -> None:
    with pytest.raises(ValueError, match="two different x"):
        fit_power_law(xs, ys)
