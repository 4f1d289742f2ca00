"""Dot products: linear layers, and the head that reads the embedding's weight."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from foretell.insight.explain.flow import input_of
from foretell.insight.explain.place import Place, address_of
from foretell.insight.explain.recording import Array, Recording, to_array
from foretell.insight.explain.steps import DIGITS, Equation, Listing, Step, Working
from foretell.typesetting.expression import Expression, Number, Symbol, row


def explain_linear(recording: Recording, place: Place) -> Working:
    """w · x + b, with one row of the layer's own weight."""
    return explain_row(recording, place, place.module.weight, f"{place.name}.weight")


def explain_tied_head(recording: Recording, place: Place) -> Working:
    """The same with a row of the token embedding."""
    return explain_row(recording, place, place.module.tied[0].weight, "embed.token.weight")


def explain_row(recording: Recording, place: Place, weight: Tensor, weight_name: str) -> Working:
    """w · x + b: w one row of a weight (outputs, inputs), x what the layer reads at this position."""
    position, output = place.index
    x, source = read_input(recording, place.name, position)
    operands = {"w": address_of(weight_name, output), "x": source}
    products, total = multiply_out(operands, {"w": to_array(weight[output]), "x": x})
    bias = place.module.bias
    if bias is None:
        formula = row(Symbol("y"), "=", Symbol("w"), "·", Symbol("x"), "=", number(total))
        return Working([products, Equation(formula, total)], total, scale_of(products))
    shift = float(to_array(bias[output]))
    note = f"b = {address_of(f'{place.name}.bias', output)}"
    numbers = row(number(total), "+", number(shift), "=", number(total + shift))
    formula = row(Symbol("y"), "=", Symbol("w"), "·", Symbol("x"), "+", Symbol("b"), "=", *numbers.items)
    steps: list[Step] = [products, Equation(formula, total + shift, note)]
    return Working(steps, total + shift, scale_of(products) + abs(shift))


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


def read_input(recording: Recording, path: str, position: int) -> tuple[Array, str]:
    """What the module at `path` reads at a position, and where that is from."""
    source = input_of(recording.config, path)
    value = recording.array(source)
    if source.endswith(".core"):  # heads side by side
        return value[:, position].reshape(-1), f"{address_of(source)[:-2]}[:,{position},:], all heads side by side"
    if path.endswith("feedforward.down") and recording.config.feedforward == "gated":
        up = source.replace("activation", "up")
        gated = f"{source}[{position}] · {up}[{position}], element by element"
        return value[position] * recording.array(up)[position], gated
    return value[position], f"{source}[{position}]"


def number(value: float) -> Expression:
    """A number of a step."""
    return Number(float(value), DIGITS)
