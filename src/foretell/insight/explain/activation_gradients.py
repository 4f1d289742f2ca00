"""Gradients through activation functions: the derivative of each, and one number of it."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from foretell.insight.address import address_of
from foretell.insight.explain.core_gradients import Index, gradient_address
from foretell.insight.explain.explain_activation import CUBIC, HALF, ONE, RECTIFIED, X
from foretell.insight.explain.steps import Equation, Working, applied, equals, factor
from foretell.insight.gradient_pass import GradientPass
from foretell.insight.recorded_pass import Array
from foretell.insight.trace import GRADIENT
from foretell.model.structure import Value
from foretell.numerics.activations import activation_name, normal_distribution, relu
from foretell.typesetting.expression import Call, Fraction, Number, Root, Symbol, row, script

SLOPE, SIGMOID = Symbol("f'"), Fraction(ONE, row(ONE, "+", script("e", "", "-x")))
DENSITY = Fraction(script("e", "", "-x²/2"), Root(row(Number(2), Symbol("π"))))
INNER = row(Root(Fraction(Number(2), Symbol("π"))), "·", Call("", CUBIC))
DERIVATIVES = {
    "gelu_tanh": row(
        SLOPE,
        "=",
        Fraction(row(ONE, "+", Symbol("t")), Number(2)),
        "+",
        HALF,
        "·",
        Call("", row(ONE, "-", script("t", "", "2"))),
        "· u' , t = tanh(u) , u =",
        INNER,
    ),
    "gelu_erf": row(SLOPE, "=", Symbol("Φ(x)"), "+", X, "·", DENSITY),
    "relu": row(SLOPE, "=", Symbol("1 if x > 0, else 0")),
    "relu2": row(SLOPE, "=", Number(2), "·", RECTIFIED),
    "silu": row(
        SLOPE,
        "=",
        Symbol("s"),
        "·",
        Call("", row(ONE, "+", X, "·", Call("", row(ONE, "-", Symbol("s"))))),
        ", s =",
        SIGMOID,
    ),
}


def gelu_erf_derivative(x: Array) -> Array:
    """Phi(x) + x phi(x), with the density phi of the standard normal distribution."""
    return normal_distribution(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def gelu_tanh_derivative(x: Array) -> Array:
    """(1 + t) / 2 + x (1 - t^2) u' / 2, with t = tanh(u) and u = sqrt(2/pi) (x + 0.044715 x^3)."""
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return (1 + tanh) / 2 + x * (1 - tanh**2) * inner / 2


def relu_derivative(x: Array) -> Array:
    """1 for positive x, else 0; at 0, where there is none, 0 as in torch."""
    return (x > 0).astype(x.dtype)


def relu2_derivative(x: Array) -> Array:
    return 2 * relu(x)


def silu_derivative(x: Array) -> Array:
    """s (1 + x (1 - s)), with s = 1 / (1 + exp(-x))."""
    sigmoid = np.exp(-np.logaddexp(0, -x))
    return sigmoid * (1 + x * (1 - sigmoid))


SLOPES = {  # the derivatives in NumPy; of another activation, autograd computes it
    "gelu_tanh": gelu_tanh_derivative,
    "gelu_erf": gelu_erf_derivative,
    "relu": relu_derivative,
    "relu2": relu2_derivative,
    "silu": silu_derivative,
}


def through_activation(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """The gradient of f(x) times f'(x)."""
    module, array = recording.module(reader), recording.array(name)
    x, g = float(array[index]), float(recording.array(f"{GRADIENT}{reader.name}")[index])
    kind = activation_name(module)
    if kind in SLOPES:
        slope = float(SLOPES[kind](np.array([x]))[0])
    else:
        module = copy.deepcopy(module).cpu().double()
        at = torch.from_numpy(array).requires_grad_()
        with torch.enable_grad():
            slope = float(torch.autograd.grad(module(at[None])[0][index], at)[0][index])
    operands = {"x": address_of(name, *index), "g": gradient_address(reader, *index)}
    definition = [Equation(DERIVATIVES[kind], slope)] if kind in DERIVATIVES else []
    steps = [
        *definition,
        equals(slope, applied(f"{kind or type(module).__name__}'", x), operands=operands),
        equals(g * slope, "gradient = g ·", "slope =", g, "·", factor(slope)),
    ]
    return Working(steps, g * slope, abs(g) * (2 + x * x + abs(slope)))
