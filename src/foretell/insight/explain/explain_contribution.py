"""Explanations of direct contributions to logits, down to the vectors that parts add, and to weights.

`contributions[t,v,n]`: the contribution of part n to the logit of token v after position t.
`contributions.vector[t,n,d]`: the part's vector after the last norm, with the pass's statistics. `.written[t,n,d]`: the
vector that the part adds to the stream. `logits.difference[t,v,w]`: the difference of two logits.

A tuned model has `task_head.contributions[c,n]`, where the c after the last label is the mean of all labels; for tags,
the position comes first. `.whole[c]` is the sum of the parts, `.word[c,w]` the sum over the tokens of a word, and
`.token[c,n,s]` the contribution of part n from token s, which is the sum of `.read[c,n,t,s]` over the positions t that
the head reads. `.vector[n,d]` is the mean over positions, for a head that reads it. A `.difference` has a second output
after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch

from foretell.insight.address import address_of
from foretell.insight.contributions import Contributions, replaced_updates, terms_of_head
from foretell.insight.explain.contribution_steps import (
    WRITTEN,
    added_up,
    explain_difference,
    explain_logit,
    explain_mean_vector,
    explain_part,
    explain_read,
    explain_token,
    explain_vector,
    explain_whole,
    explain_word,
    explain_written,
)
from foretell.insight.explain.explanation import Explained, NumberGroup, NumberKind
from foretell.insight.readout import MEAN_OF_LABELS, TASK_VECTOR, VECTOR, LogitReadout, Readout, TaskReadout
from foretell.insight.recorded_pass import RecordedPass
from foretell.insight.replacement import replaced_names
from foretell.insight.stream_terms import Term, names_by_token
from foretell.language_model import LanguageModel
from foretell.model.structure import Structure

LOGITS, DIFFERENCE = "logits", ".difference"
WHOLE = f"{TaskReadout.name}.whole"
OF_LOGITS = (VECTOR, WRITTEN, LogitReadout.name, LogitReadout.name + DIFFERENCE, LOGITS + DIFFERENCE)
BY_TOKEN = (".word", ".token", ".read")
OF_TASK = tuple(
    f"{TaskReadout.name}{kind}{difference}" for kind in ("", ".whole", *BY_TOKEN) for difference in ("", DIFFERENCE)
)


class ContributionNumbers(NumberGroup):
    """Contributions to logits and to the outputs of any task's head."""

    def __init__(self, model: LanguageModel, structure: Structure, task: TaskReadout | None):
        self.decoder, self.structure, self.task = model.decoder, structure, task
        of_vector = [TASK_VECTOR] if task is not None and task.reads_mean else []
        self.names = [*OF_LOGITS, *([] if task is None else OF_TASK), *of_vector]

    @cached_property
    def stream(self) -> Term:
        replaced = replaced_updates(self.structure, replaced_names(self.decoder))
        return terms_of_head(self.decoder, self.structure, replaced)

    def needs(self, name: str) -> Sequence[str]:
        is_by_token = name.removesuffix(DIFFERENCE).endswith(BY_TOKEN)
        return names_by_token(self.stream, self.structure) if is_by_token else self.stream.names()

    def kind(self, recording: RecordedPass, name: str) -> NumberKind:
        explainer = ContributionExplainer(Contributions(recording, self.stream), self.task)
        return replace(explainer.kinds[name], texts=explainer.texts)


class ContributionExplainer:
    """Explains the contributions in a pass; `kinds` has them by name."""

    def __init__(self, numbers: Contributions, task: TaskReadout | None):
        self.numbers, self.recording = numbers, numbers.recording
        logits = LogitReadout(self.recording)
        T, D, N, P = len(self.recording.ids), self.recording.config.width, len(numbers.names), len(numbers.vector_names)
        self.texts: dict[str, Sequence[str]] = {"part": numbers.names}
        of_vector = ("position", "part", "element"), (T, P, D)
        self.kinds = {
            VECTOR: NumberKind(*of_vector, partial(explain_vector, numbers)),
            WRITTEN: NumberKind(*of_vector, partial(explain_written, numbers)),
            **self.of_outputs(logits.name, logits, explain_part, part=N),
            LOGITS + DIFFERENCE: self.of_outputs(LOGITS, logits, explain_logit)[LOGITS + DIFFERENCE],
        }
        if task is None:
            return
        self.texts["output"], owners = task.labels, task.words()
        word = partial(explain_word, owners)
        self.kinds |= self.of_outputs(task.name, task, explain_part, part=N)
        self.kinds |= self.of_outputs(WHOLE, task, explain_whole)
        self.kinds |= self.of_outputs(f"{task.name}.word", task, word, word=max(owners) + 1)
        self.kinds |= self.of_outputs(f"{task.name}.token", task, explain_token, part=N, source=T)
        self.kinds |= self.of_outputs(f"{task.name}.read", task, explain_read, part=P, position=T, source=T)
        if task.reads_mean:
            self.kinds[TASK_VECTOR] = NumberKind(("part", "element"), (P, D), partial(explain_mean_vector, numbers))

    def of_outputs(
        self, name: str, readout: Readout, explain: Callable[..., Explained], **others: int
    ) -> dict[str, NumberKind]:
        """Numbers for each output of a readout, and their differences. others: the sizes of further indices."""
        length, own_sizes = len(readout.dimensions), readout.sizes(len(self.recording.ids))
        dimensions, sizes = (*readout.dimensions, *others), (*own_sizes, *others.values())
        own = partial(self.explain_output, name, readout, explain)
        dtype = self.recording.model.dtype if name == WHOLE else torch.float64
        difference = NumberKind(
            (*dimensions[:length], *dimensions[length - 1 :]),
            (*sizes[:length], *sizes[length - 1 :]),
            partial(explain_difference, name, length, own),
            dtype,
        )
        return {name: NumberKind(dimensions, sizes, own, dtype), name + DIFFERENCE: difference}

    def explain_output(
        self, name: str, readout: Readout, explain: Callable[..., Explained], index: tuple[int, ...]
    ) -> Explained:
        """Explain a number of an output, or of the mean of all labels."""
        length = len(readout.dimensions)
        output, rest = index[:length], index[length:]
        if not readout.labels or readout.labels[output[-1]] != MEAN_OF_LABELS:
            return explain(self.numbers, readout, output, *rest)
        rows = [explain(self.numbers, readout, (*output[:-1], label), *rest)[0] for label in range(output[-1])]
        columns = {"output": range(len(rows)), "label": readout.labels[:-1], "contribution": rows}
        working = added_up(columns, address_of(name, *output[:-1], ":", *rest), is_mean=True)
        return working.value, working
