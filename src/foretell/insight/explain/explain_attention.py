"""Explanations of attention: rotary positions, the core's inputs, scores, mask, softmax, and weighted values."""

from __future__ import annotations

import math

import numpy as np

from foretell.config.rotary import frequency
from foretell.insight.address import address_of
from foretell.insight.explain.steps import (
    DIGITS,
    Explainer,
    Listing,
    Working,
    applied,
    equals,
    exponentials_of,
    factor,
    multiply_out,
    scale_of,
    softmax_equation,
    unchanged,
)
from foretell.insight.recorded_pass import Array, RecordedPass, TracedScalar
from foretell.model.structure import Value
from foretell.typesetting.expression import Fraction, Number, Root, Symbol, script

ROTATION = "rotation angle"  # the formula of the cosines and sines
LOCAL = "local_"  # begins the names of the angles of layers with a window
STAGES_OF_ROW = {"score": "scores", "scaled": "scaled", "masked": "masked", "weight": "weights"}


class QueryRow:
    """One query of a head with all S keys, from the core's recorded inputs."""

    def __init__(self, recording: RecordedPass, scalar: TracedScalar):
        structure, config = recording.structure, recording.config
        core = scalar.value.module
        while structure[core].formula != "attention":  # a stage can be a module inside the core
            core = core.rpartition(".")[0]
        self.core, (self.head, self.query, *_) = core, scalar.index
        self.key_head = self.head // (config.num_heads // config.num_kv_heads)
        self.query_name, self.key_name, self.value_name = structure[core].reads
        self.vector: Array = recording.array(self.query_name)[self.head, self.query]  # (E,)
        self.keys: Array = recording.array(self.key_name)[self.key_head]  # (S, E)
        _, meaning, _ = recording.dimensions(self.key_name)
        self.key_tokens = [recording.token_on(meaning, key) for key in range(len(self.keys))]
        # The whole memory is visible
        self.is_causal = not structure.memory_axes(core)
        self.window = config.windows[structure.layer_of(core)] if self.is_causal else None
        root = math.sqrt(len(self.vector))
        self.scores: Array = self.keys @ self.vector  # (S,)
        self.scaled: Array = self.scores / root
        hidden = [self.reason_hidden(key) is not None for key in range(len(self.keys))]
        self.masked: Array = np.where(hidden, -np.inf, self.scaled)
        self.exponentials = exponentials_of(self.masked)
        self.weights: Array = self.exponentials / self.exponentials.sum()
        # The rounding error of a weight in its epsilons: both its score and the largest score may be rounded
        self.spread = 2 + 2 * float((np.abs(self.keys) @ np.abs(self.vector) / root).max())

    def reason_hidden(self, key: int) -> str | None:
        """The reason why the query may not see the key; None if it may."""
        query, window = self.query, self.window
        if self.is_causal and key > query:
            return f"key {key} comes after query {query}"
        if window is not None and query - key >= window:
            return f"key {key} is outside the window of this layer: the last {window} positions up to query {query}"
        return None

    def softmax(self, weights: str, focus: int | None = None) -> Listing:
        """The scores of all keys and their softmax. weights: the name of the softmax."""
        columns = {
            "key": range(len(self.keys)),
            "token": self.key_tokens,
            "score": self.scores,
            "scaled": self.scaled,
            "masked": self.masked,
            "exp": self.exponentials,
            "weight": self.weights,
        }
        largest = f"{self.masked.max():.6f}, the largest"
        note = f"the softmax over all keys of query {self.query}; exp is of masked - {largest}"
        names = {column: f"{self.core}.{stage}" for column, stage in STAGES_OF_ROW.items()}
        names |= {"exp": f"{weights}.exponentials"}
        opens = {column: address_of(name, self.head, self.query, ":") for column, name in names.items()}
        return Listing(note, columns, ("exp", "weight"), focus, opens=opens)


def explain_score(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """q · k."""
    query, key = QueryRow(recording, scalar), scalar.index[2]
    shared = ""
    if query.key_head != query.head:
        shared = f"query head {query.head} uses key head {query.key_head}, shared by several query heads"
    operands = {
        "q": address_of(query.query_name, query.head, query.query, ":"),
        "k": address_of(query.key_name, query.key_head, key, ":"),
    }
    products = multiply_out(operands, {"q": query.vector, "k": query.keys[key]}, shared)
    total = products.sums["q · k"]
    return Working([products, equals(total, "score = q · k")], total, scale_of(products))


def explain_scaled(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """q · k / sqrt(E)."""
    score, width = explain_score(recording, scalar), recording.config.head_width
    value = score.value / math.sqrt(width)
    formula = Fraction(Symbol("score"), Root(Symbol("E")))
    numbers = Fraction(Number(score.value, DIGITS), Root(Number(width)))
    note = "divided by the root of the head's width, so that wide heads do not score higher"
    equation = equals(value, "scaled =", formula, "=", numbers, note=note)
    return Working([*score.steps, equation], value, score.scale / math.sqrt(width))


def explain_masked(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The scaled score, or minus infinity."""
    scaled, query, key = explain_scaled(recording, scalar), QueryRow(recording, scalar), scalar.index[2]
    reason = query.reason_hidden(key)
    value = scaled.value if reason is None else -math.inf
    sentence = f"query {query.query} sees key {key}" if reason is None else f"{reason}, so it is hidden"
    return Working([*scaled.steps, equals(value, "masked", note=f"the mask: {sentence}")], value, scaled.scale)


def explain_weight(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The softmax of the query's masked scores, at one key."""
    masked, query, key = explain_masked(recording, scalar), QueryRow(recording, scalar), scalar.index[2]
    equation = softmax_equation("weight", query.exponentials, key, "s")
    steps = [*masked.steps, query.softmax(scalar.name, key), equation]
    return Working(steps, equation.value, equation.value * query.spread)


def explain_score_exponential(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """exp of a masked score minus the largest score of its row."""
    query, key = QueryRow(recording, scalar), scalar.index[2]
    masked, value = float(query.masked[key]), float(query.exponentials[key])
    stage, row = f"{query.core}.masked", scalar.index[:2]
    operands = {"masked": address_of(stage, *scalar.index)}
    operands |= {"largest": address_of(stage, *row, int(query.masked.argmax()))}
    equation = equals(
        value, "exp(masked - largest) =", applied("exp", masked - float(query.masked.max())), operands=operands
    )
    return Working([equation], value, value * query.spread)


def explain_score_divisor(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """The sum of a row's exponentials, the divisor of the weights."""
    query = QueryRow(recording, scalar)
    listing = query.softmax(scalar.source)
    total = listing.sums["exp"]
    return Working([listing, equals(total, "divisor")], total, total * query.spread)


def explain_term(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """One of the products in the sum of a score."""
    query, (*_, key, element) = QueryRow(recording, scalar), scalar.index
    q, k = float(query.vector[element]), float(query.keys[key, element])
    operands = {
        "q": address_of(query.query_name, query.head, query.query, element),
        "k": address_of(query.key_name, query.key_head, key, element),
    }
    return Working([equals(q * k, "q · k =", q, "·", factor(k), operands=operands)], q * k, abs(q * k))


def explain_mixture(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """One element of the weighted sum of the values."""
    query, element = QueryRow(recording, scalar), scalar.index[2]
    column = recording.array(query.value_name)[query.key_head][:, element]  # (S,)
    products = query.weights * column
    columns = {
        "key": range(len(column)),
        "token": query.key_tokens,
        "weight": query.weights,
        "value": column,
        "weight · value": products,
    }
    operands = {
        "weight": f"{query.core}.weights[{query.head},{query.query},:]",
        "value": f"{query.value_name}[{query.key_head},:,{element}]",
    }
    note = "the weights are recomputed from the recorded queries and keys; explain one of them for the steps"
    listing = Listing(note, columns, ("weight", "weight · value"), operands=operands)
    total = listing.sums["weight · value"]
    equation = equals(total, "mixture =", script("Σ", "s"), script("weight", "s"), "·", script("value", "s"))
    return Working([listing, equation], total, float(np.abs(products).sum()) * query.spread)


def explain_angle(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """cos or sin of position * frequency."""
    position, element = scalar.index
    config, part = recording.config, scalar.name.rpartition(".")[2]
    pair, is_local = element % (config.head_width // 2), part.startswith(LOCAL)
    step = frequency(config, pair, is_local)
    angle = position * step
    name, wave = {"cosine": ("cos", math.cos), "sine": ("sin", math.sin)}[part.removeprefix(LOCAL)]
    value = wave(angle)
    theta, scaling = config.rope_theta, config.rope_scaling
    if is_local and config.local_rope_theta is not None:
        theta, scaling = config.local_rope_theta, None
    base = script(Number(theta, 0), "", f"-{2 * pair}/{config.rotary_width}")
    scaled = () if scaling is None else (",", Symbol(f"{scaling.type} scaling by {scaling.factor:g}"))
    note = f"elements {pair} and {pair + config.head_width // 2} are pair {pair}"
    steps = [
        equals(step, "frequency =", base, *scaled, note=f"{note}; the angle is in radians")
        if step
        else equals(step, "frequency", note=f"{note}, which is not rotated"),
        equals(angle, "angle =", position, "·", step),
        equals(value, applied(name, angle)),
    ]
    # The relative error of the frequency theta^x is ln(theta) times the rounding error of x
    return Working(steps, value, 1 + angle * (2 + math.log(theta)))


def explain_value_input(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """An element of the core's value input, which is the head's slice of the value projection."""
    head, position, element = scalar.index
    width = recording.config.head_width
    index = (position, head * width + element)
    own = f"elements {head * width} to {(head + 1) * width - 1} of the projection"
    remark = f"Key head {head} consists of {own}; this one is {address_of(scalar.source, *index)}."
    return unchanged(remark, float(recording.array(scalar.source)[index]), "v")


def angles_of(recording: RecordedPass, value: Value) -> list[str]:
    """The names of the cosines and sines that rotate a core's input; none without rotary positions."""
    is_memory = set(recording.structure.memory_axes(value.name)) & set(value.dims)
    trunk = f"{recording.structure.memory}." if is_memory else value.name.partition("blocks.")[0]
    is_local = recording.config.is_local(recording.structure.layer_of(value.name))
    angles = [angle.name for angle in recording.structure.with_formula(ROTATION, trunk)]
    return [name for name in angles if name.rpartition(".")[2].startswith(LOCAL) == is_local]


def explain_rotated(recording: RecordedPass, scalar: TracedScalar) -> Working:
    """An element of the core's query or key input, after the norm.

    With rotary positions it is rotated with its partner by the angle of its position; otherwise it is unchanged.
    """
    rotated, scale = explain_rotation(recording, scalar), recording.config.query_factor
    if scale == 1 or not scalar.name.endswith(".query"):
        return rotated
    number = recording.config.query_pre_attn_scalar
    note = f"so that scores, which are divided by the root of the head's width, are divided by the root of {number}"
    equation = equals(scale * rotated.value, "query =", factor(rotated.value), "·", scale, note=note)
    return Working([*rotated.steps, equation], equation.value, scale * (rotated.scale + abs(rotated.value)))


def explain_rotation(recording: RecordedPass, scalar: TracedScalar) -> Working:
    source, config = scalar.source, recording.config
    head, position, element = scalar.index
    half = config.head_width // 2
    is_first = element < half
    partner = element + half if is_first else element - half
    index, partner_index = ((head, position, each) for each in (element, partner))
    if len(recording.dimensions(source)) == 2:  # a norm of all heads
        index, partner_index = ((position, head * config.head_width + each) for each in (element, partner))
    before = float(recording.array(source)[index])
    angles = angles_of(recording, scalar.value)
    if not angles:
        return unchanged(f"Without rotary positions this equals {address_of(source, *index)}.", before)
    partner_value = float(recording.array(source)[partner_index])
    cosine, sine = (float(recording.array(angle)[position, element]) for angle in angles)
    kept, brought = before * cosine, (-partner_value if is_first else partner_value) * sine
    value = kept + brought
    sign = "-" if is_first else "+"
    operands = {
        "x": address_of(source, *index),
        "y": f"{address_of(source, *partner_index)}, its partner",
        "cos": address_of(angles[0], position, element),
        "sin": address_of(angles[1], position, element),
    }
    terms = (before, "·", factor(cosine), sign, factor(partner_value), "·", factor(sine))
    equation = equals(value, f"x · cos {sign} y · sin =", *terms, operands=operands)
    return Working([equation], value, abs(kept) + abs(brought))


ATTENTION_EXPLAINERS: dict[str, Explainer] = {
    ROTATION: explain_angle,
    "rotated heads": explain_rotated,
    "heads": explain_value_input,
    "attention score": explain_score,
    "scaled score": explain_scaled,
    "masked score": explain_masked,
    "attention weight": explain_weight,  # also after dropout, which is inactive outside training
    "attention": explain_mixture,
    "term of a score": explain_term,
    "exponential of a score": explain_score_exponential,
    "sum over the keys": explain_score_divisor,
}
