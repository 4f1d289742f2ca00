"""The numbers of a task's head: a label's probability and logit, or a number, down to the weights of the head."""

from __future__ import annotations

import numpy as np

from foretell.insight.address import Address
from foretell.insight.explain.implied_number import Explained, ImpliedNumber, NumberKind, explain_number
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

TASK_HEAD = "task_head"
MEAN_OF_LABELS = "the mean of all labels"
DIFFERENCE = f"{TASK_HEAD}.difference"
PROBABILITIES, WEIGHT, MEAN = f"{TASK_HEAD}.probabilities", f"{TASK_HEAD}.weight", f"{TASK_HEAD}.mean"
CONSTANT = f"{TASK_HEAD}.constant"


def explain_outcome(recording: Recording, outcomes: Outcomes, wanted: Address) -> ImpliedNumber:
    """The steps to `task_head[c]`, an output, or after the last the mean of all; `task_head.difference[c,b]`, of two;
    `task_head.probabilities[c]`; `task_head.weight[c,d]`; `task_head.constant`, of a number; and `task_head.mean[d]`,
    the vector that the head reads if it is the mean over all positions. For tags, the first three have the position of
    a token first.

    An output may be given by its name. Raises `UsageError` for an unknown name or index.
    """
    names = [*outcomes.names, MEAN_OF_LABELS]
    texts = names[outcomes.first :] if wanted.name == WEIGHT else names
    return explain_number(recording, OutcomeExplainer(recording, outcomes).kinds(), wanted, {"output": texts})


class OutcomeExplainer:
    """The steps to the numbers of a head after a pass."""

    def __init__(self, recording: Recording, outcomes: Outcomes):
        self.recording, self.outcomes = recording, outcomes
        self.outputs = outcomes.read(recording.model.decoder, recording.hidden)  # (C,), or of tags (T, C)

    def kinds(self) -> dict[str, NumberKind]:
        """The kinds of numbers by name."""
        *tokens, C = self.outputs.shape
        W, D = self.outcomes.weight.shape
        dimensions = (*["position"] * len(tokens), "output")
        num_rows = C + (W > 1)
        kinds = {
            TASK_HEAD: NumberKind(dimensions, (*tokens, num_rows), self.output),
            DIFFERENCE: NumberKind((*dimensions, "output"), (*tokens, num_rows, num_rows), self.difference),
            WEIGHT: NumberKind(("output", "element"), (W, D), self.weight),
            CONSTANT: NumberKind((), (), self.constant),
        }
        kinds |= {MEAN: NumberKind(("element",), (D,), self.mean)} if self.outcomes.reads_mean else {}
        return kinds | ({PROBABILITIES: NumberKind(dimensions, (*tokens, C), self.probability)} if C > 1 else {})

    def output(self, index: tuple[int, ...]) -> Explained:
        """An output, or after the last the mean of all."""
        outcomes, names = self.outcomes, self.outcomes.names
        *position, output = index
        if output == len(names):
            working = explain_combination(names, to_array(self.outputs[index[:-1]]), (output,), index[:-1])
            return working.value, working
        stored = float(self.outputs[index])
        if not 0 <= output - outcomes.first < len(outcomes.weight):
            remark = (
                f"It is w · x of the pass over this answer; the pass shown here has answer {outcomes.first}, from 0."
            )
            return stored, unchanged(remark, stored)
        at = slice(position[0], position[0] + 1) if position else outcomes.positions(len(self.recording.ids))
        own = outcomes.outputs(self.recording.hidden) if outcomes.kind == "orders" else self.outputs
        rest = float(self.outputs[index].double() - own[index].double())
        return stored, explain_output(self.recording, outcomes, output - outcomes.first, at, rest)

    def difference(self, index: tuple[int, ...]) -> Explained:
        position, outputs = index[:-2], index[-2:]
        working = explain_combination(self.outcomes.names, to_array(self.outputs[position]), outputs, position)
        return working.value, working

    def probability(self, index: tuple[int, ...]) -> Explained:
        working = explain_share(self.outcomes.names, to_array(self.outputs[index[:-1]]), index)
        return float(self.outputs.double().softmax(-1)[index]), working

    def weight(self, index: tuple[int, ...]) -> Explained:
        value = float(self.outcomes.weight[index])
        return value, Working([Remark(f"{address_of(WEIGHT, *index)} is a weight: training sets it.")], value, 0.0)

    def constant(self, _: tuple[int, ...]) -> Explained:
        value = self.outcomes.constant
        return value, unchanged("The mean of the training examples, which is stored with the head.", value, "mean")

    def mean(self, index: tuple[int, ...]) -> Explained:
        return float(self.recording.hidden.mean(0)[index]), explain_mean(self.recording, *index)


def explain_combination(
    names: tuple[str, ...], logits: Array, outputs: tuple[int, ...], position: tuple[int, ...]
) -> Working:
    """The mean of all outputs, or the difference of two of these numbers."""
    if len(outputs) == 1:
        columns = {"output": range(len(logits)), "label": list(names), "logit": logits}
        listing = Listing("", columns, ("logit",), opens={"logit": address_of(TASK_HEAD, *position, ":")})
        value = listing.sums["logit"] / len(logits)
        return Working([listing, equals(value, "mean =", listing.sums["logit"], "/", len(logits))], value, abs(value))
    a, b = (float([*logits, logits.mean()][output]) for output in outputs)
    operands = {letter: address_of(TASK_HEAD, *position, output) for letter, output in zip("ab", outputs, strict=True)}
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
    opens = {"logit": address_of(TASK_HEAD, *position, ":"), "probability": address_of(PROBABILITIES, *position, ":")}
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
