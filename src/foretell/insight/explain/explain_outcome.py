"""Explanations of a task's head: a label's probability and logit, or a predicted number, down to the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foretell.insight.address import address_of
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.explain.steps import (
    Listing,
    Remark,
    Working,
    difference,
    equals,
    exponentials_of,
    mean_equation,
    multiply_out,
    plus,
    scale_of,
    softmax_equation,
    unchanged,
)
from foretell.insight.readout import MEAN_OF_LABELS, TASK_HEAD, TASK_WEIGHT, TaskReadout
from foretell.insight.recorded_pass import RecordedPass, to_array

TASK_DIFFERENCE = f"{TASK_HEAD}.difference"
TASK_PROBABILITIES, TASK_MEAN = f"{TASK_HEAD}.probabilities", f"{TASK_HEAD}.mean"
TASK_CONSTANT = f"{TASK_HEAD}.constant"


class OutcomeNumbers(NumberGroup):
    """The numbers of a task's head.

    `task_head[c]` is an output; the c after the last output is the mean of all. `task_head.difference[c,b]` is the
    difference of two. `task_head.constant` exists for number tasks. `task_head.mean[d]` is the input of a head that
    reads the mean over all positions. Also `task_head.probabilities[c]` and `task_head.weight[c,d]`. For tags, outputs,
    differences and probabilities have the position first.

    An output can be given by name.
    """

    def __init__(self, readout: TaskReadout):
        self.readout = readout
        of_mean = [TASK_MEAN] if readout.reads_mean else []
        of_labels = [TASK_PROBABILITIES] if len(readout.names) > 1 else []
        self.names = [TASK_HEAD, TASK_DIFFERENCE, TASK_WEIGHT, TASK_CONSTANT, *of_mean, *of_labels]

    def needs(self, name: str) -> Sequence[str]:
        return ()

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        names = [*self.readout.names, MEAN_OF_LABELS]
        texts = names[self.readout.first :] if name == TASK_WEIGHT else names
        return replace(OutcomeExplainer(recording, self.readout).kinds()[name], texts={"output": texts})


class OutcomeExplainer:
    """Explains the numbers of a head after a pass."""

    def __init__(self, recording: RecordedPass, readout: TaskReadout):
        self.recording, self.readout = recording, readout
        self.outputs = readout.read(recording.model.decoder, recording.hidden)  # (C,), or of tags (T, C)

    def kinds(self) -> dict[str, NumberKind]:
        *tokens, C = self.outputs.shape
        W, D = self.readout.weight.shape
        dimensions, dtype = (*["position"] * len(tokens), "output"), self.recording.model.dtype
        num_rows = C + (W > 1)
        return {
            TASK_HEAD: NumberKind(dimensions, (*tokens, num_rows), self.output, dtype, derived=False),
            TASK_DIFFERENCE: NumberKind((*dimensions, "output"), (*tokens, num_rows, num_rows), self.difference, dtype),
            TASK_WEIGHT: NumberKind(("output", "element"), (W, D), self.weight, dtype, derived=False),
            TASK_CONSTANT: NumberKind((), (), self.constant, dtype),
            TASK_MEAN: NumberKind(("element",), (D,), self.mean, dtype),
            TASK_PROBABILITIES: NumberKind(dimensions, (*tokens, C), self.probability, dtype),
        }

    def output(self, index: tuple[int, ...]) -> Explained:
        """An output, or the mean of all for the index after the last."""
        readout, names = self.readout, self.readout.names
        *position, output = index
        if output == len(names):
            return self.combination((output,), index[:-1])
        stored = float(self.outputs[index])
        if not readout.has_row(output):
            remark = (
                f"It is w · x of the pass over this answer; the pass shown here has answer {readout.first}, from 0."
            )
            return stored, unchanged(remark, stored)
        at = readout.positions(len(self.recording.ids), *position)
        rest = float(readout.added_by_others(self.recording.hidden, self.outputs)[index])
        return stored, explain_output(self.recording, readout, output - readout.first, at, rest)

    def difference(self, index: tuple[int, ...]) -> Explained:
        return self.combination(index[-2:], index[:-2])

    def probability(self, index: tuple[int, ...]) -> Explained:
        """exp(logit) divided by the sum of all exp(logit)."""
        *position, output = index
        logits = to_array(self.outputs[index[:-1]])
        exponentials = exponentials_of(logits)
        columns = {
            "number": range(len(logits)),
            "label": list(self.readout.names),
            "logit": logits,
            "exp": exponentials,
            "probability": exponentials / exponentials.sum(),
        }
        names = {"logit": TASK_HEAD, "probability": TASK_PROBABILITIES}
        opens = {column: address_of(name, *position, ":") for column, name in names.items()}
        note = f"exp is of logit - {logits.max():.6f}, the largest"
        listing = Listing(note, columns, ("exp", "probability"), output, opens=opens)
        equation = softmax_equation("probability", exponentials, output, "v")
        scale = equation.value * (2 + float(logits.max() - logits[output]))
        stored = float(self.outputs.double().softmax(-1)[index])
        return stored, Working([listing, equation], equation.value, scale)

    def weight(self, index: tuple[int, ...]) -> Explained:
        value = float(self.readout.weight[index])
        return value, Working([Remark(f"{address_of(TASK_WEIGHT, *index)} is a weight: training sets it.")], value, 0.0)

    def constant(self, _: tuple[int, ...]) -> Explained:
        value = self.readout.constant
        return value, unchanged("The mean of the training examples, which is stored with the head.", value, "mean")

    def mean(self, index: tuple[int, ...]) -> Explained:
        """The mean of an element of the stream over all positions."""
        recording, (element,) = self.recording, index
        values = to_array(recording.hidden[:, element])
        tokens = [recording.token(position) for position in range(len(values))]
        operands = {"x": f"{stream(recording)}[:,{element}]"}
        columns = {"position": range(len(values)), "token": tokens, "x": values}
        listing = Listing("", columns, ("x",), operands=operands)
        equation = mean_equation(listing)
        working = Working([listing, equation], equation.value, float(np.abs(values).mean()) * 2)
        return float(recording.hidden.mean(0)[index]), working

    def combination(self, outputs: tuple[int, ...], position: tuple[int, ...]) -> Explained:
        """The mean of all outputs, or the difference of two outputs."""
        logits = to_array(self.outputs[position])
        if len(outputs) == 1:
            columns = {"output": range(len(logits)), "label": list(self.readout.names), "logit": logits}
            listing = Listing("", columns, ("logit",), opens={"logit": address_of(TASK_HEAD, *position, ":")})
            equation = mean_equation(listing)
            return equation.value, Working([listing, equation], equation.value, abs(equation.value))
        a, b = (float([*logits, logits.mean()][output]) for output in outputs)
        return a - b, difference(a, b, *(address_of(TASK_HEAD, *position, output) for output in outputs))


def explain_output(recording: RecordedPass, readout: TaskReadout, output: int, at: slice, rest: float) -> Working:
    """w · x, where x is the stream after the last norm; for a number, times its deviation plus its mean.

    at: the positions to read. rest: the outputs of the other sequences, if they are added.
    """
    hidden = to_array(recording.hidden[at])  # (P, D)
    w, x = to_array(readout.weight[output]), hidden.mean(0)
    source = address_of(TASK_MEAN, ":") if readout.reads_mean else address_of(stream(recording), at.start, ":")
    products = multiply_out({"w": address_of(TASK_WEIGHT, output, ":"), "x": source}, {"w": w, "x": x})
    total = products.sums["w · x"]
    scale = abs(total) + max(scale_of(products), float(np.abs(w) @ np.abs(hidden).mean(0)))
    value = readout.scale * total + readout.constant + rest
    if (readout.scale, readout.constant, rest) == (1.0, 0.0, 0.0):
        return Working([products, equals(total, "y = w · x")], total, scale)
    notes: list[str] = []
    terms: list[str | float] = [total]
    if len(readout.names) == 1:
        notes.append(f"the standard deviation of the training examples, {readout.scale:.6g}, and their mean")
        terms = [readout.scale, "·", total, *plus(readout.constant)]
    if readout.others:
        notes.append("at the end, the texts in the other order")
        terms += plus(rest)
    equation = equals(value, "y =", *terms, note="; ".join(notes))
    return Working([products, equation], value, readout.scale * scale + abs(readout.constant) + 2 * abs(rest))


def stream(recording: RecordedPass) -> str:
    """The name of the stream that heads read."""
    (name,) = recording.structure["head"].reads
    return name
