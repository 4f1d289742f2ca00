"""The steps of the computation of direct contributions, for parts, tokens and the vectors of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from foretell.insight.address import address_of
from foretell.insight.contributions import ALL, HEAD_BIAS, Contributions
from foretell.insight.explain.explain_layers import gain_of
from foretell.insight.explain.explain_outcome import TASK_MEAN, stream
from foretell.insight.explain.explanation import Explained
from foretell.insight.explain.steps import (
    Column,
    Listing,
    Remark,
    Step,
    Working,
    difference,
    equals,
    factor,
    mean_equation,
    multiply_out,
    plus,
    scale_of,
    unchanged,
    written,
)
from foretell.insight.readout import VECTOR, LogitReadout, Output, Readout, TaskReadout
from foretell.insight.recorded_pass import Array, to_array
from foretell.insight.stream_terms import HeadOutputs, HeadReads, Normalized, RecordedPart, Term
from foretell.insight.trace import Trace
from foretell.model.norm import RecordedNorm
from foretell.model.quantized_linear import QuantizedLinear
from foretell.typesetting.expression import Call, Expression

WRITTEN = "contributions.written"
NO_BIAS = "The task's head has no bias."


def explain_part(numbers: Contributions, readout: Readout, output: Output, part: int) -> Explained:
    """w · x for a part, or the sum of several parts."""
    name, values = numbers.names[part], numbers.to_output(readout, output)
    stored = float(values[part])
    if name in numbers.sums:
        return stored, sum_of_parts(numbers, name, values, address_of(readout.name, *output, ":"))
    if name == HEAD_BIAS:
        remark = address_of(name, output[1]) if isinstance(readout, LogitReadout) else NO_BIAS
        return stored, unchanged(remark, stored, "b")
    T, position = len(numbers.recording.ids), output[:-1]
    x = to_array(numbers.vectors(readout.positions(T, *position))[part].mean(0))
    return stored, dot_product(readout, output, f"{readout.vector(T, *position)}{part},:]", x)


def explain_logit(numbers: Contributions, _: Readout, output: Output) -> Explained:
    value = float(numbers.recording.pass_logits(output[0])[output[1]])
    return value, unchanged(address_of("head", *output), value)


def explain_whole(numbers: Contributions, readout: TaskReadout, output: Output) -> Explained:
    """w · x for the vector that a task's head reads: the output without the constant and other token sequences."""
    hidden, at = numbers.recording.hidden, readout.positions(len(numbers.recording.ids), *output[:-1])
    own = readout.outputs(hidden).double() - readout.constant
    source = address_of(TASK_MEAN, ":") if readout.reads_mean else address_of(stream(numbers.recording), at.start, ":")
    read = to_array(hidden[at])  # (P, D)
    working = dot_product(readout, output, source, read.mean(0))
    w = to_array(readout.row(output)[0])
    scale = working.scale + readout.scale * float(np.abs(w) @ np.abs(read).mean(0))
    return float(own[(*output[:-1], output[-1] - readout.first)]), replace(working, scale=scale)


def sum_of_parts(numbers: Contributions, name: str, values: Array, opens: str) -> Working:
    """The sum of several parts, with links to their numbers."""
    chosen = numbers.sums[name]
    names = [numbers.names[part] for part in chosen]
    return added_up({"part": chosen, "name": names, "contribution": values[chosen]}, opens)


def dot_product(readout: Readout, output: Output, source: str, x: Array, share: float = 1.0) -> Working:
    """The product of an output's row with a vector, times the head's scale and a share."""
    (w, address), scale = readout.row(output), readout.scale * share
    products = multiply_out({"w": address, "x": source}, {"w": to_array(w), "x": x})
    total = products.sums["w · x"]
    notes = ["1 over the number of positions that the head reads"] if share != 1 else []
    notes += ["the standard deviation of the training examples"] if readout.scale != 1 else []
    terms = ["w · x"] if scale == 1 else ["y =", scale, "·", factor(total)]
    note = f"{scale:.6g} is {' times '.join(notes)}" if notes else ""
    return Working([products, equals(scale * total, *terms, note=note)], scale * total, scale * scale_of(products))


# --- by token


def explain_word(owners: list[int], numbers: Contributions, readout: Readout, output: Output, word: int) -> Explained:
    """The sum over a word's tokens. owners: the word of each token."""
    tokens = [position for position, owner in enumerate(owners) if owner == word]
    values = numbers.to_output_by_token(readout, output)[-1, tokens]
    names = [numbers.recording.token(each) for each in tokens]
    opens = address_of(f"{readout.name}.token", *output, numbers.names.index(ALL), ":")
    working = added_up({"token": tokens, "name": names, "contribution": values}, opens)
    return working.value, working


def explain_token(numbers: Contributions, readout: Readout, output: Output, part: int, token: int) -> Explained:
    """The sum over parts or, for one part, over the positions that the task's head reads."""
    name = numbers.names[part]
    if name in numbers.sums:
        values = numbers.to_output_by_token(readout, output)[:, token]
        opens = address_of(f"{readout.name}.token", *output, ":", token)
        return float(values[part]), sum_of_parts(numbers, name, values, opens)
    if name == HEAD_BIAS:
        return 0.0, unchanged(NO_BIAS, 0.0, "b")
    at = readout.positions(len(numbers.recording.ids), *output[:-1])
    values = numbers.reads(readout, output, part, token)
    columns = {"position": range(at.start, at.stop), "contribution": values}
    working = added_up(columns, address_of(f"{readout.name}.read", *output, part, ":", token))
    return working.value, working


def explain_read(
    numbers: Contributions, readout: Readout, output: Output, part: int, position: int, token: int
) -> Explained:
    """The share of one position; a part that is not a head comes from the token at which it is added."""
    at = readout.positions(len(numbers.recording.ids), *output[:-1])
    if not at.start <= position < at.stop:
        return 0.0, unchanged(f"The head of the task does not read position {position}.", 0.0)
    stored = float(numbers.reads(readout, output, part, token)[position - at.start])
    if (reads := numbers.head_reads(readout, output, part)) is not None:
        return stored, head_read(numbers, reads, readout.row(output)[1], (part, position, token), position - at.start)
    if position != token:
        return stored, unchanged(f"This part is added at token {position}, and comes from there.", 0.0)
    x = to_array(numbers.vectors(slice(position, position + 1))[part, 0])
    source = address_of(VECTOR, position, part, ":")
    return stored, dot_product(readout, output, source, x, 1 / (at.stop - at.start))


def head_read(numbers: Contributions, reads: HeadReads, row: str, index: tuple[int, int, int], at: int) -> Working:
    """a · (v · u), where u is the output's direction inside the head. at: the position's index among those read."""
    part, position, token = index
    leaf, head = numbers.stream.trail(numbers.names[part])[0], numbers.head_of(part)
    assert isinstance(leaf, HeadOutputs), "a head's output"
    value, u = to_array(reads.values[head, token]), to_array(reads.inside[0, at, head])
    group = head // (len(reads.values) // numbers.recording.config.num_kv_heads)
    products = multiply_out({"v": address_of(f"{leaf.core}.value", group, token, ":")}, {"v": value, "u": u})
    weight, scaled = float(reads.weights[head, at, token]), float(reads.factor[head, at, 0])
    rest = float(reads.rests(head)[at]) if position == token else 0.0
    result = weight * scaled * products.sums["v · u"] + rest
    remark = Remark(
        f"u is {row}, divided by the last norm and by the number of positions that the head of the task reads, times "
        f"the columns {head * len(u)} to {head * len(u) + len(u) - 1} of {leaf.path}.weight"
    )
    note = "the second factor and the last term give the recorded output of the head, which may be changed"
    operands = {"a": address_of(f"{leaf.core}.weights", head, position, token)}
    terms = ["y =", weight, "·", scaled, "·", factor(products.sums["v · u"]), *plus(rest)]
    equation = equals(result, *terms, note=note, operands=operands)
    return Working([remark, products, equation], result, abs(weight * scaled) * scale_of(products) + 2 * abs(rest))


# --- vectors


def explain_mean_vector(numbers: Contributions, index: tuple[int, ...]) -> Explained:
    """The mean over all positions, for a task's head that reads it."""
    part, element = index
    rows = to_array(numbers.vectors(slice(0, len(numbers.recording.ids)))[part, :, element])
    opens = address_of(VECTOR, ":", part, element)
    return float(rows.mean()), added_up({"position": range(len(rows)), "contribution": rows}, opens, is_mean=True)


def explain_vector(numbers: Contributions, index: tuple[int, ...]) -> Explained:
    """An element of a part's vector after the norms, which are linear with the pass's statistics."""
    position, part, element = index
    _, *norms = numbers.stream.trail(numbers.names[part])
    x, source = numbers.written(position, part), address_of(WRITTEN, position, part, ":")
    steps, x = after_norms(numbers.recording.trace, norms, position, x, source, element)
    stored = float(numbers.vectors(slice(position, position + 1))[part, 0, element])
    return stored, Working(steps, float(x[element]), 8 * float(np.abs(x).max() + abs(stored)))


def after_norms(
    trace: Trace, norms: Sequence[Term], position: int, x: Array, source: str, element: int
) -> tuple[list[Step], Array]:
    """The steps of the norms for an element of x (D,), and the whole vector after them. source: the address of x."""
    steps: list[Step] = [] if norms else [Remark(f"No norm follows {source.replace(':', str(element))}.")]
    for norm in norms:
        assert isinstance(norm, Normalized), "a part passes norms"
        added, x = through(trace, norm, position, x, source, element)
        steps, source = [*steps, *added], ""
    return steps, x


def through(
    trace: Trace, norm: Normalized, position: int, x: Array, source: str, element: int
) -> tuple[list[Step], Array]:
    """The steps of one norm for an element of x, and the whole vector after it. source: the address of x, if any."""
    frozen = norm.frozen(trace, position)
    multiplier = float(torch.as_tensor(frozen.scale).expand(len(x))[element])
    steps: list[Step] = []
    mean, inner = 0.0, float(x[element])
    terms: float | Expression = inner
    if frozen.centers:
        opens = {"x": source} if source else {}
        listing = Listing("", {"element": range(len(x)), "x": x}, ("x",), element, opens=opens)
        steps = [listing, equation := mean_equation(listing)]
        mean = equation.value
        terms = Call("", written(inner, *plus(-mean)))
    statistic = address_of(f"{norm.path}.{norm.statistics[-1]}", position)
    weight = address_of(f"{norm.path}.weight", element)
    gain = gain_of(norm.norm.record, weight) if isinstance(norm.norm, RecordedNorm) else weight
    note = f"times {gain} over the divisor that {statistic} gives"
    operands = {"x": source.replace(":", str(element))} if source else {}
    value, after = (inner - mean) * multiplier, frozen(torch.from_numpy(x)).numpy()
    after[element] = value
    return [*steps, equals(value, "y =", terms, "·", factor(multiplier), note=note, operands=operands)], after


def explain_written(numbers: Contributions, index: tuple[int, ...]) -> Explained:
    """An element of a head's output, w · z; for any other part, a recorded number or a weight."""
    position, part, element = index
    name, leaf = numbers.names[part], numbers.stream.trail(numbers.names[part])[0]
    stored = float(numbers.written(position, part)[element])
    if isinstance(leaf, RecordedPart):
        return stored, unchanged(address_of(name, position, element), stored)
    if not isinstance(leaf, HeadOutputs) or name.endswith(".bias"):
        return stored, unchanged(address_of(name, element), stored)
    head = numbers.head_of(part)
    z, E = numbers.recording.array(leaf.core)[head, position], numbers.recording.config.head_width
    first = head * E
    if not isinstance(leaf.projection, nn.Linear | QuantizedLinear):
        source = address_of(leaf.core, element // E, position, element % E)
        note = "" if element // E == head else "; this head adds nothing to its element"
        return stored, unchanged(f"{source}{note}", stored)
    path = f"{leaf.path}.weight"
    w = numbers.recording.weight(path, element)[first : first + E]
    operands = {"w": f"{path}[{element},{first}:{first + E}]", "z": address_of(leaf.core, head, position, ":")}
    products = multiply_out(operands, {"w": w, "z": z})
    total = products.sums["w · z"]
    return stored, Working([products, equals(total, "w · z")], total, scale_of(products))


def added_up(columns: Mapping[str, Column], opens: str, is_mean: bool = False) -> Working:
    """The sum or mean of a column of contributions, with links to its numbers."""
    listing = Listing("", columns, ("contribution",), opens={"contribution": opens})
    value, scale = listing.sums["contribution"], 8 * scale_of(listing)  # the addends are also sums
    equation = mean_equation(listing) if is_mean else equals(value, "sum")
    return Working([listing, equation], equation.value, scale)


def explain_difference(
    name: str, length: int, explain: Callable[[tuple[int, ...]], Explained], index: tuple[int, ...]
) -> Explained:
    """A number of one output minus the same number of another. length: the length of an output's index."""
    first, second, rest = index[:length], (*index[: length - 1], index[length]), index[length + 1 :]
    (a, _), (b, _) = (explain((*output, *rest)) for output in (first, second))
    return a - b, difference(a, b, address_of(name, *first, *rest), address_of(name, *second, *rest))
