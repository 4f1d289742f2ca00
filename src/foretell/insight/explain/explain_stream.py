"""Explanations of embeddings, residual connections, and modules that change nothing."""

from __future__ import annotations

import math

from foretell.insight.explain.recording import Recording, TracedScalar, address_of
from foretell.insight.explain.steps import Equation, Remark, Working, numeral, plus
from foretell.typesetting.expression import Call, Expression, Fraction, Number, Symbol, row, script


def explain_token_vector(recording: Recording, scalar: TracedScalar) -> Working:
    """One number of the token's embedding."""
    position, element = scalar.index
    token_id = recording.ids_on(recording.dimensions(scalar.name)[0])[position]
    value = float(recording.weight(f"{scalar.name}.weight", token_id, element))
    path = f"{scalar.name}.weight"
    note = f"token {recording.named(token_id)} has id {token_id}; its vector is that row of {path}"
    entry = script("W", f"{token_id},{element}")
    equation = row(entry, "=", *quantized_terms(recording, path, (token_id, element)), numeral(value))
    return Working([Equation(equation, value, note)], value, 0.0)


def quantized_terms(recording: Recording, path: str, index: tuple[int, int]) -> list[Expression | str]:
    """`integer · scale =` of an entry of a quantised weight; nothing for a weight in floating point."""
    stored = {name: values[index[1]] for name, values in recording.stored_weight(path, index[0]).items()}
    if not stored:
        return []
    shift = plus(stored["minimum"]) if "minimum" in stored else ()
    return [Number(stored["integer"]), "·", numeral(stored["scale"]), *shift, "="]


def explain_scaled_token_vector(recording: Recording, scalar: TracedScalar) -> Working:
    """One number of the token's embedding, which may belong to another module, times a constant."""
    position, element = scalar.index
    meaning, scale = recording.dimensions(scalar.name)[0], float(recording.setting(scalar.value, "scale"))
    token_id, path = recording.ids_on(meaning)[position], recording.weight_path(scalar.value)
    stored = float(recording.weight(path, token_id, element))
    note = f"token {recording.token_on(meaning, position)} has id {token_id}; its vector is that row of {path}"
    entry = script("W", f"{token_id},{element}")
    equation = row(Number(scale), "·", entry, "=", Number(scale), "·", numeral(stored), "=", numeral(scale * stored))
    return Working([Equation(equation, scale * stored, note)], scale * stored, abs(scale * stored))


def explain_position_vector(recording: Recording, scalar: TracedScalar) -> Working:
    """One number of a learned position embedding."""
    position, element = scalar.index
    value = float(recording.weight(f"{scalar.name}.weight", position, element))
    note = f"the vector of position {position} is that row of {scalar.name}.weight"
    equation = row(script("W", f"{position},{element}"), "=", numeral(value))
    return Working([Equation(equation, value, note)], value, 0.0)


def explain_wave(recording: Recording, scalar: TracedScalar) -> Working:
    """One number of a sinusoidal position embedding: sin or cos of position / 10000^(2i/D)."""
    position, element = scalar.index
    width = recording.config.width
    pair = element - element % 2
    angle = position / 10_000 ** (pair / width)
    name, wave = (("sin", math.sin), ("cos", math.cos))[element % 2]
    power = script(Number(10_000), "", f"{pair}/{width}")
    equation = row(Call(name, Fraction(Number(position), power)), "=", Call(name, numeral(angle)), "=")
    note = f"element {element} is a {'sine' if name == 'sin' else 'cosine'}; it and its partner are pair {pair // 2}"
    return Working([Equation(row(*equation.items, numeral(wave(angle))), wave(angle), note)], wave(angle), 1 + angle)


def explain_sum(recording: Recording, scalar: TracedScalar) -> Working:
    """Token embedding plus position embedding, or the stream plus the update."""
    names, index = scalar.value.reads, scalar.index
    operands = {symbol: address_of(name, *index) for symbol, name in zip(("x", "y"), names, strict=True)}
    left, right = (float(recording.array(name)[index]) for name in names)
    equation = row(Symbol("x"), "+", Symbol("y"), "=", numeral(left), *plus(right), "=", numeral(left + right))
    return Working([Equation(equation, left + right, "", operands)], left + right, abs(left) + abs(right))


def explain_replacement(recording: Recording, scalar: TracedScalar) -> Working:
    """The update alone, without a residual connection."""
    _, update = scalar.value.reads
    value = float(recording.array(update)[scalar.index])
    remark = Remark(f"Without a residual connection the stream is replaced by {address_of(update, *scalar.index)}.")
    return Working([remark, Equation(row(Symbol("x"), "=", numeral(value)), value)], value, 0.0)


def explain_identity(recording: Recording, scalar: TracedScalar) -> Working:
    """The unchanged input of a module that does nothing: an absent norm, projection or dropout."""
    name, index = input_and_index(recording, scalar)
    value = float(recording.array(name)[index])
    remark = Remark(f"{scalar.name} does nothing in this model; the value is {address_of(name, *index)}.")
    return Working([remark, Equation(row(Symbol("x"), "=", numeral(value)), value)], value, 0.0)


def input_and_index(recording: Recording, scalar: TracedScalar) -> tuple[str, tuple[int, ...]]:
    """Name and index of the same number in the module's input, where heads may be concatenated or split."""
    name, width = scalar.source, recording.config.head_width
    has_heads, reads_heads = (len(recording.dimensions(other)) == 3 for other in (scalar.name, name))
    if reads_heads and not has_heads:
        position, element = scalar.index
        return name, (element // width, position, element % width)
    if has_heads and not reads_heads:
        head, position, element = scalar.index
        return name, (position, head * width + element)
    return name, scalar.index
