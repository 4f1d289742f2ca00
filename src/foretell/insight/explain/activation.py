"""The function that bends each number of a feed-forward layer."""

from __future__ import annotations

import math
from collections.abc import Callable

from foretell.insight.explain.flow import input_of
from foretell.insight.explain.linear import number
from foretell.insight.explain.place import Place, address_of
from foretell.insight.explain.recording import Recording
from foretell.insight.explain.steps import Equation, Working
from foretell.typesetting.expression import Call, Expression, Fraction, Number, Root, Symbol, row, script

X = Symbol("x")


def gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def gelu_erf(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def relu(x: float) -> float:
    return max(x, 0.0)


def relu2(x: float) -> float:
    return max(x, 0.0) ** 2


def silu(x: float) -> float:
    return x * (1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x)))


HALF = Fraction(X, Number(2))
CUBIC = row(X, "+", Number(0.044715, 6), script("x", "", "3"))
FORMULAS: dict[str, tuple[Callable[[float], float], Expression]] = {  # by the configuration's name
    "gelu_tanh": (
        gelu_tanh,
        row(HALF, "·", Call("", row(Number(1), "+", Call("tanh", row(Root(Fraction(Number(2), Symbol("π"))), CUBIC))))),
    ),
    "gelu_erf": (
        gelu_erf,
        row(HALF, "·", Call("", row(Number(1), "+", Call("erf", Fraction(X, Root(Number(2))))))),
    ),
    "relu": (relu, Call("max", row(Number(0), ",", X))),
    "relu2": (relu2, script(Call("max", row(Number(0), ",", X)), "", "2")),
    "silu": (silu, Fraction(X, row(Number(1), "+", script("e", "", "-x")))),
}


def explain_activation(recording: Recording, place: Place) -> Working:
    """f(x) of one number, by the configured formula."""
    kind = recording.config.activation
    function, formula = FORMULAS[kind]
    source = input_of(recording.config, place.name)
    x = float(recording.array(source)[place.index])
    value = function(x)
    steps = [
        Equation(row(Call(kind, X), "=", formula), value),
        Equation(row(Call(kind, number(x)), "=", number(value)), value, f"x = {address_of(source, *place.index)}"),
    ]
    return Working(list(steps), value, abs(x) + x * x)
