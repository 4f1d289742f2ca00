"""Explanations of attention: rotary positions, the core's inputs, scores, mask, softmax, and weighted values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from foretell.insight.explain.recording import Array, Recording, TracedScalar, address_of
from foretell.insight.explain.steps import (
    Equation,
    Listing,
    Remark,
    Step,
    Working,
    factor,
    multiply_out,
    numeral,
    scale_of,
)
from foretell.textbook.family import frequency
from foretell.typesetting.expression import Call, Expression, Fraction, Number, Root, Symbol, row, script

ROTATION = "rotation angle"  # the formula of the cosines and sines, in that order


@dataclass(frozen=True)
class OneQuery:
    """One query of one head with all keys and values of that head, from the core's recorded inputs."""

    recording: Recording
    core: str
    head: int
    query: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the core's query, key and value."""
        return self.recording.structure[self.core].reads

    @property
    def key_head(self) -> int:
        """The key head that this query head shares with its neighbours."""
        config = self.recording.config
        return self.head // (config.num_heads // config.num_kv_heads)

    @cached_property
    def vector(self) -> Array:
        return self.recording.array(self.names[0])[self.head, self.query]  # (E,)

    @cached_property
    def keys(self) -> Array:
        return self.recording.array(self.names[1])[self.key_head]  # (S, E)

    @cached_property
    def values(self) -> Array:
        return self.recording.array(self.names[2])[self.key_head]  # (S, E)

    @property
    def key_tokens(self) -> list[str]:
        """The tokens of the keys: of the text, or of the memory."""
        _, meaning, _ = self.recording.dimensions(self.names[1])
        return [self.recording.token_on(meaning, key) for key in range(len(self.keys))]

    @property
    def width(self) -> int:
        return len(self.vector)

    @cached_property
    def scores(self) -> Array:
        return self.keys @ self.vector  # (S,)

    @cached_property
    def scaled(self) -> Array:
        return self.scores / math.sqrt(self.width)

    @cached_property
    def masked(self) -> Array:
        hidden = [reason_hidden(self, key) is not None for key in range(len(self.keys))]
        return np.where(hidden, -np.inf, self.scaled)

    @cached_property
    def exponentials(self) -> Array:
        """exp(masked - largest), so that no exponential overflows; the quotients are unchanged."""
        return np.exp(self.masked - self.masked.max())

    @cached_property
    def weights(self) -> Array:
        return self.exponentials / self.exponentials.sum()

    @cached_property
    def score_scales(self) -> Array:
        """The sums of the absolute products of each scaled score, (S,)."""
        return np.abs(self.keys) @ np.abs(self.vector) / math.sqrt(self.width)

    @property
    def spread(self) -> float:
        """The rounding error of a weight, in epsilons of it: its own score and the largest one may both be rounded."""
        return 2 + 2 * float(self.score_scales.max())


def reason_hidden(query: OneQuery, key: int) -> str | None:
    """Why the query may not see the key; None if it may."""
    structure = query.recording.structure
    if structure.memory_axes(query.core):  # a memory is there as a whole
        return None
    window = query.recording.config.windows[structure.layer_of(query.core)]
    if key > query.query:
        return f"key {key} comes after query {query.query}"
    if window is not None and query.query - key >= window:
        return f"key {key} is outside the window of this layer: the last {window} positions up to query {query.query}"
    return None


def query_of(recording: Recording, scalar: TracedScalar) -> OneQuery:
    """The query of a scalar of `core.<stage>` or of `core` itself."""
    core = scalar.value.module
    while recording.structure[core].formula != "attention":  # a stage may be a module inside the core
        core = core.rpartition(".")[0]
    return OneQuery(recording, core, scalar.index[0], scalar.index[1])


def explain_score(recording: Recording, scalar: TracedScalar) -> Working:
    """q · k."""
    query, key = query_of(recording, scalar), scalar.index[2]
    shared = ""
    if query.key_head != query.head:
        shared = f"query head {query.head} uses key head {query.key_head}, shared by several query heads"
    operands = {
        "q": address_of(query.names[0], query.head, query.query),
        "k": address_of(query.names[1], query.key_head, key),
    }
    products, total = multiply_out(operands, {"q": query.vector, "k": query.keys[key]}, shared)
    equation = row(Symbol("score"), "=", Symbol("q"), "·", Symbol("k"), "=", numeral(total))
    return Working([products, Equation(equation, total)], total, scale_of(products))


def explain_scaled(recording: Recording, scalar: TracedScalar) -> Working:
    """q · k / sqrt(E)."""
    score, width = explain_score(recording, scalar), recording.config.head_width
    value = score.value / math.sqrt(width)
    quotient = Fraction(numeral(score.value), Root(Number(width)))
    equation = row(
        Symbol("scaled"), "=", Fraction(Symbol("score"), Root(Symbol("E"))), "=", quotient, "=", numeral(value)
    )
    note = "divided by the root of the head's width, so that wide heads do not score higher"
    return Working([*score.steps, Equation(equation, value, note)], value, score.scale / math.sqrt(width))


def explain_masked(recording: Recording, scalar: TracedScalar) -> Working:
    """The scaled score, or minus infinity."""
    scaled, query, key = explain_scaled(recording, scalar), query_of(recording, scalar), scalar.index[2]
    reason = reason_hidden(query, key)
    value = scaled.value if reason is None else -math.inf
    sentence = f"query {query.query} sees key {key}" if reason is None else f"{reason}, so it is hidden"
    equation = row(Symbol("masked"), "=", numeral(value))
    return Working([*scaled.steps, Equation(equation, value, f"the mask: {sentence}")], value, scaled.scale)


def explain_weight(recording: Recording, scalar: TracedScalar) -> Working:
    """The softmax of the row of masked scores, at one key."""
    masked, query, key = explain_masked(recording, scalar), query_of(recording, scalar), scalar.index[2]
    value = float(query.weights[key])
    steps: list[Step] = [*masked.steps, softmax_row(query, key), softmax_equation(query, key)]
    return Working(steps, value, value * query.spread)


def softmax_row(query: OneQuery, key: int) -> Listing:
    """The query's row of the attention matrix, one row per key, from score to weight."""
    columns = {
        "key": range(len(query.keys)),
        "token": query.key_tokens,
        "score": query.scores,
        "scaled": query.scaled,
        "masked": query.masked,
        "exp": query.exponentials,
        "weight": query.weights,
    }
    note = f"the softmax over all keys of query {query.query}; exp is of masked - {query.masked.max():.6f}, the largest"
    return Listing(note, columns, ("exp", "weight"), focus=key)


def softmax_equation(query: OneQuery, key: int) -> Equation:
    """exp over the sum of all exp."""
    value = float(query.weights[key])
    below = script("Σ", "s")
    quotient = Fraction(numeral(query.exponentials[key]), numeral(query.exponentials.sum()))
    formula = Fraction(script("exp", str(key)), row(below, script("exp", "s")))
    return Equation(row(Symbol("weight"), "=", formula, "=", quotient, "=", numeral(value)), value)


def explain_mixture(recording: Recording, scalar: TracedScalar) -> Working:
    """One element of the weighted sum of the values."""
    query, element = query_of(recording, scalar), scalar.index[2]
    column = query.values[:, element]
    columns = {
        "key": range(len(column)),
        "token": query.key_tokens,
        "weight": query.weights,
        "value": column,
        "product": query.weights * column,
    }
    operands = {
        "weight": f"{query.core}.weights[{query.head},{query.query},:]",
        "value": f"{query.names[2]}[{query.key_head},:,{element}]",
    }
    note = "the weights are recomputed here from the recorded queries and keys; explain one of them to see how"
    listing = Listing(note, columns, ("weight", "product"), operands=operands)
    total = listing.sums["product"]
    terms = (script("Σ", "s"), script("weight", "s"), "·", script("value", "s"))
    equation = Equation(row(Symbol("mixture"), "=", *terms, "=", numeral(total)), total)
    return Working([listing, equation], total, float((query.weights * np.abs(column)).sum()) * query.spread)


def explain_angle(recording: Recording, scalar: TracedScalar) -> Working:
    """cos or sin of position * frequency."""
    position, element = scalar.index
    config = recording.config
    pair = element % (config.head_width // 2)
    step = frequency(config, pair)
    angle = position * step
    name, wave = {"cosine": ("cos", math.cos), "sine": ("sin", math.sin)}[scalar.name.rpartition(".")[2]]
    value = wave(angle)
    trained = row(script(Number(config.rope_theta, 0), "", f"-{2 * pair}/{config.head_width}"))
    steps = [
        Equation(
            row(Symbol("frequency"), "=", *trained.items, *scaling_words(recording), "=", numeral(step)),
            step,
            f"elements {pair} and {pair + config.head_width // 2} are pair {pair}; the angle is in radians",
        ),
        Equation(row(Symbol("angle"), "=", Number(position), "·", numeral(step), "=", numeral(angle)), angle),
        Equation(row(Call(name, numeral(angle)), "=", numeral(value)), value),
    ]
    # The frequency theta^x has a relative error of ln(theta) times the rounding error of x
    return Working(list(steps), value, 1 + angle * (2 + math.log(config.rope_theta)))


def scaling_words(recording: Recording) -> list[Expression | str]:
    """The kind and factor of rope scaling, if there is one."""
    scaling = recording.config.rope_scaling
    return [] if scaling is None else [",", Symbol(f"{scaling.type} scaling by {scaling.factor:g}")]


def explain_value_input(recording: Recording, scalar: TracedScalar) -> Working:
    """The core's value input: the head's slice of the value projection."""
    head, position, element = scalar.index
    source = scalar.source
    width = recording.config.head_width
    index = (position, head * width + element)
    value = float(recording.array(source)[index])
    own = f"elements {head * width} to {(head + 1) * width - 1} of the projection"
    remark = Remark(f"Key head {head} consists of {own}; this one is {address_of(source, *index)}.")
    return Working([remark, Equation(row(Symbol("v"), "=", numeral(value)), value)], value, 0.0)


def explain_rotated(recording: Recording, scalar: TracedScalar) -> Working:
    """An element of a query or key that the core reads: that after the norm, rotated with its partner by the angle of
    its position; unchanged without rotary positions."""
    source = scalar.source
    before = float(recording.array(source)[scalar.index])
    trunk = scalar.name.partition("blocks.")[0]
    angles = [angle.name for angle in recording.structure.with_formula(ROTATION, trunk)]
    if not angles:
        remark = Remark(f"Without rotary positions this equals {address_of(source, *scalar.index)}.")
        return Working([remark, Equation(row(Symbol("x"), "=", numeral(before)), before)], before, 0.0)
    head, position, element = scalar.index
    half = recording.config.head_width // 2
    is_first = element < half
    partner = element + half if is_first else element - half
    partner_value = float(recording.array(source)[head, position, partner])
    cosine, sine = (float(recording.array(angle)[position, element]) for angle in angles)
    kept, brought = before * cosine, (-partner_value if is_first else partner_value) * sine
    value = kept + brought
    sign = "-" if is_first else "+"
    formula = row(
        *(Symbol("x"), "·", Symbol("cos"), sign, Symbol("y"), "·", Symbol("sin"), "="),
        *(numeral(before), "·", factor(cosine), sign, factor(partner_value), "·", factor(sine), "=", numeral(value)),
    )
    operands = {
        "x": address_of(source, *scalar.index),
        "y": f"{address_of(source, head, position, partner)}, its partner",
        "cos": address_of(angles[0], position, element),
        "sin": address_of(angles[1], position, element),
    }
    return Working([Equation(formula, value, "", operands)], value, abs(kept) + abs(brought))
