"""Explanations of linear layers, the tied head, and activation functions."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch

from foretell.insight.explain.recording import Array, Recording, TracedScalar, address_of
from foretell.insight.explain.steps import (
    Column,
    Equation,
    Listing,
    Step,
    Working,
    multiply_out,
    numeral,
    plus,
    scale_of,
)
from foretell.textbook.family import ACTIVATIONS
from foretell.typesetting.expression import Call, Expression, Fraction, Number, Root, Symbol, row, script


def explain_linear(recording: Recording, scalar: TracedScalar) -> Working:
    """w · x + b, where w is one row of a weight (outputs, inputs) and x the layer's input at this position.

    The weight is the layer's own or, in a tied head, the token embedding's.
    """
    position, output = scalar.index
    x, source = read_input(recording, scalar, position)
    weight = recording.weight_path(scalar.value)
    operands = {"w": address_of(weight, output), "x": source}
    w = recording.weight(weight, output)
    stored = recording.stored_weight(weight, output)
    products, total = multiply_out(operands, {"w": w, "x": x}, how_stored(stored), stored)
    return affine(recording, scalar, products, total, precise_scale(recording, products, total))


def explain_gated(recording: Recording, scalar: TracedScalar) -> Working:
    """The down projection of a gated feed-forward layer, whose input is the product g · u."""
    position, output = scalar.index
    gate, up = scalar.value.reads
    weight = recording.weight_path(scalar.value)
    g, u = recording.array(gate)[position], recording.array(up)[position]
    w = recording.weight(weight, output)
    operands = {"g": address_of(gate, position), "u": address_of(up, position), "w": address_of(weight, output)}
    stored = recording.stored_weight(weight, output)
    columns = {"element": range(len(g)), "g": g, "u": u, "x = g · u": g * u, **stored, "w": w, "w · x": w * g * u}
    products = Listing(how_stored(stored), columns, ("w · x",), operands=operands)
    return affine(recording, scalar, products, products.sums["w · x"], scale_of(products))


def how_stored(stored: Mapping[str, Column]) -> str:
    """How a quantised weight follows from what is stored; empty for a weight in floating point."""
    if not stored:
        return ""
    return "w = integer · scale + minimum" if "minimum" in stored else "w = integer · scale"


def affine(recording: Recording, scalar: TracedScalar, products: Listing, total: float, scale: float) -> Working:
    """The sum of the products, plus the bias if there is one; `scale` is that of `Working`."""
    bias, output = f"{scalar.name}.bias", scalar.index[1]
    if recording.parameter(bias) is None:
        formula = row(Symbol("y"), "=", Symbol("w"), "·", Symbol("x"), "=", numeral(total))
        return Working([products, Equation(formula, total)], total, scale)
    shift = float(recording.weight(bias, output))
    terms = (Symbol("y"), "=", Symbol("w"), "·", Symbol("x"), "+", Symbol("b"))
    formula = row(*terms, "=", numeral(total), *plus(shift), "=", numeral(total + shift))
    note = f"b = {address_of(bias, output)}"
    steps: list[Step] = [products, Equation(formula, total + shift, note)]
    return Working(steps, total + shift, scale + abs(shift))


def precise_scale(recording: Recording, products: Listing, total: float) -> float:
    """The scale of a dot product in a kernel that accumulates in float32 or better: only the sum is rounded further."""
    epsilon = torch.finfo(recording.model.dtype).eps
    return abs(total) + scale_of(products) * min(1.0, torch.finfo(torch.float32).eps / epsilon)


def read_input(recording: Recording, scalar: TracedScalar, position: int) -> tuple[Array, str]:
    """The input vector of a scalar's module at a position, and its address."""
    source = scalar.source
    array = recording.array(source)
    if "H" in recording.value(source).dims:  # heads are concatenated
        return array[:, position].reshape(-1), f"{address_of(source)[:-2]}[:,{position},:], all heads concatenated"
    return array[position], f"{source}[{position}]"


X = Symbol("x")
HALF = Fraction(X, Number(2))
ROOT = Root(Fraction(Number(2), Symbol("π")))
CUBIC = row(X, "+", Number(0.044715, 6), script("x", "", "3"))
ACTIVATION_TERMS: dict[str, Expression] = {
    "gelu_tanh": row(HALF, "·", Call("", row(Number(1), "+", Call("tanh", row(ROOT, "·", Call("", CUBIC)))))),
    "gelu_erf": row(HALF, "·", Call("", row(Number(1), "+", Call("erf", Fraction(X, Root(Number(2))))))),
    "relu": Call("max", row(Number(0), ",", X)),
    "relu2": script(Call("max", row(Number(0), ",", X)), "", "2"),
    "silu": Fraction(X, row(Number(1), "+", script("e", "", "-x"))),
}


def explain_activation(recording: Recording, scalar: TracedScalar) -> Working:
    """f(x) of one number, with an activation function that the textbook has."""
    return apply_activation(recording, scalar, scalar.value.formula)


def explain_gelu(recording: Recording, scalar: TracedScalar) -> Working:
    """GELU of one number, exact or with its tanh approximation."""
    is_approximate = recording.setting(scalar.value, "approximate") == "tanh"
    return apply_activation(recording, scalar, "gelu_tanh" if is_approximate else "gelu_erf")


def apply_activation(recording: Recording, scalar: TracedScalar, kind: str) -> Working:
    """The textbook's activation function of this name, of one number."""
    x = float(recording.array(scalar.source)[scalar.index])
    value = float(ACTIVATIONS[kind](np.array([x]))[0])
    return written_out(scalar, kind, ACTIVATION_TERMS[kind], (x, value))


def explain_own_activation(recording: Recording, scalar: TracedScalar) -> Working:
    """f(x) of one number, with a module that declares itself an activation: it runs again, in float64."""
    module = copy.deepcopy(recording.module(scalar.value)).cpu().double()
    array = recording.array(scalar.source)
    with torch.no_grad():
        value = float(module(torch.from_numpy(array)[None])[0][scalar.index])
    kind = type(module).__name__
    written = recording.structure.descriptions[scalar.value.module].written
    return written_out(scalar, kind, Symbol(written) if written else None, (float(array[scalar.index]), value))


def written_out(scalar: TracedScalar, kind: str, terms: Expression | None, numbers: tuple[float, float]) -> Working:
    """The equations of an activation: its definition, if there is one, and its input and output as numbers."""
    x, value = numbers
    note = f"x = {address_of(scalar.source, *scalar.index)}"
    steps: list[Step] = [Equation(row(Call(kind, X), "=", terms), value)] if terms is not None else []
    steps.append(Equation(row(Call(kind, numeral(x)), "=", numeral(value)), value, note))
    return Working(steps, value, abs(x) + x * x)
