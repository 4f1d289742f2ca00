"""Direct contributions to logits as numbers with operands, down to the vector that a part wrote and to weights.

`contributions[t,v,n]`: of part n to the logit of token v after position t. `contributions.vector[t,n,d]` and
`.written[t,n,d]`: see `part_vectors.py`. `logits.difference[t,v,w]`: of two logits.

A tuned model has `task_head.contributions[c,n]`, where the number after the labels is the mean of all; for tags, the
position comes first. `.word[c,w]` is the sum over the tokens of a word, `.token[c,n,s]` the contribution of part n from
token s: the sum over the positions that the head reads of `.read[c,n,t,s]`. `.vector[n,d]` is the mean over positions,
if the head reads that. A `.difference` of them has a second output after the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from foretell.errors import UsageError
from foretell.insight.address import Address, Dimensions, resolve_index
from foretell.insight.attribution.direct_logit_attribution import (
    HeadOutputs,
    StreamDecomposition,
    names_by_token,
)
from foretell.insight.explain.contribution_values import (
    TASK_VECTOR,
    VECTOR,
    Contributions,
    LogitReadout,
    OutcomeReadout,
    Output,
    Readout,
)
from foretell.insight.explain.explain_outcome import MEAN_OF_LABELS, ImpliedNumber
from foretell.insight.explain.part_vectors import (
    WRITTEN,
    Explained,
    added_up,
    explain_mean_vector,
    explain_vector,
    explain_written,
    head_of,
)
from foretell.insight.explain.steps import (
    Remark,
    Working,
    equals,
    factor,
    multiply_out,
    plus,
    scale_of,
    unchanged,
)
from foretell.insight.page.contributions import ALL, HEAD_BIAS
from foretell.insight.page.outcomes import Outcomes
from foretell.insight.recording import Array, address_of, record, token_id
from foretell.language_model import LanguageModel
from foretell.model.structure import model_structure
from foretell.paths import suggest

LOGITS, DIFFERENCE = "logits", ".difference"


def is_contribution(name: str) -> bool:
    return name.startswith((LogitReadout.name, OutcomeReadout.name, LOGITS + DIFFERENCE))


@dataclass(frozen=True)
class Kind:
    """Numbers with an address: the meanings and sizes of their indices, and the steps to one of them."""

    dimensions: Dimensions
    sizes: tuple[int, ...]
    explain: Callable[..., Explained]


def explain_contribution(
    model: LanguageModel, text: str | list[int], outcomes: Outcomes | None, wanted: Address
) -> ImpliedNumber:
    """The steps to a contribution. Raises `UsageError` for an unknown name or index, and for a stream without terms."""
    structure = model_structure(model.decoder)
    stream = StreamDecomposition(model.decoder, structure).stream(*structure["head"].reads)
    is_by_token = wanted.name.removesuffix(DIFFERENCE).endswith((".token", ".read", ".word"))
    names = names_by_token(stream, structure) if is_by_token else stream.names()
    explainer = ContributionExplainer(Contributions(record(model, text, names), stream), outcomes)
    if wanted.name not in explainer.kinds:
        raise UsageError(f"no value is named '{wanted.name}'{suggest(wanted.name, [*explainer.kinds])}")
    kind = explainer.kinds[wanted.name]
    given = [*map(explainer.number_of, kind.dimensions, wanted.index), *wanted.index[len(kind.dimensions) :]]
    index = resolve_index(Address(wanted.name, tuple(given)), kind.dimensions, kind.sizes)
    meaning = [explainer.meaning(*entry) for entry in zip(kind.dimensions, index, strict=True)]
    return ImpliedNumber(index, tuple(meaning), *kind.explain(index))


class ContributionExplainer:
    """The steps to contributions of a pass, in `kinds` by name."""

    def __init__(self, numbers: Contributions, outcomes: Outcomes | None):
        self.numbers, self.recording = numbers, numbers.recording
        logits = LogitReadout(self.recording)
        T, D, N, P = len(self.recording.ids), self.recording.config.width, len(numbers.names), numbers.num_vectors
        self.labels, self.owners = list[str](), list[int]()
        of_vector = ("position", "part", "element"), (T, P, D)
        self.kinds = {
            VECTOR: Kind(*of_vector, partial(explain_vector, numbers)),
            WRITTEN: Kind(*of_vector, partial(explain_written, numbers)),
            **self.of_outputs(logits.name, logits, self.explain_part, part=N),
            LOGITS + DIFFERENCE: self.of_outputs(LOGITS, logits, self.explain_logit)[LOGITS + DIFFERENCE],
        }
        if outcomes is None:
            return
        task = OutcomeReadout(self.recording, outcomes)
        self.labels, self.owners = task.labels, outcomes.words()
        self.kinds |= self.of_outputs(task.name, task, self.explain_part, part=N)
        self.kinds |= self.of_outputs(f"{task.name}.word", task, self.explain_word, word=max(self.owners) + 1)
        self.kinds |= self.of_outputs(f"{task.name}.token", task, self.explain_token, part=N, source=T)
        self.kinds |= self.of_outputs(f"{task.name}.read", task, self.explain_read, part=P, position=T, source=T)
        if outcomes.reads_mean:
            self.kinds[TASK_VECTOR] = Kind(("part", "element"), (P, D), partial(explain_mean_vector, numbers))

    def of_outputs(
        self, name: str, readout: Readout, explain: Callable[..., Explained], **others: int
    ) -> dict[str, Kind]:
        """The numbers of each output of a readout, and their differences. others: the sizes of further indices."""
        dimensions, sizes = (*readout.dimensions, *others), (*readout.sizes, *others.values())
        length = len(readout.sizes)
        own = partial(self.explain_output, name, readout, explain)
        difference = Kind(
            (*dimensions[:length], *dimensions[length - 1 :]),
            (*sizes[:length], *sizes[length - 1 :]),
            partial(explain_difference, name, length, own),
        )
        return {name: Kind(dimensions, sizes, own), name + DIFFERENCE: difference}

    def explain_output(
        self, name: str, readout: Readout, explain: Callable[..., Explained], index: tuple[int, ...]
    ) -> Explained:
        """The steps to a number of an output, or to the mean of all labels."""
        length = len(readout.sizes)
        output, rest = index[:length], index[length:]
        if not readout.labels or readout.labels[output[-1]] != MEAN_OF_LABELS:
            return explain(readout, output, *rest)
        rows = [explain(readout, (*output[:-1], label), *rest)[0] for label in range(output[-1])]
        columns = {"output": range(len(rows)), "label": readout.labels[:-1], "contribution": rows}
        working = added_up(columns, address_of(name, *output[:-1], ":", *rest), len(rows))
        return working.value, working

    def number_of(self, meaning: str, entry: int | str) -> int | str:
        """The number of a token, part or label that is given as text; anything else as it is."""
        if isinstance(entry, int) or meaning not in ("token", "part", "output"):
            return entry
        if meaning == "token":
            return token_id(self.recording.model, entry)
        names = self.numbers.names if meaning == "part" else self.labels
        if entry not in names:
            raise UsageError(f"no {meaning} is named {entry!r}{suggest(entry, names)}")
        return names.index(entry)

    def meaning(self, dimension: str, entry: int) -> str:
        names = {"part": self.numbers.names, "output": self.labels}
        of_token = {"position": self.recording.token, "source": self.recording.token, "token": self.recording.named}
        words = {**of_token, **{name: known.__getitem__ for name, known in names.items()}}.get(dimension)
        return f"{dimension} {entry} {words(entry) if words else ''}".rstrip()

    # --- contributions to an output

    def explain_part(self, readout: Readout, output: Output, part: int) -> Explained:
        """w · x of one part, or the sum of several."""
        name, values = self.numbers.names[part], self.numbers.of_parts(readout, output)
        stored = float(values[part])
        if name in self.numbers.sums:
            return stored, self.sum_of_parts(name, values, address_of(readout.name, *output, ":"))
        if name == HEAD_BIAS:
            has_bias = isinstance(readout, LogitReadout)
            return stored, unchanged(
                address_of(name, output[1]) if has_bias else "The task's head has no bias.", stored, "b"
            )
        at = readout.positions(output)
        source = f"{readout.vector(output)}{part},:]"
        return stored, self.dot_product(readout, output, source, self.numbers.vectors(at)[part].mean(0))

    def sum_of_parts(self, name: str, values: Array, opens: str) -> Working:
        chosen = self.numbers.sums[name]
        names = [self.numbers.names[part] for part in chosen]
        return added_up({"part": chosen, "name": names, "contribution": values[chosen]}, opens)

    def dot_product(self, readout: Readout, output: Output, source: str, x: Array, share: float = 1.0) -> Working:
        """The product of the row of an output with a vector, times the scale of the head and a share."""
        (w, address), scale = readout.row(output), readout.scale * share
        products = multiply_out({"w": address, "x": source}, {"w": w, "x": x})
        total = products.sums["w · x"]
        notes = ["1 over the number of positions that the head reads"] if share != 1 else []
        notes += ["the standard deviation of the training examples"] if readout.scale != 1 else []
        terms = ["w · x"] if scale == 1 else ["y =", scale, "·", factor(total)]
        note = f"{scale:.6g} is {' times '.join(notes)}" if notes else ""
        return Working([products, equals(scale * total, *terms, note=note)], scale * total, scale * scale_of(products))

    def explain_logit(self, readout: Readout, output: Output) -> Explained:
        value = float(self.recording.pass_logits(output[0])[output[1]])
        return value, unchanged(address_of("head", *output), value)

    # --- by token

    def explain_word(self, readout: Readout, output: Output, word: int) -> Explained:
        """The sum over the tokens of a word."""
        values = self.numbers.by_token(readout, output)[-1]
        tokens = [position for position, owner in enumerate(self.owners) if owner == word]
        names = [self.recording.token(position) for position in tokens]
        part = self.numbers.names.index(ALL)
        working = added_up(
            {"token": tokens, "name": names, "contribution": values[tokens]},
            address_of(f"{readout.name}.token", *output, part, ":"),
        )
        return working.value, working

    def explain_token(self, readout: Readout, output: Output, part: int, token: int) -> Explained:
        """The sum over parts, or of one part over the positions that the head reads."""
        name, values = self.numbers.names[part], self.numbers.by_token(readout, output)[:, token]
        if name in self.numbers.sums:
            address = address_of(f"{readout.name}.token", *output, ":", token)
            return float(values[part]), self.sum_of_parts(name, values, address)
        if name == HEAD_BIAS:
            return 0.0, unchanged("The task's head has no bias.", 0.0, "b")
        at = range(len(self.recording.ids))[readout.positions(output)]
        reads = [float(self.numbers.by_token(readout, output, position)[part, token]) for position in at]
        opens = address_of(f"{readout.name}.read", *output, part, ":", token)
        return float(values[part]), added_up({"position": at, "contribution": reads}, opens)

    def explain_read(self, readout: Readout, output: Output, part: int, position: int, token: int) -> Explained:
        """A head's weight times what its value is worth; any other part is added at its own token."""
        at = readout.positions(output)
        if not at.start <= position < at.stop:
            return 0.0, unchanged(f"The head of the task does not read position {position}.", 0.0)
        stored = float(self.numbers.by_token(readout, output, position)[part, token])
        leaf, *norms = self.numbers.stream.trail(self.numbers.names[part])
        if isinstance(leaf, HeadOutputs) and not self.numbers.names[part].endswith(".bias"):
            return stored, self.explain_head_read(readout, output, (leaf, norms), part, position, token)
        if position != token:
            return stored, unchanged(f"This part is added at token {position}, and comes from there.", 0.0)
        source, x = address_of(VECTOR, position, part, ":"), self.numbers.vectors(slice(position, position + 1))
        return stored, self.dot_product(readout, output, source, x[part, 0], 1 / (at.stop - at.start))

    def explain_head_read(
        self, readout: Readout, output: Output, trail: tuple[HeadOutputs, list], part: int, position: int, token: int
    ) -> Working:
        """a · (v · u), where u is the direction of the output inside the head."""
        (leaf, norms), at, trace = trail, readout.positions(output), self.recording.trace
        here, count = slice(position, position + 1), at.stop - at.start
        w, address = readout.row(output)
        directions = torch.from_numpy(readout.scale * w / count)[None, None]
        for norm in reversed(norms):
            directions = norm.back(trace, here, directions)
        reads, head = leaf.reads(trace, here, directions), head_of(leaf, self.numbers.names[part])
        value, u = reads.values[head, token].numpy(), reads.inside[0, 0, head].numpy()
        group = head // (len(reads.values) // self.recording.config.num_kv_heads)
        products = multiply_out({"v": address_of(f"{leaf.core}.value", group, token, ":")}, {"v": value, "u": u})
        weight, scaled = float(reads.weights[head, 0, token]), float(reads.factor[head, 0, 0])
        rest = float(reads.rest[head, 0] @ reads.inside[0, 0, head]) if position == token else 0.0
        result = weight * scaled * products.sums["v · u"] + rest
        remark = Remark(
            f"u is {address}, divided by the last norm and by the number of positions that the head reads, times the "
            f"columns {head * len(u)} to {head * len(u) + len(u) - 1} of {leaf.path}.weight"
        )
        note = "the second factor and the last term give the recorded output of the head, which may be changed"
        operands = {"a": address_of(f"{leaf.core}.weights", head, position, token)}
        terms = ["y =", weight, "·", scaled, "·", factor(products.sums["v · u"]), *plus(rest)]
        equation = equals(result, *terms, note=note, operands=operands)
        return Working([remark, products, equation], result, abs(weight * scaled) * scale_of(products) + 2 * abs(rest))


def explain_difference(
    name: str, length: int, explain: Callable[[tuple[int, ...]], Explained], index: tuple[int, ...]
) -> Explained:
    """The number of one output minus the same number of another; length: of the index of an output."""
    first, second, rest = index[:length], (*index[: length - 1], index[length]), index[length + 1 :]
    (a, _), (b, _) = (explain((*output, *rest)) for output in (first, second))
    operands = {letter: address_of(name, *output, *rest) for letter, output in (("a", first), ("b", second))}
    equation = equals(a - b, "a - b =", a, *plus(-b), operands=operands)
    return a - b, Working([equation], a - b, abs(a) + abs(b))
