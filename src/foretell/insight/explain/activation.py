"""The function that bends each number of a feed-forward layer."""

from __future__ import annotations

import numpy as np

from foretell.insight.explain.flow import input_of
from foretell.insight.explain.linear import number
from foretell.insight.explain.place import Place, address_of
from foretell.insight.explain.recording import Recording
from foretell.insight.explain.steps import Equation, Working
from foretell.textbook.family import ACTIVATIONS
from foretell.typesetting.expression import Call, Expression, Fraction, Number, Root, Symbol, row, script

X = Symbol("x")
HALF = Fraction(X, Number(2))
ROOT = Root(Fraction(Number(2), Symbol("π")))
CUBIC = row(X, "+", Number(0.044715, 6), script("x", "", "3"))
FORMULAS: dict[str, Expression] = {  # by the configuration's name
    "gelu_tanh": row(HALF, "·", Call("", row(Number(1), "+", Call("tanh", row(ROOT, "·", Call("", CUBIC)))))),
    "gelu_erf": row(HALF, "·", Call("", row(Number(1), "+", Call("erf", Fraction(X, Root(Number(2))))))),
    "relu": Call("max", row(Number(0), ",", X)),
    "relu2": script(Call("max", row(Number(0), ",", X)), "", "2"),
    "silu": Fraction(X, row(Number(1), "+", script("e", "", "-x"))),
}


def explain_activation(recording: Recording, place: Place) -> Working:
    """f(x) of one number, by the configured formula."""
    kind = recording.config.activation
    source = input_of(recording.config, place.name)
    x = float(recording.array(source)[place.index])
    value = float(ACTIVATIONS[kind](np.array([x]))[0])
    steps = [
        Equation(row(Call(kind, X), "=", FORMULAS[kind]), value),
        Equation(row(Call(kind, number(x)), "=", number(value)), value, f"x = {address_of(source, *place.index)}"),
    ]
    return Working(list(steps), value, abs(x) + x * x)
