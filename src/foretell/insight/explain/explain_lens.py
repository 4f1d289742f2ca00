"""Explanations of the logit lens's numbers: `trunk.blocks.2.lens.probabilities[t,v]`.

The lens at a point of the stream is explained by a pass whose last layer returns the stream at that point.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from foretell.insight.explain.explain_value import ALIASES, RecordedNumbers
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.explain.steps import Equation, Remark, Step
from foretell.insight.recorded_pass import RecordedPass, record
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.structure import Structure, Value

LENS = ".lens."
NAME_OF_NUMBER = re.compile(r"[\w.]+(?=\[)")


class LensNumbers(NumberGroup):
    """The numbers that follow from the stream after the last layer, at each point of the stream."""

    def __init__(self, model: LanguageModel, structure: Structure):
        self.stream, self.recorded = structure.stream, RecordedNumbers(model, structure)
        self.inside = names_after(structure.stream[-1], self.recorded.values)
        known = [*self.inside, *(name for name, full in ALIASES.items() if full in self.inside)]
        self.names = [f"{point}{LENS}{name}" for point in structure.stream for name in known]

    def full_name(self, name: str) -> str:
        point, _, inner = name.partition(LENS)
        return f"{point}{LENS}{self.recorded.full_name(inner)}"

    def needs(self, name: str) -> Sequence[str]:
        return [name.partition(LENS)[0]]

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        point, _, inner = name.partition(LENS)
        stream, last = recording.trace[point], self.stream[-1]
        with Trace(recording.model, replace={last: lambda _: stream}):
            ending = record(recording.model, recording.ids, self.recorded.needs(inner))
        kind = self.recorded.kind(ending, inner)
        names = {name: f"{point}{LENS}{name}" for name in self.inside} | {last: point}

        def explain(index: tuple[int, ...]) -> Explained:
            stored, working = kind.explain(index)
            return stored, replace(working, steps=[renamed(step, names) for step in working.steps])

        return replace(kind, explain=explain, context=f"the logit lens of {point}")


def names_after(last: str, values: Mapping[str, Value]) -> list[str]:
    """The names of the values that are computed from the stream after the last layer."""

    @cache
    def follows(name: str) -> bool:
        return name == last or (name in values and any(map(follows, values[name].reads)))

    return [name for name in values if name != last and follows(name)]


def renamed(step: Step, names: Mapping[str, str]) -> Step:
    """A step with its operands renamed to the lens's."""

    def as_own(text: str) -> str:
        return NAME_OF_NUMBER.sub(lambda match: names.get(match[0], match[0]), text)

    if isinstance(step, Remark):
        return Remark(as_own(step.text))
    operands = {name: as_own(address) for name, address in step.operands.items()}
    if isinstance(step, Equation):
        return replace(step, note=as_own(step.note), operands=operands)
    opens = {name: as_own(address) for name, address in step.opens.items()}
    return replace(step, note=as_own(step.note), operands=operands, opens=opens)
