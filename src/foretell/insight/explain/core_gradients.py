"""Gradients inside attention: of its weights and scores, and of the queries, keys and values of a core."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from foretell.insight.address import address_of
from foretell.insight.explain.explain_attention import QueryRow
from foretell.insight.explain.steps import (
    Column,
    Listing,
    Remark,
    Working,
    equals,
    plus,
    quotient,
    unchanged,
    written,
)
from foretell.insight.gradient_pass import GradientPass
from foretell.insight.recorded_pass import Array, TracedScalar
from foretell.insight.replacement import STAGES
from foretell.insight.trace import GRADIENT
from foretell.model.structure import Structure, Value
from foretell.typesetting.expression import Call

Index = tuple[int, ...]
SHOWN_IN_ORDER = 64  # longer sums of a gradient are shown from the largest product on
AFTER_DROPOUT = "dropout"  # the weights of a core with dropout, which is inactive here


def gradient_address(value: Value, *index: int | str) -> str:
    return address_of(f"{GRADIENT}{value.name}", *index)


def sum_of_products(columns: Mapping[str, Column], operands: dict[str, str], errors: Array, note: str = "") -> Working:
    """The sum of products of the column "g" and the last one; the largest first if there are many.

    errors: of the products, in epsilons, in addition to their own rounding.
    """
    name = list(columns)[-1]
    products = np.asarray(columns["g"]) * np.asarray(columns[name])
    title = "g" if name == "g" else f"g · {name}"
    if title == "g":
        products = np.asarray(columns["g"])
    columns = {**columns, title: products}
    if len(products) > SHOWN_IN_ORDER:
        order = np.argsort(-np.abs(products), kind="stable").tolist()
        columns = {each: [column[row] for row in order] for each, column in columns.items()}
        note = f"{note}; the largest products first" if note else "the largest products first"
    listing = Listing(note, columns, (title,), operands=operands)
    total = listing.sums[title]
    scale = math.fsum(np.abs(products)) + math.fsum(errors)
    return Working([listing, equals(total, f"gradient = sum of {title}")], total, scale)


def core_of(structure: Structure, name: str) -> str | None:
    """The attention core that has this stage: scores, scaled, masked or weights."""
    core, _, stage = name.rpartition(".")
    is_stage = stage in (*STAGES, AFTER_DROPOUT) and core in structure.values
    return core if is_stage and structure[core].formula == "attention" else None


class HeadGradients:
    """The gradients of one query head, in float64 from recorded values.

    query, gradient (T, E): of the core's input and output. keys, values (S, E). weights, visible (T, S). The gradients
    of the stages (T, S) by name, with their possible rounding errors in epsilons in `errors`.
    """

    def __init__(self, recording: GradientPass, core: Value, head: int):
        rows = [QueryRow(recording, TracedScalar(core, (head, query))) for query in range(len(recording.ids))]
        self.recording, self.core, self.head, self.key_head = recording, core.name, head, rows[0].key_head
        self.key_tokens = rows[0].key_tokens
        self.query, self.keys = np.stack([row.vector for row in rows]), rows[0].keys
        self.values = recording.array(core.reads[2])[self.key_head]
        self.weights = np.stack([row.weights for row in rows])
        self.visible = np.stack([row.masked > -np.inf for row in rows])
        self.spread = np.array([row.spread for row in rows])[:, None]
        is_used = recording.has_gradient(core.name)
        self.gradient = recording.array(f"{GRADIENT}{core.name}")[head] if is_used else np.zeros_like(self.query)
        of_weights = self.gradient @ self.values.T + self._seed("weights") + self._seed(AFTER_DROPOUT)
        error = np.abs(self.gradient) @ np.abs(self.values).T + np.abs(of_weights)
        self.mean = (self.weights * of_weights).sum(-1, keepdims=True)
        of_masked = self.weights * (of_weights - self.mean) + self._seed("masked")
        masked_error = self.weights * (error + (self.weights * error).sum(-1, keepdims=True)) * (1 + self.spread)
        of_scaled = np.where(self.visible, of_masked, 0.0) + self._seed("scaled")
        self.root = math.sqrt(self.query.shape[-1])
        of_scores = of_scaled / self.root + self._seed("scores")
        stages = {"weights": of_weights, "masked": of_masked, "scaled": of_scaled, "scores": of_scores}
        self.stages: dict[str, Array] = {**stages, AFTER_DROPOUT: of_weights}
        scaled_error = masked_error + np.abs(of_scaled)
        self.errors: dict[str, Array] = {
            "weights": error,
            AFTER_DROPOUT: error,
            "masked": masked_error,
            "scaled": scaled_error,
            "scores": scaled_error / self.root,
        }

    def _seed(self, stage: str) -> Array:
        """1 at the target if it is this stage of this head."""
        seed, target = np.zeros_like(self.weights), self.recording.target
        if target.name == f"{self.core}.{stage}" and target.index[0] == self.head:
            seed[target.index[1:]] = 1.0
        return seed

    def address(self, stage: str, *index: int | str) -> str:
        return address_of(f"{GRADIENT}{self.core}.{stage}", self.head, *index)


def through_attention(recording: GradientPass, core: Value, name: str, index: Index) -> Working:
    """The gradient of an input or a stage of a core."""
    query, key, value = core.reads
    if name == value:
        return of_value(recording, core, index)
    if name == key:
        return of_key(recording, core, index)
    head = HeadGradients(recording, core, index[0])
    return of_query(head, core, index) if name == query else of_stage(head, core, name.rpartition(".")[2], index)


def of_query(head: HeadGradients, core: Value, index: Index) -> Working:
    """The sum over keys of the score's gradient times the key."""
    _, query, element = index
    columns = {
        "key": range(len(head.keys)),
        "token": head.key_tokens,
        "g": head.stages["scores"][query],
        "k": head.keys[:, element],
    }
    operands = {
        "g": head.address("scores", query, ":"),
        "k": address_of(core.reads[1], head.key_head, ":", element),
    }
    return sum_of_products(columns, operands, head.errors["scores"][query] * np.abs(head.keys[:, element]))


def of_key(recording: GradientPass, core: Value, index: Index) -> Working:
    """The sum over queries, of all heads that share the key, of the score's gradient times the query."""
    key_head, key, element = index
    heads = heads_of(recording, core, key_head)
    gradients = [head.stages["scores"][:, key] for head in heads]
    errors = [head.errors["scores"][:, key] * np.abs(head.query[:, element]) for head in heads]
    factors = [head.query[:, element] for head in heads]
    operands = {"g": f"{heads[0].core}.scores[head,query,{key}]", "q": f"{core.reads[0]}[head,query,{element}]"}
    operands["g"] = GRADIENT + operands["g"]
    return over_queries(recording, heads, operands, "q", (gradients, factors, errors))


def of_value(recording: GradientPass, core: Value, index: Index) -> Working:
    """The sum over queries, of all heads that share the value, of the output's gradient times the weight."""
    key_head, key, element = index
    heads = heads_of(recording, core, key_head)
    gradients = [head.gradient[:, element] for head in heads]
    factors = [head.weights[:, key] for head in heads]
    errors = [np.abs(head.gradient[:, element]) * head.weights[:, key] * head.spread[:, 0] for head in heads]
    operands = {
        "g": f"{GRADIENT}{core.name}[head,query,{element}]",
        "weight": f"{core.name}.weights[head,query,{key}]",
    }
    return over_queries(recording, heads, operands, "weight", (gradients, factors, errors))


def heads_of(recording: GradientPass, core: Value, key_head: int) -> list[HeadGradients]:
    """The query heads that share a key head."""
    shared = recording.config.num_heads // recording.config.num_kv_heads
    return [HeadGradients(recording, core, key_head * shared + each) for each in range(shared)]


def over_queries(
    recording: GradientPass,
    heads: list[HeadGradients],
    operands: dict[str, str],
    name: str,
    arrays: tuple[list[Array], list[Array], list[Array]],
) -> Working:
    """The sum over heads and queries of gradients times factors, with errors."""
    gradients, factors, errors = (np.concatenate(each) for each in arrays)
    T = len(recording.ids)
    columns = {
        "head": [head.head for head in heads for _ in range(T)],
        "query": [*range(T)] * len(heads),
        "token": [recording.token(query) for query in range(T)] * len(heads),
        "g": gradients,
        name: factors,
    }
    return sum_of_products(columns, operands, errors)


def of_stage(head: HeadGradients, core: Value, stage: str, index: Index) -> Working:
    """The gradient of a weight or a score, from the end of the core to its start."""
    _, query, key = index
    value, error = float(head.stages[stage][query, key]), float(head.errors[stage][query, key])
    seed = float(head._seed(stage)[query, key])
    working = {
        "weights": partial(of_weight, core),
        AFTER_DROPOUT: partial(of_weight, core),
        "masked": of_masked,
        "scaled": of_scaled,
        "scores": of_score,
    }[stage](head, query, key)
    if seed:
        remark = Remark(f"This is the target {head.recording.target}, which adds 1.")
        return Working([*working.steps, remark, equals(value, "gradient =", value - seed, "+", 1)], value, error + 1)
    return Working(working.steps, value, error)


def of_weight(core: Value, head: HeadGradients, query: int, key: int) -> Working:
    """The sum over elements of the output's gradient times the value."""
    columns = {"element": range(len(head.values[key])), "g": head.gradient[query], "v": head.values[key]}
    operands = {
        "g": address_of(f"{GRADIENT}{core.name}", head.head, query, ":"),
        "v": address_of(core.reads[2], head.key_head, key, ":"),
    }
    return sum_of_products(columns, operands, np.zeros(len(head.values[key])))


def of_masked(head: HeadGradients, query: int, key: int) -> Working:
    """Through the softmax: the weight times the difference of its gradient from the mean, weighted by the weights."""
    weights, gradients = head.weights[query], head.stages["weights"][query]
    columns = {
        "key": range(len(weights)),
        "token": head.key_tokens,
        "weight": weights,
        "g": gradients,
        "weight · g": weights * gradients,
    }
    operands = {
        "weight": address_of(f"{head.core}.weights", head.head, query, ":"),
        "g": head.address("weights", query, ":"),
    }
    listing = Listing(
        "a softmax sums to 1: what one weight gains, the others lose", columns, ("weight · g",), key, operands
    )
    weight, g, mean = float(weights[key]), float(gradients[key]), listing.sums["weight · g"]
    value = weight * (g - mean)
    equation = equals(value, "weight · (g - sum) =", weight, "·", Call("", written(g, *plus(-mean))))
    return Working([listing, equation], value, 0.0)


def of_scaled(head: HeadGradients, query: int, key: int) -> Working:
    """The gradient of the masked score, or 0 for a hidden key."""
    if not head.visible[query, key]:
        return unchanged(f"Key {key} is hidden from query {query}, so its score changes nothing.", 0.0, "gradient")
    value = float(head.stages["masked"][query, key])
    return unchanged(f"Query {query} sees key {key}: the gradient is {head.address('masked', query, key)}.", value, "g")


def of_score(head: HeadGradients, query: int, key: int) -> Working:
    scaled = float(head.stages["scaled"][query, key])
    operands = {"g": head.address("scaled", query, key)}
    equation = equals(scaled / head.root, "gradient =", quotient(scaled, head.root), note="g / √E", operands=operands)
    return Working([equation], equation.value, 0.0)
