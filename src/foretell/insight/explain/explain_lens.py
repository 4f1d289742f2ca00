"""Explanations of the logit lens's numbers: `trunk.blocks.2.lens.probabilities[t,v]`.

The lens at a point of the stream is explained by a pass whose last layer returns the stream at that point.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from foretell.insight.explain.explanation import Explanation
from foretell.insight.explain.steps import Equation, Remark, Step
from foretell.insight.implied_values import implied_values
from foretell.insight.recorded_pass import record
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.structure import Structure

LENS = ".lens."
NAME_OF_NUMBER = re.compile(r"[\w.]+(?=\[)")


@contextmanager
def ending_at(model: LanguageModel, text: str | list[int], point: str) -> Iterator[None]:
    """Inside the block, the last layer of the model returns the stream at a point."""
    recording = record(model, text, [point])
    stream, last = recording.trace[point], recording.structure.stream[-1]
    with Trace(model, replace={last: lambda _: stream}):
        yield


def names_in_lens(structure: Structure, point: str) -> dict[str, str]:
    """The names in the lens, by the names in a pass that ends at the point."""
    last, values = structure.stream[-1], {**structure.values, **implied_values(structure)}

    @cache
    def follows(name: str) -> bool:
        """True for a value computed from the stream after the last layer."""
        return name == last or (name in values and any(map(follows, values[name].reads)))

    return {name: f"{point}{LENS}{name}" for name in values if follows(name)} | {last: point}


def in_lens(explanation: Explanation, point: str, names: Mapping[str, str]) -> Explanation:
    """The explanation of a number in a pass that ends at a point, as one of the lens there."""
    steps = tuple(renamed(step, names) for step in explanation.steps)
    meaning = (f"the logit lens of {point}", *explanation.meaning)
    return replace(explanation, name=names[explanation.name], meaning=meaning, steps=steps)


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
