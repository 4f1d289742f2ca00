"""Gradients of values by the chain rule: a sum over the values that read a value, of their gradient times a derivative.

Each backward rule that a module's class declares has a function here. It explains the part of a gradient that comes
through one value that reads it; `gradients_of_weights.py` has the gradients of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from foretell.insight.address import address_of
from foretell.insight.explain.activation_gradients import through_activation
from foretell.insight.explain.core_gradients import core_of, gradient_address, sum_of_products, through_attention
from foretell.insight.explain.explain_attention import angles_of
from foretell.insight.explain.explain_distribution import Distribution
from foretell.insight.explain.explain_layers import gain_of, norm_of, read_vector
from foretell.insight.explain.steps import (
    Remark,
    Step,
    Working,
    equals,
    factor,
    plus,
    unchanged,
    written,
)
from foretell.insight.gradient_pass import MEAN_LOSS, GradientPass, Target
from foretell.insight.recorded_pass import Array, TracedScalar
from foretell.insight.trace import GRADIENT
from foretell.model.decoder import HEAD
from foretell.model.description import PASSED_BACK, RETURNED
from foretell.model.structure import Structure, Value
from foretell.typesetting.expression import Call, Fraction, Number

Index = tuple[int, ...]
ROTATED_BACK = "rotated back"
Rule = Callable[[GradientPass, Value, str, Index], Working]  # of a number of a value, through a value that reads it


def leading_to(structure: Structure, target: str) -> set[str]:
    """The values that the target is computed from, and itself."""
    leading, waiting = set[str](), [target]
    while waiting:
        name = waiting.pop()
        if name in structure.values and name not in leading:
            leading.add(name)
            waiting += inputs_of(structure[name])
    return leading


def inputs_of(value: Value) -> tuple[str, ...]:
    """The values that a value depends on: without a residual connection, only the update."""
    return value.reads[-1:] if value.formula == "replacement" else value.reads


def same_tensor(structure: Structure, name: str) -> list[str]:
    """The names of one tensor, which modules without effect return as it is; it has one gradient."""
    value, origin = structure[name], structure.origin(name)
    return [
        each for each in structure.values if structure.origin(each) == origin and structure[each].dims == value.dims
    ]


def readers(structure: Structure, name: str, target: str) -> list[Value]:
    """The values that read a value's tensor and lead to the target; for a stage of attention, its core."""
    names, leading = same_tensor(structure, name), leading_to(structure, target)
    reading = [
        value.name
        for value in structure.values.values()
        if value.name in leading and value.name not in names and not set(names).isdisjoint(inputs_of(value))
    ]
    if not reading and structure[name].formula == RETURNED:
        return [replace(structure[name.rpartition(".")[0]], backward=PASSED_BACK)]
    return [structure[each] for each in dict.fromkeys(core_of(structure, each) or each for each in reading)]


def explain_gradient(recording: GradientPass, name: str, index: Index) -> Working:
    """The gradient of the target with respect to one number of a value."""
    structure, target = recording.structure, recording.target
    if core := core_of(structure, name):
        return through_attention(recording, structure[core], name, index)
    if name == HEAD:
        return gradient_of_logit(recording, *index)
    through = readers(structure, name, target.root)
    if unknown := [reader for reader in through if not has_rule(recording, reader, RULES)]:
        return without_operands(recording, float(recording.stored(f"{GRADIENT}{name}")[index]), unknown)
    parts = [(reader.name, RULES[reader.backward](recording, reader, name, index)) for reader in through]
    if target.name in same_tensor(structure, name):
        parts.append(("itself", Working([Remark(f"{target} changes by as much as it changes.")], 1.0, 0.0)))
        parts = [part for part in parts if part[0] != "itself" or index == target.index] or [NOTHING]
    return sum_of_parts(parts)


NOTHING = "itself", Working([Remark("The target is another number of the same value.")], 0.0, 0.0)


def sum_of_parts(parts: list[tuple[str, Working]]) -> Working:
    """The sum of gradients through several values."""
    if len(parts) == 1:
        return parts[0][1]
    steps: list[Step] = []
    for name, part in parts:
        steps += [Remark(f"Through {name}:"), *part.steps]
    first, *others = (part.value for _, part in parts)
    total = math.fsum(part.value for _, part in parts)
    terms = [term for value in others for term in plus(value)]
    scale = math.fsum(part.scale + abs(part.value) for _, part in parts)
    return Working([*steps, equals(total, "gradient =", first, *terms)], total, scale)


def without_operands(recording: GradientPass, stored: float, through: list[Value]) -> Working:
    """A gradient with what it reads, for values whose classes declare no backward formula."""
    read = " and ".join(f"{GRADIENT}{value.name}" for value in through) or "values that no class declares"
    remark = Remark(f"Autograd computes it from {read}; no formula is declared for this step.")
    return Working([remark], stored, 0.0, has_operands=False)


def has_rule(recording: GradientPass, value: Value, rules: Mapping[str, Any]) -> bool:
    """True if the value's class declares one of these backward rules; encoder-decoder attention has none."""
    return value.backward in rules and not recording.structure.memory_axes(value.name)


def gradient_of_logit(recording: GradientPass, position: int, token: int) -> Working:
    """The derivative of the target with respect to a logit."""
    target = recording.target
    if position not in target.positions:
        return Working([Remark(f"{target} does not depend on the logits after position {position}.")], 0.0, 0.0)
    if target.name == HEAD:
        return Working([Remark(f"The target is the logit {target}.")], float(token == target.index[1]), 0.0)
    if token >= recording.vocabulary:
        return Working([Remark(f"The head has a row {token}, but there is no such token.")], 0.0, 0.0)
    after, (values, scales) = Distribution(recording, position), logit_derivatives(recording, position)
    hit, p = int(token == wanted_token(target, position)), float(after.exponentials[token] / after.total)
    operands, note = (
        {"p": address_of("probabilities", position, token)},
        f"hit: 1 if {token} is the target's token, else 0",
    )
    if target.name == "entropy":
        operands |= {"H": str(target)}
        logarithm = written(math.log(max(p, TINY)), "+", entropy_of(after))
        left = ("- p · (log p + H) = -", p, "·", Call("", logarithm))
        note = ""
    elif target.name == "probabilities":
        operands |= {"q": str(target)}
        q = float(after.exponentials[target.index[1]] / after.total)
        left = ("q · (hit - p) =", q, "·", Call("", written(hit, "-", p)))
    elif target.name == "logprobs":
        left = ("hit - p =", hit, "-", p)
    elif target.name == MEAN_LOSS:
        left = ("(p - hit) / N =", Fraction(written(p, "-", hit), Number(len(target.positions))))
    else:
        left = ("p - hit =", p, "-", hit)
    value = float(values[token])
    equation = equals(value, *left, note=note, operands=operands)
    return Working([after.listing(token), equation], value, float(scales[token]))


TINY = float(np.finfo(float).tiny)


def entropy_of(after: Distribution) -> float:
    p = after.exponentials / after.total
    return -math.fsum(p * np.log(np.maximum(p, TINY)))


def wanted_token(target: Target, position: int) -> int | None:
    """The token whose probability the target reads after a position; None for all."""
    if target.name in ("loss", MEAN_LOSS):
        return target.ids[position + 1]
    return target.index[1] if len(target.index) > 1 else None


def logit_derivatives(recording: GradientPass, position: int) -> tuple[Array, Array]:
    """The derivatives (V,) with respect to the logits after a position, and their possible rounding in epsilons."""
    target, size = recording.target, recording.config.vocab_size
    values, scales = np.zeros(size), np.zeros(size)
    if position not in target.positions:
        return values, scales
    token = wanted_token(target, position)
    if target.name == HEAD:
        values[token] = 1.0
        return values, scales
    after = Distribution(recording, position)
    p = after.exponentials / after.total
    hit = (np.arange(len(p)) == token).astype(float)
    # An error of one epsilon in a logit, or in the logarithm of the divisor, is a relative error of the probability
    errors = p * (3 + after.largest - np.maximum(after.logits, -1e300) + abs(math.log(after.total)))
    factor_of, derivatives = 1.0, p - hit
    if target.name == "entropy":
        logs = np.log(np.maximum(p, TINY))
        derivatives, errors = -p * (logs + entropy_of(after)), errors * (1 + np.abs(logs) + entropy_of(after))
    elif target.name == MEAN_LOSS:
        factor_of = 1 / len(target.positions)
    elif target.name in ("logprobs", "probabilities"):
        factor_of = -1.0 if target.name == "logprobs" else -float(p[token])
    spread = 1 + float(errors[token] / p[token]) if target.name == "probabilities" and p[token] else 1
    values[: len(p)] = derivatives * factor_of
    scales[: len(p)] = abs(factor_of) * (errors + np.abs(derivatives)) * spread
    return values, scales


def gradient_of_outputs(recording: GradientPass, reader: Value, position: int) -> tuple[Array, Array]:
    """The gradients (O,) of a reader's outputs at a position, and their errors in epsilons if they are not recorded."""
    if reader.name == HEAD:
        return logit_derivatives(recording, position)
    gradients = recording.array(f"{GRADIENT}{reader.name}")[position]
    return gradients, np.zeros(len(gradients))


def index_in(recording: GradientPass, reader: Value, name: str, index: Index) -> Index:
    """The index of the same number in a value that reads it, whose heads may be concatenated or split."""
    width = recording.config.head_width
    has_heads, reads_heads = (len(recording.dimensions(each)) == 3 for each in (reader.name, name))
    if reads_heads and not has_heads:
        head, position, element = index
        return position, head * width + element
    if has_heads and not reads_heads:
        position, element = index
        return element // width, position, element % width
    return index


def passed_back(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """The gradient of the number in a value that equals this one, or adds it."""
    same = index_in(recording, reader, name, index)
    address = gradient_address(reader, *same)
    value = float(recording.array(f"{GRADIENT}{reader.name}")[same])
    return unchanged(f"{reader.name} has this number, or adds it: its gradient is {address}.", value, "gradient")


def through_linear(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """The sum over outputs o of their gradient times the weight w[o, i]."""
    position, column = index if len(index) == 2 else (index[1], index[0] * recording.config.head_width + index[2])
    weight = recording.weight_path(reader)
    w = recording.weight_column(weight, column)
    gradients, errors = gradient_of_outputs(recording, reader, position)
    operands = {"g": gradient_address(reader, position, ":"), "w": address_of(weight, ":", column)}
    return sum_of_products({"output": range(len(w)), "g": gradients, "w": w}, operands, errors * np.abs(w))


def through_gated(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """As through a linear layer whose input is the product of two values; then times the other one."""
    whole = through_linear(recording, reader, name, index)
    names = same_tensor(recording.structure, name)
    other = next(each for each in reader.reads if each not in names)
    value = float(recording.array(other)[index])
    equation = equals(
        whole.value * value, "gradient =", whole.value, "·", factor(value), operands={"x": address_of(other, *index)}
    )
    return Working([*whole.steps, equation], equation.value, (whole.scale + abs(whole.value)) * abs(value))


def through_norm(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """The sum over outputs j of their gradient times dy[j]/dx[i]: x[i] also changes the mean and the divisor."""
    *vector, i = index_in(recording, reader, name, index)
    unit, divisor, lost = normalised(recording, reader, tuple(vector))
    weight = recording.weight_path(reader)
    gain = norm_of(recording, reader).weight_offset + recording.weight(weight)
    gradients = recording.array(f"{GRADIENT}{reader.name}")[tuple(vector)]
    D, own = len(unit), (np.arange(len(unit)) == i).astype(float)
    centering = float(norm_of(recording, reader).is_centered) / D
    derivative = gain / divisor * (own - centering - unit * unit[i] / D)
    operands = {
        "g": gradient_address(reader, *vector, ":"),
        "γ": gain_of(norm_of(recording, reader), address_of(weight, ":")),
        "unit": f"{'(x - mean)' if centering else 'x'} / divisor, before γ; x = {address_of(name, *index[:-1], ':')}",
        "divisor": address_of(f"{reader.name}.divisor", *vector),
    }
    columns = {"element": range(D), "g": gradients, "γ": gain, "unit": unit, "dy/dx": derivative}
    sizes = np.abs(gradients * gain) / divisor
    parts = own + centering + np.abs(unit * unit[i]) / D
    errors = sizes * (2 * parts + lost * (np.abs(unit) + abs(unit[i]) + parts) / D)
    own_term = "hit - 1/D - unit · unit[i] / D" if centering else "hit - unit · unit[i] / D"
    note = f"dy/dx = γ / divisor · ({own_term}), with divisor {divisor:.6f}, i = {i}, unit[i] = {unit[i]:.6f}"
    return sum_of_products(columns, operands, errors, note)


def normalised(recording: GradientPass, reader: Value, index: Index) -> tuple[Array, float, float]:
    """The vector that a norm scales by γ, its divisor, and the largest element over the divisor."""
    norm = norm_of(recording, reader)
    x, _ = read_vector(recording, TracedScalar(reader, (*index, 0)), index)
    center = x - x.mean() if norm.is_centered else x
    divisor = math.sqrt(float((center**2).mean()) + recording.setting(reader, "eps"))
    return center / divisor, divisor, float(np.abs(x).max()) / divisor


def through_rotation(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """The gradient before the rotation and, for the queries of some models, before a constant factor."""
    rotated, scale = rotated_back(recording, reader, name, index), recording.config.query_factor
    if scale == 1 or not reader.name.endswith(".query"):
        return rotated
    equation = equals(scale * rotated.value, "gradient =", factor(rotated.value), "·", scale, note="the query's factor")
    return Working([*rotated.steps, equation], equation.value, scale * (rotated.scale + abs(rotated.value)))


def rotated_back(recording: GradientPass, reader: Value, name: str, index: Index) -> Working:
    """The gradients of a rotated pair, rotated back by the same angle."""
    angles = angles_of(recording, reader)
    if not angles:
        return passed_back(recording, reader, name, index)
    head, position, element = index_in(recording, reader, name, index)
    half = recording.config.head_width // 2
    sign, partner = (1, element + half) if element < half else (-1, element - half)
    gradients = recording.array(f"{GRADIENT}{reader.name}")[head, position]
    cosine = float(recording.array(angles[0])[position, element])
    sine = sign * float(recording.array(angles[1])[position, partner])
    own, other = float(gradients[element]), float(gradients[partner])
    value = own * cosine + other * sine
    operands = {
        "g": gradient_address(reader, head, position, element),
        "h": f"{address_of(f'{GRADIENT}{reader.name}', head, position, partner)}, its partner",
        "cos": address_of(angles[0], position, element),
        "sin": address_of(angles[1], position, partner),
    }
    left = f"g · cos {'+' if sign > 0 else '-'} h · sin ="
    terms = (own, "·", factor(cosine), "+", factor(other), "·", factor(sine))
    equation = equals(value, left, *terms, operands=operands)
    return Working([equation], value, 2 * (abs(own * cosine) + abs(other * sine)))


# By the backward rule that the class of the value that reads declares; docs/explain.md lists them
RULES: dict[str, Rule] = {
    PASSED_BACK: passed_back,
    "transposed linear": through_linear,
    "transposed gated linear": through_gated,
    "normalised": through_norm,
    "derivative": through_activation,
    ROTATED_BACK: through_rotation,
    "through the attention weights": through_attention,
}
