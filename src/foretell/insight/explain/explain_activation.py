"""Explanations of activation functions: the formula of each, and one number of it."""

from __future__ import annotations

import copy

import numpy as np
import torch

from foretell.insight.address import address_of
from foretell.insight.explain.steps import Equation, Working, applied, equals, written
from foretell.insight.recorded_pass import RecordedPass, TracedScalar
from foretell.numerics.activations import ACTIVATIONS, activation_name
from foretell.typesetting.expression import Call, Expression, Fraction, Number, Root, Symbol, row, script

X, ONE, ZERO = Symbol("x"), Number(1), Number(0)
HALF = Fraction(X, Number(2))
CUBIC = row(X, "+", Number(0.044715, 6), script("x", "", "3"))
TANH = Call("tanh", row(Root(Fraction(Number(2), Symbol("π"))), "·", Call("", CUBIC)))
RECTIFIED = Call("max", row(ZERO, ",", X))

FORMULAS = {
    "gelu_tanh": row(HALF, "·", Call("", row(ONE, "+", TANH))),
    "gelu_erf": row(HALF, "·", Call("", row(ONE, "+", Call("erf", Fraction(X, Root(Number(2))))))),
    "relu": RECTIFIED,
    "relu2": script(RECTIFIED, "", "2"),
    "silu": Fraction(X, row(ONE, "+", script("e", "", "-x"))),
}


def explain_activation(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """f(x) of one number: by the textbook's formula, or by running the module in float64 if its class is not known."""
    module, array = recording.module(scalar.value), recording.array(scalar.source)
    x = float(array[scalar.index])
    if name := activation_name(module):
        value = float(ACTIVATIONS[name].compute(np.array([x]))[0])
        return written_out(scalar, name, FORMULAS[name], (x, value))
    module = copy.deepcopy(module).cpu().double()
    with torch.no_grad():
        value = float(module(torch.from_numpy(array)[None])[0][scalar.index])
    written = recording.structure.descriptions[scalar.value.module].written
    return written_out(scalar, type(module).__name__, Symbol(written) if written else None, (x, value))


def written_out(scalar: TracedScalar, kind: str, terms: Expression | None, numbers: tuple[float, float]) -> Working:
    """The equations of an activation: its definition, if known, and its input and output as numbers."""
    x, value = numbers
    definition = [] if terms is None else [Equation(written(Call(kind, Symbol("x")), "=", terms), value)]
    equation = equals(value, applied(kind, x), note=f"x = {address_of(scalar.source, *scalar.index)}")
    return Working([*definition, equation], value, abs(x) + x * x)
