"""The numbers of a task's head: a label's probability and logit, or a number, down to the weights of the head."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.errors import UsageError
from foretell.insight.address import Address, Dimensions, resolve_index
from foretell.insight.explain.steps import (
    Listing,
    Remark,
    Working,
    equals,
    multiply_out,
    plus,
    scale_of,
    softmax_equation,
    unchanged,
)
from foretell.insight.page.outcomes import Outcomes
from foretell.insight.recording import Array, Recording, address_of, to_array
from foretell.paths import suggest

HEAD = "task_head"
MEAN_OF_LABELS = "the mean of all labels"
DIFFERENCE = f"{HEAD}.difference"
PROBABILITIES, WEIGHT, MEAN = f"{HEAD}.probabilities", f"{HEAD}.weight", f"{HEAD}.mean"


class ImpliedNumber(NamedTuple):
    """A number that has no trace name: its index and what that means, the stored number, and the steps to it."""

    index: tuple[int, ...]
    meaning: tuple[str, ...]
    stored: float
    working: Working


def explain_outcome(recording: Recording, outcomes: Outcomes, wanted: Address) -> ImpliedNumber:
    """The steps to `task_head[c]`, an output, or after the last the mean of all; `task_head.difference[c,b]`, of two;
    `task_head.probabilities[c]`; `task_head.weight[c,d]`; and `task_head.mean[d]`, the vector that the head reads if it
    is the mean over all positions. For tags, the first three have the position of a token first.

    An output may be given by its name. Raises `UsageError` for an unknown name or index.
    """
    C, D = len(outcomes.names), outcomes.weight.shape[1]
    tokens = (len(recording.ids),) if outcomes.kind == "tags" else ()
    num_rows = C + (len(outcomes.weight) > 1)
    shapes = {HEAD: (*tokens, num_rows), DIFFERENCE: (*tokens, num_rows, num_rows), WEIGHT: (len(outcomes.weight), D)}
    shapes |= {MEAN: (D,)} if outcomes.reads_mean else {}
    shapes |= {PROBABILITIES: (*tokens, C)} if C > 1 else {}
    if wanted.name not in shapes:
        raise UsageError(f"no value is named '{wanted.name}'{suggest(wanted.name, [*shapes])}")
    dimensions: Dimensions = (*["position"] * len(tokens), "output")
    others = {MEAN: ("element",), WEIGHT: ("output", "element"), DIFFERENCE: (*dimensions, "output")}
    dimensions = others.get(wanted.name, dimensions)
    given = [outcomes.names.index(entry) if entry in outcomes.names else entry for entry in wanted.index]
    index = resolve_index(Address(wanted.name, tuple(given)), dimensions, shapes[wanted.name])
    meaning = [f"{dimension} {entry}" for dimension, entry in zip(dimensions, index, strict=True)]
    if wanted.name == MEAN:
        mean, working = recording.hidden.mean(0, keepdim=True), explain_mean(recording, index[0])
        return ImpliedNumber(index, tuple(meaning), float(mean[0, index[0]]), working)
    if wanted.name == WEIGHT:
        meaning[0] += f" {outcomes.names[outcomes.first + index[0]]}"
        value = float(outcomes.weight[index])
        working = Working([Remark(f"{address_of(WEIGHT, *index)} is a weight: training sets it.")], value, 0.0)
        return ImpliedNumber(index, tuple(meaning), value, working)
    words = {"position": recording.token, "output": [*outcomes.names, MEAN_OF_LABELS].__getitem__}
    meaning = [f"{line} {words[name](entry)}" for name, line, entry in zip(dimensions, meaning, index, strict=True)]
    outputs = outcomes.read(recording.model.decoder, recording.hidden)
    position = index[: len(tokens)]
    if wanted.name == DIFFERENCE or index[-1] == C:
        logits = to_array(outputs[position])
        working = explain_combination(outcomes.names, logits, index[len(tokens) :], position)
        return ImpliedNumber(index, tuple(meaning), working.value, working)
    output = index[-1]
    if wanted.name == PROBABILITIES:
        logits = to_array(outputs[position[0]] if position else outputs)
        working = explain_share(outcomes.names, logits, (*position, output))
        return ImpliedNumber(index, tuple(meaning), float(outputs.double().softmax(-1)[index]), working)
    stored = float(outputs[index])
    if not 0 <= output - outcomes.first < len(outcomes.weight):
        remark = f"It is w · x of the pass over this answer; the pass shown here has answer {outcomes.first}, from 0."
        working = unchanged(remark, stored)
        return ImpliedNumber(index, tuple(meaning), stored, working)
    at = slice(position[0], position[0] + 1) if position else outcomes.positions(len(recording.ids))
    own = outcomes.outputs(recording.hidden) if outcomes.kind == "orders" else outputs
    rest = float(outputs[index].double() - own[index].double())
    working = explain_output(recording, outcomes, output - outcomes.first, at, rest)
    return ImpliedNumber(index, tuple(meaning), stored, working)


def explain_combination(
    names: tuple[str, ...], logits: Array, outputs: tuple[int, ...], position: tuple[int, ...]
) -> Working:
    """The mean of all outputs, or the difference of two of these numbers."""
    if len(outputs) == 1:
        columns = {"output": range(len(logits)), "label": list(names), "logit": logits}
        listing = Listing("", columns, ("logit",), opens={"logit": address_of(HEAD, *position, ":")})
        value = listing.sums["logit"] / len(logits)
        return Working([listing, equals(value, "mean =", listing.sums["logit"], "/", len(logits))], value, abs(value))
    a, b = (float([*logits, logits.mean()][output]) for output in outputs)
    operands = {letter: address_of(HEAD, *position, output) for letter, output in zip("ab", outputs, strict=True)}
    return Working([equals(a - b, "a - b =", a, *plus(-b), operands=operands)], a - b, abs(a) + abs(b))


def explain_output(recording: Recording, outcomes: Outcomes, output: int, at: slice, rest: float) -> Working:
    """w · x, for a number times its deviation plus its mean, where x is the stream after the last norm.

    at: the positions that are read. rest: of the other sequences, if their outputs add up.
    """
    hidden = to_array(recording.hidden[at])  # (P, D)
    w, x = to_array(outcomes.weight[output]), hidden.mean(0)
    source = address_of(MEAN, ":") if outcomes.reads_mean else address_of(stream(recording), at.start, ":")
    products = multiply_out({"w": address_of(WEIGHT, output, ":"), "x": source}, {"w": w, "x": x})
    total = products.sums["w · x"]
    scale = abs(total) + max(scale_of(products), float(np.abs(w) @ np.abs(hidden).mean(0)))
    value = outcomes.scale * total + outcomes.constant + rest
    if (outcomes.scale, outcomes.constant, rest) == (1.0, 0.0, 0.0):
        return Working([products, equals(total, "y = w · x")], total, scale)
    notes = [f"the standard deviation of the training examples, {outcomes.scale:.6g}, and their mean"]
    notes = [] if len(outcomes.names) > 1 else notes
    others = [*plus(rest)] if outcomes.others else []
    notes += ["at the end, the texts in the other order"] if outcomes.others else []
    factors = ["y ="] if len(outcomes.names) > 1 else ["y =", outcomes.scale, "·"]
    constant = [] if len(outcomes.names) > 1 else [*plus(outcomes.constant)]
    equation = equals(value, *factors, total, *constant, *others, note="; ".join(notes))
    return Working([products, equation], value, outcomes.scale * scale + abs(outcomes.constant) + 2 * abs(rest))


def explain_share(names: tuple[str, ...], logits: Array, index: tuple[int, ...]) -> Working:
    """exp(logit) over the sum of all exp(logit)."""
    *position, output = index
    exponentials = np.exp(logits - logits.max())
    columns = {
        "number": range(len(logits)),
        "label": list(names),
        "logit": logits,
        "exp": exponentials,
        "probability": exponentials / exponentials.sum(),
    }
    opens = {"logit": address_of(HEAD, *position, ":"), "probability": address_of(PROBABILITIES, *position, ":")}
    note = f"exp is of logit - {logits.max():.6f}, the largest"
    listing = Listing(note, columns, ("exp", "probability"), output, opens=opens)
    equation = softmax_equation("probability", exponentials, output, "v")
    return Working([listing, equation], equation.value, equation.value * (2 + float(logits.max() - logits[output])))


def explain_mean(recording: Recording, element: int) -> Working:
    """The mean of an element of the stream over all positions."""
    values = to_array(recording.hidden[:, element])
    tokens = [recording.token(position) for position in range(len(values))]
    operands = {"x": f"{stream(recording)}[:,{element}]"}
    columns = {"position": range(len(values)), "token": tokens, "x": values}
    listing = Listing("", columns, ("x",), operands=operands)
    equation = equals(listing.sums["x"] / len(values), "mean =", listing.sums["x"], "/", len(values))
    return Working([listing, equation], equation.value, float(np.abs(values).mean()) * 2)


def stream(recording: Recording) -> str:
    """The name of the stream that heads read."""
    (name,) = recording.structure["head"].reads
    return name
