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
)
from foretell.insight.page.outcomes import Outcomes
from foretell.insight.recording import Recording, address_of, to_array
from foretell.paths import suggest

HEAD = "task_head"
PROBABILITIES, WEIGHT, MEAN = f"{HEAD}.probabilities", f"{HEAD}.weight", f"{HEAD}.mean"


class ImpliedNumber(NamedTuple):
    """A number that has no trace name: its index and what that means, the stored number, and the steps to it."""

    index: tuple[int, ...]
    meaning: tuple[str, ...]
    stored: float
    working: Working


def explain_outcome(recording: Recording, outcomes: Outcomes, wanted: Address) -> ImpliedNumber:
    """The steps to `task_head[c]`, an output; `task_head.probabilities[c]`; `task_head.weight[c,d]`; and
    `task_head.mean[d]`, the vector that the head reads if that is the mean over all positions.

    An output may be given by its name. Raises `UsageError` for an unknown name or index.
    """
    C, D = outcomes.weight.shape
    shapes = {HEAD: (C,), WEIGHT: (C, D)}
    shapes |= {MEAN: (D,)} if outcomes.reads_mean else {}
    shapes |= {PROBABILITIES: (C,)} if C > 1 else {}
    if wanted.name not in shapes:
        raise UsageError(f"no value is named '{wanted.name}'{suggest(wanted.name, [*shapes])}")
    dimensions: Dimensions = ("element",) if wanted.name == MEAN else ("output", "element")[: len(shapes[wanted.name])]
    given = [outcomes.names.index(entry) if entry in outcomes.names else entry for entry in wanted.index]
    index = resolve_index(Address(wanted.name, tuple(given)), dimensions, shapes[wanted.name])
    meaning = [f"{dimension} {entry}" for dimension, entry in zip(dimensions, index, strict=True)]
    if wanted.name == MEAN:
        mean, working = recording.hidden.mean(0, keepdim=True), explain_mean(recording, index[0])
        return ImpliedNumber(index, tuple(meaning), float(mean[0, index[0]]), working)
    meaning[0] += f" {outcomes.names[index[0]]}"
    if wanted.name == WEIGHT:
        value = float(outcomes.weight[index])
        working = Working([Remark(f"{address_of(WEIGHT, *index)} is a weight: training sets it.")], value, 0.0)
        return ImpliedNumber(index, tuple(meaning), value, working)
    outputs = outcomes.outputs(recording.hidden)
    is_share = wanted.name == PROBABILITIES
    working = (explain_share if is_share else explain_output)(recording, outcomes, index[0])
    stored = float((outputs.double().softmax(0) if is_share else outputs)[index])
    return ImpliedNumber(index, tuple(meaning), stored, working)


def explain_output(recording: Recording, outcomes: Outcomes, output: int) -> Working:
    """w · x, for a number times its deviation plus its mean, where x is the stream after the last norm."""
    hidden = to_array(recording.hidden[outcomes.positions(len(recording.ids))])  # (P, D)
    w, x = to_array(outcomes.weight[output]), hidden.mean(0)
    source = (
        address_of(MEAN, ":") if outcomes.reads_mean else address_of(stream(recording), len(recording.ids) - 1, ":")
    )
    products = multiply_out({"w": address_of(WEIGHT, output, ":"), "x": source}, {"w": w, "x": x})
    total = products.sums["w · x"]
    scale = abs(total) + max(scale_of(products), float(np.abs(w) @ np.abs(hidden).mean(0)))
    if len(outcomes.names) > 1:
        return Working([products, equals(total, "y = w · x")], total, scale)
    note = f"the standard deviation of the training examples, {outcomes.scale:.6g}, and their mean"
    value = outcomes.scale * total + outcomes.constant
    equation = equals(value, "y =", outcomes.scale, "·", total, *plus(outcomes.constant), note=note)
    return Working([products, equation], value, outcomes.scale * scale + abs(outcomes.constant))


def explain_share(recording: Recording, outcomes: Outcomes, output: int) -> Working:
    """exp(logit) over the sum of all exp(logit)."""
    logits = to_array(outcomes.outputs(recording.hidden))
    exponentials = np.exp(logits - logits.max())
    columns = {
        "number": range(len(logits)),
        "label": list(outcomes.names),
        "logit": logits,
        "exp": exponentials,
        "probability": exponentials / exponentials.sum(),
    }
    opens = {"logit": address_of(HEAD, ":"), "probability": address_of(PROBABILITIES, ":")}
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
