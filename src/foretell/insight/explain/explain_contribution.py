"""Direct contributions to logits as numbers with operands, down to the vector that a part wrote and to weights.

`contributions[t,v,n]`: of part n to the logit of token v after position t. `contributions.difference[t,v,w,n]`: minus
the same for token w. `contributions.vector[t,n,d]`: the part's vector after the last norm, with the statistics of the
pass. `contributions.written[t,n,d]`: as the part wrote it. Numbers after the parts are sums: of a module with several
parts and, last, of all parts. A tuned model has `task_head.contributions[c,n]` and its `.difference[c,b,n]`, where the
number after the labels is the mean of all; and its `.vector[n,d]`, the mean over all positions, if it reads that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from foretell.errors import UsageError
from foretell.insight.address import Address, Dimensions, resolve_index
from foretell.insight.attribution.direct_logit_attribution import (
    HeadOutputs,
    Normalized,
    Part,
    StreamDecomposition,
    Term,
    head_weights,
)
from foretell.insight.explain.explain_outcome import HEAD, WEIGHT, ImpliedNumber
from foretell.insight.explain.steps import (
    Column,
    Equation,
    Listing,
    Remark,
    Step,
    Working,
    equals,
    factor,
    multiply_out,
    plus,
    quotient,
    scale_of,
    unchanged,
    written,
)
from foretell.insight.page.contributions import HEAD_BIAS, part_names, sums_of
from foretell.insight.page.outcomes import Outcomes
from foretell.insight.recording import Array, Recording, address_of, record, to_array, token_id
from foretell.language_model import LanguageModel
from foretell.model.quantized_linear import QuantizedLinear
from foretell.model.structure import model_structure
from foretell.paths import suggest
from foretell.typesetting.expression import Call, Expression

NAME = "contributions"
TASK = f"{HEAD}.{NAME}"
DIFFERENCE, VECTOR, WRITTEN = f"{NAME}.difference", f"{NAME}.vector", f"{NAME}.written"
TASK_DIFFERENCE, TASK_VECTOR = f"{TASK}.difference", f"{TASK}.vector"
MEAN_OF_LABELS = "the mean of all labels"

Output = tuple[int, ...]  # (position, token) of the model's head, or (label,) of the task's


def is_contribution(name: str) -> bool:
    return name.partition(".")[0] == NAME or name.startswith(TASK)


def explain_contribution(
    model: LanguageModel, text: str | list[int], outcomes: Outcomes | None, wanted: Address
) -> ImpliedNumber:
    """The steps to a contribution. Raises `UsageError` for an unknown name or index, and for a stream without terms."""
    structure = model_structure(model.decoder)
    stream = StreamDecomposition(model.decoder, structure).stream(*structure["head"].reads)
    contributions = Contributions(record(model, text, stream.names()), stream, outcomes)
    if wanted.name not in contributions.shapes:
        raise UsageError(f"no value is named '{wanted.name}'{suggest(wanted.name, [*contributions.shapes])}")
    dimensions, shape = contributions.shapes[wanted.name]
    given = [*map(contributions.number_of, dimensions, wanted.index), *wanted.index[len(dimensions) :]]
    index = resolve_index(Address(wanted.name, tuple(given)), dimensions, shape)
    if wanted.name == WRITTEN:
        stored, working = contributions.explain_written(*index)
    elif wanted.name in (VECTOR, TASK_VECTOR):
        stored, working = contributions.explain_vector(index)
    elif wanted.name in (DIFFERENCE, TASK_DIFFERENCE):
        stored, working = contributions.explain_difference(index)
    else:
        *output, part = index
        stored, working = float(contributions.values((*output,))[part]), contributions.explain_part((*output,), part)
    meaning = [contributions.meaning(*entry) for entry in zip(dimensions, index, strict=True)]
    return ImpliedNumber(index, tuple(meaning), stored, working)


class Contributions:
    """The parts of the stream in a recorded pass, by number, and what each adds to an output."""

    def __init__(self, recording: Recording, stream: Term, outcomes: Outcomes | None):
        self.recording, self.stream, self.outcomes = recording, stream, outcomes
        self.bias = head_weights(recording.model.decoder, recording.structure)[1]
        parts = part_names(stream, recording.trace, self.bias)
        self.sums = sums_of(recording.structure, parts)
        self.names = [*parts, *self.sums]
        if outcomes is not None and outcomes.kind == "tags":
            outcomes = self.outcomes = None  # a head for each token
        names = () if outcomes is None else outcomes.names[: len(outcomes.weight)]
        self.labels = [*names, *([MEAN_OF_LABELS] if len(names) > 1 else [])]
        T, V, D = len(recording.ids), recording.config.vocab_size, recording.config.width
        C, N, P = len(self.labels), len(self.names), len(parts) - (self.bias is not None)
        self.shapes: dict[str, tuple[Dimensions, tuple[int, ...]]] = {
            NAME: (("position", "token", "part"), (T, V, N)),
            DIFFERENCE: (("position", "token", "token", "part"), (T, V, V, N)),
            VECTOR: (("position", "part", "element"), (T, P, D)),
            WRITTEN: (("position", "part", "element"), (T, P, D)),
        }
        if outcomes is not None:
            self.shapes[TASK] = (("output", "part"), (C, N))
            self.shapes[TASK_DIFFERENCE] = (("output", "output", "part"), (C, C, N))
        if outcomes is not None and outcomes.reads_mean:
            self.shapes[TASK_VECTOR] = (("part", "element"), (P, D))

    def number_of(self, meaning: str, entry: int | str) -> int | str:
        """The number of a token, part or label that is given as text; anything else as it is."""
        if isinstance(entry, int) or meaning not in ("token", "part", "output"):
            return entry
        if meaning == "token":
            return token_id(self.recording.model, entry)
        names = self.names if meaning == "part" else self.labels
        if entry not in names:
            raise UsageError(f"no {meaning} is named {entry!r}{suggest(entry, names)}")
        return names.index(entry)

    def meaning(self, dimension: str, entry: int) -> str:
        names = {"part": self.names, "output": self.labels}.get(dimension, [])
        words = {"position": self.recording.token, "token": self.recording.named}.get(dimension)
        return f"{dimension} {entry} {names[entry] if names else words(entry) if words else ''}".rstrip()

    # --- values

    def vectors(self, position: int) -> Array:
        """The vectors (N, D) of the parts after the norms."""
        return to_array(self.stream.stacked(self.recording.trace, position)[1])

    def read(self, output: Output) -> tuple[Array, str]:
        """The vectors (N, D) that the head of an output reads, and the address of one, but for part and element."""
        if len(output) > 1:
            return self.vectors(output[0]), f"{VECTOR}[{output[0]},"
        assert self.outcomes is not None, "a task's head has outcomes"
        at = self.outcomes.positions(len(self.recording.ids))
        vectors = to_array(self.stream.stacked(self.recording.trace, at)[1]).mean(1)
        return vectors, f"{TASK_VECTOR}[" if self.outcomes.reads_mean else f"{VECTOR}[{at.start},"

    def row(self, output: Output) -> tuple[Array, str]:
        """The weights (D,) of an output, and their address."""
        if len(output) > 1:
            path = self.recording.weight_path(self.recording.structure["head"])
            return self.recording.weight(path, output[1]), address_of(path, output[1], ":")
        assert self.outcomes is not None, "a task's head has outcomes"
        weight = to_array(self.outcomes.weight)  # (C, D)
        own = weight[output[0]] if output[0] < len(weight) else weight.mean(0)
        return own, address_of(WEIGHT, output[0], ":")

    def scale(self, output: Output) -> float:
        return 1.0 if len(output) > 1 or self.outcomes is None else self.outcomes.scale

    def values(self, output: Output) -> Array:
        """The contributions to an output: of each part, then each sum."""
        parts = self.scale(output) * (self.read(output)[0] @ self.row(output)[0])
        if self.bias is not None:  # a task's head has none
            parts = np.append(parts, self.recording.weight(HEAD_BIAS, output[1]) if len(output) > 1 else 0.0)
        return np.append(parts, [parts[chosen].sum() for chosen in self.sums.values()])

    # --- steps

    def explain_part(self, output: Output, part: int) -> Working:
        """w · x of one part; the sum of several; or the mean of all labels."""
        name, values, family = self.names[part], self.values(output), NAME if len(output) > 1 else TASK
        if len(output) == 1 and self.labels[output[0]] == MEAN_OF_LABELS:
            rows = [float(self.values((label,))[part]) for label in range(output[0])]
            columns = {"output": range(len(rows)), "label": self.labels[:-1], "contribution": rows}
            return added_up(columns, address_of(family, ":", part), len(rows))
        if name in self.sums:
            chosen = self.sums[name]
            columns = {"part": chosen, "name": [self.names[each] for each in chosen], "contribution": values[chosen]}
            return added_up(columns, address_of(family, *output, ":"))
        if name == HEAD_BIAS:
            of_task = "The task's head has no bias."
            return unchanged(of_task if family == TASK else address_of(name, output[1]), float(values[part]), "b")
        (w, address), (vectors, of_vector), scale = self.row(output), self.read(output), self.scale(output)
        products = multiply_out({"w": address, "x": f"{of_vector}{part},:]"}, {"w": w, "x": vectors[part]})
        total = products.sums["w · x"]
        note = "" if scale == 1 else f"{scale:.6g} is the standard deviation of the training examples"
        terms = ["w · x"] if scale == 1 else ["y =", scale, "·", total]
        return Working([products, equals(scale * total, *terms, note=note)], scale * total, scale * scale_of(products))

    def explain_difference(self, index: tuple[int, ...]) -> tuple[float, Working]:
        """The contribution to one output minus the contribution to another."""
        *position, first, second, part = index
        outputs = [(*position, each) for each in (first, second)]
        a, b = (float(self.values(output)[part]) for output in outputs)
        family = NAME if position else TASK
        operands = {letter: address_of(family, *output, part) for letter, output in zip("ab", outputs, strict=True)}
        equation = equals(a - b, "a - b =", a, *plus(-b), operands=operands)
        return a - b, Working([equation], a - b, abs(a) + abs(b))

    def explain_vector(self, index: tuple[int, ...]) -> tuple[float, Working]:
        """An element of a part's vector after the norms, which are linear with the statistics of the pass."""
        *position, part, element = index
        if not position:
            rows = [float(self.vectors(t)[part, element]) for t in range(len(self.recording.ids))]
            columns = {"position": range(len(rows)), "contribution": rows}
            stored = float(self.read((0,))[0][part, element])
            return stored, added_up(columns, address_of(VECTOR, ":", part, element), len(rows))
        _, *norms = self.stream.trail(self.names[part])
        x, source = self.written(position[0], part), address_of(WRITTEN, position[0], part, ":")
        steps: list[Step] = [] if norms else [Remark(f"No norm follows {source.replace(':', str(element))}.")]
        for norm in norms:
            assert isinstance(norm, Normalized), "a part passes norms"
            added, x = self.through(norm, position[0], x, source, element)
            steps, source = [*steps, *added], ""
        stored = float(self.vectors(position[0])[part, element])
        return stored, Working(steps, float(x[element]), 8 * float(np.abs(x).max() + abs(stored)))

    def through(self, norm: Normalized, position: int, x: Array, source: str, element: int) -> tuple[list[Step], Array]:
        """The steps of one norm to an element, and the whole vector after it; source: of x, if it has an address."""
        frozen = norm.frozen(self.recording.trace, position)
        multiplier = float(torch.as_tensor(frozen.scale).expand(len(x))[element])
        steps: list[Step] = []
        mean, inner = 0.0, float(x[element])
        terms: float | Expression = inner
        if frozen.centers:
            opens = {"x": source} if source else {}
            listing = Listing("", {"element": range(len(x)), "x": x}, ("x",), element, opens=opens)
            mean = listing.sums["x"] / len(x)
            steps = [listing, equals(mean, "mean =", quotient(listing.sums["x"], len(x)))]
            terms = Call("", written(inner, *plus(-mean)))
        statistic = address_of(f"{norm.path}.{norm.statistics[-1]}", position)
        note = f"times {address_of(f'{norm.path}.weight', element)} over the divisor that {statistic} gives"
        operands = {"x": source.replace(":", str(element))} if source else {}
        value, after = (inner - mean) * multiplier, to_array(frozen(torch.from_numpy(x)))
        after[element] = value
        return [*steps, equals(value, "y =", terms, "·", factor(multiplier), note=note, operands=operands)], after

    def written(self, position: int, part: int) -> Array:
        """The vector (D,) that a part wrote."""
        leaf, name = self.stream.trail(self.names[part])[0], self.names[part]
        if isinstance(leaf, HeadOutputs | Part):
            return to_array(dict(leaf.parts(self.recording.trace, position))[name])
        return self.recording.weight(name)

    def explain_written(self, position: int, part: int, element: int) -> tuple[float, Working]:
        """An element of what a head wrote, w · z; of any other part, a recorded number or a weight."""
        name, leaf = self.names[part], self.stream.trail(self.names[part])[0]
        stored = float(self.written(position, part)[element])
        if isinstance(leaf, Part):
            return stored, unchanged(address_of(name, position, element), stored)
        if not isinstance(leaf, HeadOutputs) or name.endswith(".bias"):
            return stored, unchanged(address_of(name, element), stored)
        head = int(name.removeprefix(f"{leaf.core}[").removesuffix("]"))
        z, E = self.recording.array(leaf.core)[head, position], self.recording.config.head_width
        first = head * E
        if not isinstance(leaf.projection, nn.Linear | QuantizedLinear):
            source = address_of(leaf.core, element // E, position, element % E)
            note = "" if element // E == head else "; this head adds nothing to its element"
            return stored, unchanged(f"{source}{note}", stored)
        path = f"{leaf.path}.weight"
        w = self.recording.weight(path, element)[first : first + E]
        operands = {"w": f"{path}[{element},{first}:{first + E}]", "z": address_of(leaf.core, head, position, ":")}
        products = multiply_out(operands, {"w": w, "z": z})
        total = products.sums["w · z"]
        return stored, Working([products, equals(total, "w · z")], total, scale_of(products))


def added_up(columns: Mapping[str, Column], opens: str, count: int | None = None) -> Working:
    """The sum of a column of contributions, whose numbers open; or their mean."""
    listing = Listing("", columns, ("contribution",), opens={"contribution": opens})
    value, scale = listing.sums["contribution"], scale_of(listing)
    if count is None:
        return Working([listing, equals(value, "sum")], value, scale)
    equation: Equation = equals(value / count, "mean =", quotient(value, count))
    return Working([listing, equation], equation.value, scale)
