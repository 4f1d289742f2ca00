"""Dot products: linear layers, and the head that reads the embedding's weight."""

from __future__ import annotations

import math

import numpy as np
import torch

from foretell.insight.explain.arrays import Array
from foretell.insight.explain.flow import input_of
from foretell.insight.explain.place import Place, address_of
from foretell.insight.explain.recording import Recording
from foretell.insight.explain.steps import DIGITS, Equation, Listing, Step, Working
from foretell.typesetting.expression import Call, Expression, Number, Symbol, row


def explain_linear(recording: Recording, place: Place) -> Working:
    """w · x + b, with one row of the layer's own weight."""
    return explain_row(recording, place, f"{place.name}.weight")


def explain_tied_head(recording: Recording, place: Place) -> Working:
    """The same with a row of the token embedding."""
    return explain_row(recording, place, "embed.token.weight")


def explain_row(recording: Recording, place: Place, weight: str) -> Working:
    """w · x + b: w one row of a weight (outputs, inputs), x what the layer reads at this position."""
    position, output = place.index
    x, source = read_input(recording, place.name, position)
    operands = {"w": address_of(weight, output), "x": source}
    w = recording.weight(weight, output)
    products, total = multiply_out(operands, {"w": w, "x": x})
    return affine(recording, place, products, total, precise_scale(recording, products, total))


def explain_gated(recording: Recording, place: Place) -> Working:
    """The last layer of a gated feed-forward layer: what it reads is a product itself."""
    position, output = place.index
    source = input_of(recording.config, place.name)
    gate, up = source, source.replace("activation", "up")
    g, u = recording.array(gate)[position], recording.array(up)[position]
    w = recording.weight(f"{place.name}.weight", output)
    operands = {
        "g": address_of(gate, position),
        "u": address_of(up, position),
        "w": address_of(f"{place.name}.weight", output),
    }
    columns = {"element": range(len(g)), "g": g, "u": u, "x = g · u": g * u, "w": w, "w · x": w * g * u}
    products = Listing("", columns, ("w · x",), operands=operands)
    return affine(recording, place, products, products.sums["w · x"], scale_of(products))


def affine(recording: Recording, place: Place, products: Listing, total: float, scale: float) -> Working:
    """The products added up, on the `scale` of which rounding may change their sum, and the bias where there is one."""
    bias, output = f"{place.name}.bias", place.index[1]
    if recording.parameter(bias) is None:
        formula = row(Symbol("y"), "=", Symbol("w"), "·", Symbol("x"), "=", number(total))
        return Working([products, Equation(formula, total)], total, scale)
    shift = float(recording.weight(bias, output))
    terms = (Symbol("y"), "=", Symbol("w"), "·", Symbol("x"), "+", Symbol("b"))
    formula = row(*terms, "=", number(total), *plus(shift), "=", number(total + shift))
    note = f"b = {address_of(bias, output)}"
    steps: list[Step] = [products, Equation(formula, total + shift, note)]
    return Working(steps, total + shift, scale + abs(shift))


def multiply_out(operands: dict[str, str], factors: dict[str, Array], note: str = "") -> tuple[Listing, float]:
    """The products of two vectors one by one, and their sum."""
    (left_name, left), (right_name, right) = factors.items()
    product = f"{left_name} · {right_name}"
    columns = {"element": range(len(left)), left_name: left, right_name: right, product: left * right}
    listing = Listing(note, columns, (product,), operands=operands)
    return listing, listing.sums[product]


def scale_of(products: Listing) -> float:
    """The sum of the sizes of what a listing adds up."""
    return math.fsum(float(np.abs(products.columns[name]).sum()) for name in products.summed)


def precise_scale(recording: Recording, products: Listing, total: float) -> float:
    """The same for products of stored numbers, which kernels add up in float32 or better: the sum alone is rounded."""
    epsilon = torch.finfo(recording.model.dtype).eps
    return abs(total) + scale_of(products) * min(1.0, torch.finfo(torch.float32).eps / epsilon)


def read_input(recording: Recording, path: str, position: int) -> tuple[Array, str]:
    """What the module at `path` reads at a position, and where that is from."""
    source = input_of(recording.config, path)
    value = recording.array(source)
    if source.endswith(".core"):  # heads side by side
        return value[:, position].reshape(-1), f"{address_of(source)[:-2]}[:,{position},:], all heads side by side"
    return value[position], f"{source}[{position}]"


def factor(value: float) -> Expression:
    """A number after an operator: in parentheses where it is negative."""
    return Call("", number(value)) if value < 0 else number(value)


def plus(value: float) -> tuple[str, Expression]:
    """What adding a number looks like: `+ 1.5`, `- 1.5`."""
    return ("-", number(-value)) if value < 0 else ("+", number(value))


def number(value: float) -> Expression:
    """A number of a step."""
    return Number(float(value), DIGITS)
