"""Explanations of linear layers, the tied head, and activation functions."""

from __future__ import annotations

import numpy as np
import torch

from foretell.insight.explain.flow import input_of
from foretell.insight.explain.recording import Array, Recording, TracedScalar, address_of
from foretell.insight.explain.steps import (
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
    """w · x + b, with one row of the layer's own weight."""
    return explain_row(recording, scalar, f"{scalar.name}.weight")


def explain_tied_head(recording: Recording, scalar: TracedScalar) -> Working:
    """w · x + b, with one row of the token embedding."""
    return explain_row(recording, scalar, "embed.token.weight")


def explain_row(recording: Recording, scalar: TracedScalar, weight: str) -> Working:
    """w · x + b, where w is one row of a weight (outputs, inputs) and x the layer's input at this position."""
    position, output = scalar.index
    x, source = read_input(recording, scalar.name, position)
    operands = {"w": address_of(weight, output), "x": source}
    w = recording.weight(weight, output)
    products, total = multiply_out(operands, {"w": w, "x": x})
    return affine(recording, scalar, products, total, precise_scale(recording, products, total))


def explain_gated(recording: Recording, scalar: TracedScalar) -> Working:
    """The down projection of a gated feed-forward layer, whose input is the product g · u."""
    position, output = scalar.index
    source = input_of(recording.config, scalar.name)
    gate, up = source, source.replace("activation", "up")
    g, u = recording.array(gate)[position], recording.array(up)[position]
    w = recording.weight(f"{scalar.name}.weight", output)
    operands = {
        "g": address_of(gate, position),
        "u": address_of(up, position),
        "w": address_of(f"{scalar.name}.weight", output),
    }
    columns = {"element": range(len(g)), "g": g, "u": u, "x = g · u": g * u, "w": w, "w · x": w * g * u}
    products = Listing("", columns, ("w · x",), operands=operands)
    return affine(recording, scalar, products, products.sums["w · x"], scale_of(products))


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


def read_input(recording: Recording, path: str, position: int) -> tuple[Array, str]:
    """The input vector of the module at `path` at a position, and its address."""
    source = input_of(recording.config, path)
    value = recording.array(source)
    if source.endswith(".core"):  # heads are concatenated
        return value[:, position].reshape(-1), f"{address_of(source)[:-2]}[:,{position},:], all heads concatenated"
    return value[position], f"{source}[{position}]"


X = Symbol("x")
HALF = Fraction(X, Number(2))
ROOT = Root(Fraction(Number(2), Symbol("π")))
CUBIC = row(X, "+", Number(0.044715, 6), script("x", "", "3"))
FORMULAS: dict[str, Expression] = {  # by the configuration's `activation`
    "gelu_tanh": row(HALF, "·", Call("", row(Number(1), "+", Call("tanh", row(ROOT, "·", Call("", CUBIC)))))),
    "gelu_erf": row(HALF, "·", Call("", row(Number(1), "+", Call("erf", Fraction(X, Root(Number(2))))))),
    "relu": Call("max", row(Number(0), ",", X)),
    "relu2": script(Call("max", row(Number(0), ",", X)), "", "2"),
    "silu": Fraction(X, row(Number(1), "+", script("e", "", "-x"))),
}


def explain_activation(recording: Recording, scalar: TracedScalar) -> Working:
    """f(x) of one number, with the configured activation function."""
    kind = recording.config.activation
    source = input_of(recording.config, scalar.name)
    x = float(recording.array(source)[scalar.index])
    value = float(ACTIVATIONS[kind](np.array([x]))[0])
    steps = [
        Equation(row(Call(kind, X), "=", FORMULAS[kind]), value),
        Equation(row(Call(kind, numeral(x)), "=", numeral(value)), value, f"x = {address_of(source, *scalar.index)}"),
    ]
    return Working(list(steps), value, abs(x) + x * x)
