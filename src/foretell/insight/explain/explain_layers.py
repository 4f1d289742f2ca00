"""Explanations of embeddings, linear layers, norms and the residual stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from foretell.insight.address import address_of
from foretell.insight.explain.explain_activation import explain_activation
from foretell.insight.explain.steps import (
    DIGITS,
    Column,
    Explainer,
    Listing,
    Working,
    applied,
    equals,
    factor,
    mean_equation,
    multiply_out,
    plus,
    scale_of,
    unchanged,
    written,
)
from foretell.insight.recorded_pass import Array, RecordedPass, TracedScalar
from foretell.model.structure import Value
from foretell.numerics.norms import NORMS, Norm
from foretell.typesetting.expression import Call, Fraction, Number, Root, Symbol, script


def stored_terms(recording: RecordedPass, path: str, row: int, column: int) -> list[str | float]:
    """The formula of a quantised weight with its stored numbers; empty for any other weight."""
    stored = {name: values[column] for name, values in recording.stored_weight(path, row).items()}
    if not stored:
        return []
    return ["=", stored["integer"], "·", stored["scale"], *(plus(stored["minimum"]) if "minimum" in stored else ())]


def explain_token_vector(recording: RecordedPass, scalar: TracedScalar) -> Working:
    path, (token_id, element), note = embedding_row(recording, scalar)
    value = float(recording.weight(path, token_id, element))
    terms = stored_terms(recording, path, token_id, element)
    return Working([equals(value, script("W", f"{token_id},{element}"), *terms, note=note)], value, 0.0)


def explain_scaled_token_vector(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """An element of the token's embedding, times a constant."""
    path, (token_id, element), note = embedding_row(recording, scalar)
    scale = float(recording.setting(scalar.value, "scale"))
    stored = float(recording.weight(path, token_id, element))
    entry, value = script("W", f"{token_id},{element}"), scale * stored
    equation = equals(value, Number(scale), "·", entry, "=", Number(scale), "·", stored, note=note)
    return Working([equation], value, abs(value))


def embedding_row(recording: RecordedPass, scalar: TracedScalar) -> tuple[str, tuple[int, int], str]:
    """Path and index of the weight that a token's vector is read from, and a note with the token."""
    position, element = scalar.index
    meaning, path = recording.dimensions(scalar.name)[0], recording.weight_path(scalar.value)
    token_id = recording.ids_on(meaning)[position]
    note = f"token {recording.token_on(meaning, position)} has id {token_id}; its vector is that row of {path}"
    return path, (token_id, element), note


def explain_position_vector(recording: RecordedPass, scalar: TracedScalar) -> Working:
    position, element = scalar.index
    value = float(recording.weight(f"{scalar.name}.weight", position, element))
    note = f"the vector of position {position} is that row of {scalar.name}.weight"
    return Working([equals(value, script("W", f"{position},{element}"), note=note)], value, 0.0)


def explain_wave(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """An element of a sinusoidal position embedding: sin or cos of position / 10000^(2i/D)."""
    position, element = scalar.index
    width = recording.config.width
    pair = element - element % 2
    angle = position / 10_000 ** (pair / width)
    name, word, wave = (("sin", "sine", math.sin), ("cos", "cosine", math.cos))[element % 2]
    value = wave(angle)
    power = script(Number(10_000), "", f"{pair}/{width}")
    call = Call(name, Fraction(Number(position), power))
    note = f"element {element} is a {word}; it and its partner are pair {pair // 2}"
    return Working([equals(value, call, "=", applied(name, angle), note=note)], value, 1 + angle)


def explain_sum(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """Token embedding plus position embedding, or the stream plus the update."""
    names, index = scalar.value.reads, scalar.index
    operands = {symbol: address_of(name, *index) for symbol, name in zip(("x", "y"), names, strict=True)}
    left, right = (float(recording.array(name)[index]) for name in names)
    equation = equals(left + right, "x + y =", left, *plus(right), operands=operands)
    return Working([equation], left + right, abs(left) + abs(right))


def explain_replacement(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The update, without a residual connection."""
    _, update = scalar.value.reads
    source = address_of(update, *scalar.index)
    value = float(recording.array(update)[scalar.index])
    return unchanged(f"Without a residual connection the stream is replaced by {source}.", value)


def explain_identity(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The unchanged input of a module without effect: an absent norm or projection, or dropout."""
    name, index = input_and_index(recording, scalar)
    remark = f"{scalar.name} does nothing in this model; the value is {address_of(name, *index)}."
    return unchanged(remark, float(recording.array(name)[index]))


def input_and_index(recording: RecordedPass, scalar: TracedScalar) -> tuple[str, tuple[int, ...]]:
    """Name and index of the same number in the module's input, whose heads may be concatenated or split."""
    name, width = scalar.source, recording.config.head_width
    has_heads, reads_heads = (len(recording.dimensions(other)) == 3 for other in (scalar.name, name))
    if reads_heads and not has_heads:
        position, element = scalar.index
        return name, (element // width, position, element % width)
    if has_heads and not reads_heads:
        head, position, element = scalar.index
        return name, (position, head * width + element)
    return name, scalar.index


def explain_linear(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """w · x + b, where w is a row of a weight (outputs, inputs) and x the layer's input at this position.

    The weight is the layer's own or, in a tied head, the token embedding's.
    """
    position, output = scalar.index
    x, source = read_input(recording, scalar, position)
    weight = recording.weight_path(scalar.value)
    operands = {"w": address_of(weight, output, ":"), "x": source}
    stored = recording.stored_weight(weight, output)
    products = multiply_out(operands, {"w": recording.weight(weight, output), "x": x}, how_stored(stored), stored)
    total = products.sums["w · x"]
    # Kernels accumulate in float32 or better, so only the sum is rounded further
    kernel_epsilon = torch.finfo(torch.float32).eps / torch.finfo(recording.model.dtype).eps
    return affine(recording, scalar, products, abs(total) + scale_of(products) * min(1.0, kernel_epsilon))


def explain_gated(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The down projection of a gated feed-forward layer, whose input is the product g · u."""
    position, output = scalar.index
    gate, up = scalar.value.reads
    weight = recording.weight_path(scalar.value)
    g, u = recording.array(gate)[position], recording.array(up)[position]
    w, stored = recording.weight(weight, output), recording.stored_weight(weight, output)
    operands = {
        "g": address_of(gate, position, ":"),
        "u": address_of(up, position, ":"),
        "w": address_of(weight, output, ":"),
    }
    columns = {"element": range(len(g)), "g": g, "u": u, "x = g · u": g * u, **stored, "w": w, "w · x": w * g * u}
    products = Listing(how_stored(stored), columns, ("w · x",), operands=operands)
    return affine(recording, scalar, products, scale_of(products))


def how_stored(stored: Mapping[str, Column]) -> str:
    """The formula of a quantised weight; empty for a floating-point weight."""
    if not stored:
        return ""
    return "w = integer · scale + minimum" if "minimum" in stored else "w = integer · scale"


def affine(recording: RecordedPass, scalar: TracedScalar, products: Listing, scale: float) -> Working:
    """The sum of the products w · x, plus any bias. scale: the scale of the sum, as in `Working`."""
    bias, output, total = f"{scalar.name}.bias", scalar.index[1], products.sums["w · x"]
    if recording.parameter(bias) is None:
        return Working([products, equals(total, "y = w · x")], total, scale)
    shift = float(recording.weight(bias, output))
    note = f"b = {address_of(bias, output)}"
    equation = equals(total + shift, "y = w · x + b =", total, *plus(shift), note=note)
    return Working([products, equation], equation.value, scale + abs(shift))


def read_input(recording: RecordedPass, scalar: TracedScalar, position: int) -> tuple[Array, str]:
    """The input vector of a scalar's module at a position, and its address."""
    source = scalar.source
    array = recording.array(source)
    if "H" in recording.value(source).dims:  # heads are concatenated
        return array[:, position].reshape(-1), f"{source}[:,{position},:], all heads concatenated"
    return array[position], address_of(source, position, ":")


def statistic_of(norm: Norm, name: str, x: Array, source: str) -> Working:
    """A statistic of a vector x (D,) with the address `source`."""
    statistic, title = norm.statistics[name], Symbol(name.replace("_", " "))
    columns = {"element": range(len(x)), **statistic.columns(x)}
    terms = list(columns)[-1]
    if statistic.is_largest:
        row = int(np.argmax(columns[terms]))
        listing = Listing("", columns, focus=row, operands={"x": source})
        equation = equals(float(columns[terms][row]), title, "= max", Symbol(terms), note=f"of element {row}")
        return Working([listing, equation], equation.value, abs(equation.value))
    listing = Listing("", columns, ("x", terms) if statistic.is_centered else (terms,), operands={"x": source})
    equation = mean_equation(listing, title, "=")
    scale = math.fsum(np.abs(columns[terms])) / len(x)
    if not statistic.is_centered:
        return Working([listing, equation], equation.value, scale)
    mean = statistic_of(norm, "mean", x, source)
    # An error of epsilon max|x| in the mean changes each square by twice this error times the root of the square
    scale += 2 * float(np.abs(x).max() * np.abs(x - mean.value).mean())
    return Working([listing, mean.steps[-1], equation], equation.value, scale)


def read_vector(recording: RecordedPass, scalar: TracedScalar, index: tuple[int, ...]) -> tuple[Array, str]:
    """The input vector of a norm at one position, or a head's slice of it, and its address."""
    *heads, position = index
    if not heads:
        return read_input(recording, scalar, position)
    source, width = scalar.source, recording.config.head_width
    first = heads[0] * width
    return recording.array(source)[position, first : first + width], f"{source}[{position},{first}:{first + width}]"


def explain_statistic(recording: RecordedPass, scalar: TracedScalar, norm: Norm) -> Working:
    return statistic_of(norm, scalar.value.formula, *read_vector(recording, scalar, scalar.index))


def explain_norm(recording: RecordedPass, scalar: TracedScalar, norm: Norm) -> Working:
    """(x - mean) / sqrt(spread + epsilon) · γ + β; some norms have no mean, root or β."""
    *index, element = scalar.index
    x, source = read_vector(recording, scalar, tuple(index))
    spread = statistic_of(norm, norm.spread, x, source)
    mean = float(x.mean()) if norm.is_centered else 0.0
    epsilon = recording.setting(scalar.value, "eps")
    inner = written(spread.value, "+", epsilon)
    divisor = math.sqrt(spread.value + epsilon) if norm.has_root else spread.value + epsilon
    unit = (float(x[element]) - mean) / divisor
    gain = norm.weight_offset + float(recording.weight(recording.weight_path(scalar.value), element))
    bias = f"{scalar.name}.bias"
    has_bias = recording.parameter(bias) is not None
    shift = float(recording.weight(bias, element)) if has_bias else 0.0
    value = unit * gain + shift
    centered = written(float(x[element]), *([] if mean == 0.0 else plus(-mean)))
    normalized = Fraction(centered, Root(inner) if norm.has_root else inner)
    shifted = f", then shifted by {address_of(bias, element)}" if has_bias else ""
    note = f"scaled by {gain_of(norm, address_of(f'{scalar.name}.weight', element))}{shifted}"
    inside = f"element {element}, epsilon inside the root" if norm.has_root else f"element {element}"
    steps = [
        *spread.steps,
        equals(unit, "unit =", normalized, note=inside),
        equals(value, "y =", unit, "·", factor(gain), *(plus(shift) if has_bias else ()), note=note),
    ]
    # An error of one epsilon of the largest element in the mean changes the difference and, through the spread, the
    # divisor
    lost = float(np.abs(x).max()) / divisor * (1 + abs(unit))
    return Working(steps, value, abs(gain) * (lost + 2 * abs(unit)) + abs(shift))


def gain_of(norm: Norm, address: str) -> str:
    """The scale of an element in words, from the address of its weight."""
    return f"{norm.weight_offset:g} + {address}" if norm.weight_offset else address


def explain_norm_divisor(recording: RecordedPass, scalar: TracedScalar) -> Working:
    spread, norm = recording.structure[scalar.source], norm_of(recording, scalar.value)
    working = explain_statistic(recording, TracedScalar(spread, scalar.index), norm)
    value = divisor_of(recording, scalar, working.value)
    inner = written(working.value, "+", recording.setting(spread, "eps"))
    note = f"{spread.formula.replace('_', ' ')} = {address_of(spread.name, *scalar.index)}, plus epsilon"
    equation = equals(value, "divisor =", Root(inner) if norm.has_root else inner, note=note)
    # The root halves a relative error, and epsilon makes it smaller
    scale = value + working.scale / (value if norm.has_root else 1)
    return Working([*working.steps, equation], value, scale)


def divisor_of(recording: RecordedPass, scalar: TracedScalar, spread: float) -> float:
    total = spread + float(recording.setting(recording.structure[scalar.source], "eps"))
    return math.sqrt(total) if norm_of(recording, scalar.value).has_root else total


def norm_of(recording: RecordedPass, value: Value) -> Norm:
    """The norm of its output, or of an implied value of it."""
    formula = recording.structure[value.module].formula
    return next(norm for norm in NORMS.values() if norm.formula == formula)


def explain_vector_norm(recording: RecordedPass, scalar: TracedScalar) -> Working:
    x = recording.array(scalar.source)[scalar.index]
    columns = {"element": range(len(x)), "x": x, "x²": x**2}
    listing = Listing("", columns, ("x²",), operands={"x": address_of(scalar.source, *scalar.index, ":")})
    value = math.sqrt(listing.sums["x²"])
    return Working([listing, equals(value, "norm =", Root(Number(listing.sums["x²"], DIGITS)))], value, 8 * value)


def norm_explainer(formula: str) -> Explainer | None:
    """The explanation of a norm or its statistics; None for any other formula."""
    for norm in NORMS.values():
        if formula == norm.formula:
            return partial(explain_norm, norm=norm)
        if formula in norm.statistics:
            return partial(explain_statistic, norm=norm)
    return None


LAYER_EXPLAINERS: dict[str, Explainer] = {
    "token vector": explain_token_vector,
    "scaled token vector": explain_scaled_token_vector,
    "position vector": explain_position_vector,
    "sinusoid": explain_wave,
    "token plus position": explain_sum,
    "residual": explain_sum,
    "replacement": explain_replacement,
    "identity": explain_identity,
    "linear": explain_linear,
    "tied linear": explain_linear,
    "gated linear": explain_gated,
    "activation": explain_activation,
    "vector norm": explain_vector_norm,
    "divisor of a norm": explain_norm_divisor,
}
