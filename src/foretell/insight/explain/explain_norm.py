"""Explanations of LayerNorm, RMSNorm and their statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretell.insight.explain.explain_linear import read_input
from foretell.insight.explain.recording import Array, Recording, TracedScalar, address_of
from foretell.insight.explain.steps import Equation, Listing, Step, Working, factor, numeral, plus
from foretell.typesetting.expression import Expression, Fraction, Number, Root, Symbol, row


def read_vector(recording: Recording, scalar: TracedScalar, index: tuple[int, ...]) -> tuple[Array, str]:
    """The input vector of a norm at one position, or one head's slice of it, and its address."""
    *heads, position = index
    if not heads:
        return read_input(recording, scalar, position)
    source, width = scalar.source, recording.config.head_width
    first = heads[0] * width
    return recording.array(source)[position, first : first + width], f"{source}[{position},{first}:{first + width}]"


def mean_of(x: Array, source: str) -> Working:
    """The mean of the elements."""
    listing = Listing("", {"element": range(len(x)), "x": x}, ("x",), operands={"x": source})
    value = listing.sums["x"] / len(x)
    equation = row(Symbol("mean"), "=", Fraction(numeral(listing.sums["x"]), Number(len(x))), "=", numeral(value))
    return Working([listing, Equation(equation, value)], value, float(np.abs(x).mean()))


def variance_of(x: Array, source: str) -> Working:
    """The mean squared difference from the mean."""
    mean = mean_of(x, source)
    left = x - mean.value
    columns = {"element": range(len(x)), "x": x, "x - mean": left, "(x - mean)²": left**2}
    listing = Listing("", columns, ("x", "(x - mean)²"), operands={"x": source})
    total = listing.sums["(x - mean)²"]
    equation = row(Symbol("variance"), "=", Fraction(numeral(total), Number(len(x))), "=", numeral(total / len(x)))
    # An error of epsilon max|x| in the mean changes each square by twice that error times its own root
    scale = total / len(x) + 2 * float(np.abs(x).max() * np.abs(left).mean())
    return Working([listing, *mean.steps[1:], Equation(equation, total / len(x))], total / len(x), scale)


def mean_square_of(x: Array, source: str) -> Working:
    """The mean of the squares; no mean is subtracted."""
    listing = Listing("", {"element": range(len(x)), "x": x, "x²": x**2}, ("x²",), operands={"x": source})
    total = listing.sums["x²"]
    equation = row(Symbol("mean square"), "=", Fraction(numeral(total), Number(len(x))), "=", numeral(total / len(x)))
    return Working([listing, Equation(equation, total / len(x))], total / len(x), total / len(x))


def explain_mean(recording: Recording, scalar: TracedScalar) -> Working:
    """A LayerNorm's mean at one position."""
    return mean_of(*read_vector(recording, scalar, scalar.index))


def explain_variance(recording: Recording, scalar: TracedScalar) -> Working:
    """A LayerNorm's variance at one position."""
    return variance_of(*read_vector(recording, scalar, scalar.index))


def explain_mean_square(recording: Recording, scalar: TracedScalar) -> Working:
    """An RMSNorm's mean square at one position."""
    return mean_square_of(*read_vector(recording, scalar, scalar.index))


@dataclass(frozen=True)
class Scaling:
    """A norm applied to one element: subtract the mean, divide by sqrt(spread + epsilon), scale, shift."""

    x: float
    mean: float
    spread: float
    epsilon: float
    weight: float
    bias: float

    @property
    def root(self) -> float:
        return float(np.sqrt(self.spread + self.epsilon))

    @property
    def unit(self) -> float:
        return (self.x - self.mean) / self.root

    @property
    def value(self) -> float:
        return self.unit * self.weight + self.bias

    def scale(self, largest: float) -> float:
        """The possible rounding error, in epsilons; `largest` is the largest absolute element of the vector.

        An error of one epsilon of `largest` in the mean changes the difference and, through the variance, the root.
        """
        lost = largest / self.root * (1 + abs(self.unit))
        return abs(self.weight) * (lost + 2 * abs(self.unit)) + abs(self.bias)


def explain_layer_norm(recording: Recording, scalar: TracedScalar) -> Working:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias."""
    x, source = read_vector(recording, scalar, scalar.index[:-1])
    statistics = variance_of(x, source)
    return finish(recording, scalar, statistics, (x, float(x.mean())))


def explain_rms_norm(recording: Recording, scalar: TracedScalar) -> Working:
    """x / sqrt(mean square + epsilon) * weight."""
    x, source = read_vector(recording, scalar, scalar.index[:-1])
    return finish(recording, scalar, mean_square_of(x, source), (x, 0.0))


def finish(recording: Recording, scalar: TracedScalar, statistics: Working, centered: tuple[Array, float]) -> Working:
    """The steps that both norms share: normalize, then scale and shift. `centered` is x and the mean to subtract."""
    element, has_bias = scalar.index[-1], recording.parameter(f"{scalar.name}.bias") is not None
    x, mean = centered
    scaling = Scaling(
        x=float(x[element]),
        mean=mean,
        spread=statistics.value,
        epsilon=recording.setting(scalar.value, "eps"),
        weight=float(recording.weight(recording.weight_path(scalar.value), element)),
        bias=float(recording.weight(f"{scalar.name}.bias", element)) if has_bias else 0.0,
    )
    subtracted = [numeral(scaling.x), *([] if mean == 0.0 else plus(-mean))]
    root = Root(row(numeral(scaling.spread), "+", Number(scaling.epsilon, 6)))
    unit = row(Symbol("unit"), "=", Fraction(row(*subtracted), root), "=", numeral(scaling.unit))
    steps: list[Step] = [*statistics.steps, Equation(unit, scaling.unit, f"element {element}, epsilon inside the root")]
    steps.append(Equation(affine(scaling, has_bias), scaling.value, affine_note(scalar, element, has_bias)))
    return Working(steps, scaling.value, scaling.scale(float(np.abs(x).max())))


def affine(scaling: Scaling, has_bias: bool) -> Expression:
    """unit · γ + β with its numbers."""
    product = [Symbol("y"), "=", numeral(scaling.unit), "·", factor(scaling.weight)]
    shift = plus(scaling.bias) if has_bias else []
    return row(*product, *shift, "=", numeral(scaling.value))


def affine_note(scalar: TracedScalar, element: int, has_bias: bool) -> str:
    """The addresses of scale and shift."""
    shift = f", then shifted by {address_of(f'{scalar.name}.bias', element)}" if has_bias else ""
    return f"scaled by {address_of(f'{scalar.name}.weight', element)}{shift}"
