"""Direct logit attribution: the direct contribution of each part of a model to the logit of one token.

A logit is a dot product of the stream with a vector of the head, and the stream is the sum of the vectors from the
embedding, each head and each feed-forward layer. So the logit is a sum of one number per part (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"). `stream_terms` finds the parts, and freezes the norms.

A direct contribution is the amount that a part adds to the logit without any other part in between. It is not the
effect of removing the part, because later layers read its output and the norms would change; `ablation` measures
that. Nor is it evidence for a token by itself: adding a number to all logits changes no probability. A comparison with
another token (`against`) removes the common amount.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from foretell.errors import UsageError
from foretell.insight.contributions import record_contributions
from foretell.insight.readout import LogitReadout
from foretell.insight.recorded_pass import choose_token
from foretell.insight.replacement import replaced_names
from foretell.language_model import LanguageModel, decoder_of
from foretell.typesetting.document import DocumentSection, Paragraph, Table, bar, quoted
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import signed

SHOWN = 16  # parts listed individually

# The sum is computed in float64 from values that the model has rounded, so it can differ from the logit by up to
# SUM_BOUND * epsilon of the model's dtype * the largest absolute logit; measured: at most 5.1, primer 0.7
SUM_BOUND = 16


@dataclass(frozen=True)
class DirectContribution:
    """The direct contribution of a part, given by its address, to the logit."""

    name: str
    value: float


def part_table(
    parts: Sequence[DirectContribution], most: int, total: float, logit: float, constant: float = 0.0
) -> Table:
    """The `most` largest parts with bars, the others together, any constant, their sum, and the model's own number."""
    shown = sorted(parts, key=lambda part: -abs(part.value))[: most if len(parts) > most + 1 else None]
    longest = abs(shown[0].value) or 1.0
    rows = [(signed(part.value), bar(part.value / longest), part.name) for part in shown]
    if others := len(parts) - len(shown):
        rest = total - constant - sum(part.value for part in shown)
        rows.append((signed(rest), "", f"the other {others} together"))
    if constant:
        rows.append((signed(constant), "", "the mean of the training examples"))
    ends = [(signed(total), "", "their sum"), (signed(logit), "", "the model's own")]
    return Table(("", "", ""), [*rows, ("", "", ""), *ends])


@dataclass(frozen=True, repr=False)
class DirectLogitAttribution(Shown):
    """All parts in the order of the model; `total` is their sum, `logit` the model's own value.

    With `against`, all numbers are differences: the logit of `token` minus the logit of `against`.
    """

    where: str
    token: int
    text: str
    against: int | None
    against_text: str | None
    parts: list[DirectContribution]
    total: float
    logit: float

    def largest(self, count: int) -> list[DirectContribution]:
        """The `count` largest parts by absolute value."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:count]

    def document(self) -> DocumentSection:
        table = part_table(self.parts, SHOWN, self.total, self.logit)
        title = f"direct contributions to the logit of {quoted(self.text)}"
        if self.against_text is not None:
            title += f" minus the logit of {quoted(self.against_text)}"
        return DocumentSection(title, [Paragraph(self.where), table])

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "where"}


@torch.inference_mode()
def direct_logit_attribution(
    model: LanguageModel,
    text: str | list[int],
    token: str | int | None = None,
    at: int = -1,
    against: str | int | None = None,
) -> DirectLogitAttribution:
    """The direct contribution of every part to a token's logit at position `at` of a text, or of ids.

    token: text or id; None for the most probable one. Parts are the token and position embeddings, each head
    (`trunk.blocks.3.attention.core[0]`), the biases of attention outputs, each feed-forward layer, the biases of norms
    (`trunk.norm.bias`) and of the head. Their sum equals the logit within SUM_BOUND. Inside a `Trace` that replaces a
    value of the stream, that value is one part. Raises `UsageError` if the parts do not add up to the logit because a
    trace replaces a value between them and the logit.
    """
    replaced = sorted(replaced_names(decoder_of(model)))
    numbers = record_contributions(model, text, replaced=replaced)
    recording, readout = numbers.recording, LogitReadout(numbers.recording)
    at = recording.position(at)
    logits = recording.next_logits(at).double()
    chosen = choose_token(model, token, logits)
    other = None if against is None else choose_token(model, against, logits)
    if other == chosen:
        raise UsageError(f"--against is the token itself, {quoted(model.tokenizer.text_of(chosen))}; give another one")

    def compared(number: Callable[[int], Any]) -> Any:
        """A number of the token, minus the same number of any other token."""
        return number(chosen) - (0 if other is None else number(other))

    direction = compared(lambda token: readout.directions(len(recording.ids), (at, token)))
    values = numbers.of_parts(slice(at, at + 1), direction)[:, 0].tolist()
    values += [compared(lambda token: readout.bias((at, token)))] if numbers.has_bias else []
    parts = list(map(DirectContribution, numbers.parts, values))
    total, logit = sum(values), float(compared(lambda token: logits[token]))
    if replaced:
        largest = max(float(logits.abs().max()), sum(abs(part.value) for part in parts))
        if not abs(total - logit) <= SUM_BOUND * torch.finfo(model.dtype).eps * largest:
            raise UsageError(
                f"the contributions do not add up to the logit: a trace replaces {' and '.join(replaced)} in this pass"
            )
    text_of = model.tokenizer.text_of
    against_text = None if other is None else text_of(other)
    return DirectLogitAttribution(
        recording.after(at), chosen, text_of(chosen), other, against_text, parts, total, logit
    )
