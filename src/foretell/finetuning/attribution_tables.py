"""The attribution of a tuned model's prediction as data, and as tables of words and of parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foretell.finetuning.kind import TaskPrediction
from foretell.insight.attribution.direct_logit_attribution import DirectContribution
from foretell.insight.attribution.word_effects import WordEffects, WordRow, largest_in_order, sum_parts, word_table
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table, bar, percent, signed
from foretell.typesetting.html import Shown

SHOWN_PARTS = 12


@dataclass(frozen=True)
class WordContribution:
    """A word of the texts: its effect on the logit, the standard error of a sampled effect, its direct contribution.

    source: the index of its text among the texts of the example.
    """

    text: str
    effect: float
    error: float
    value: float
    source: int = 0


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens around the texts; `value`, their direct contribution, and `share`, its part of all contributions.

    The share is of the sum of absolute values over words and special tokens.
    """

    names: tuple[str, ...]
    value: float
    share: float

    def parts(self) -> list[Part]:
        if not self.names:
            return []
        line = f"special tokens {' '.join(self.names)}: direct {signed(self.value)}"
        return [Paragraph(f"{line}, {percent(self.share)} of the direct contributions by absolute value")]


@dataclass(frozen=True)
class LabelAttribution(Shown):
    """Contributions to `logit`: of words in the order of the texts, and of parts in the order of the model.

    The logit of `label` minus the logit of `against`, or minus the mean over all labels; of a number it is the
    number itself, of a choice the score of the answer. The direct contributions of words and special tokens, or of
    parts, and `constant`, the mean of the numbers, add up to `total`, which equals the logit but for rounding.
    unit: what a row is, `word` or `token`, or a span such as `span of 2 words`. scope: what the prediction leaves out.
    """

    prediction: TaskPrediction
    label: str
    against: str
    unit: str
    words: list[WordContribution]
    special_tokens: SpecialTokens
    effects: WordEffects
    parts: list[DirectContribution]
    constant: float
    total: float
    logit: float
    scope: str = ""

    def document(self) -> DocumentSection:
        """The prediction, a bar per word, the special tokens, and the largest parts."""
        title = f"direct contributions to {self.label}" + (f" {self.against}" if self.against else "")
        parts = sorted(self.parts, key=lambda part: -abs(part.value))[:SHOWN_PARTS]
        rest = sum(part.value for part in self.parts) - sum(part.value for part in parts)
        others = [(signed(rest), "", f"the other {len(self.parts) - len(parts)} together")]
        ends = [(signed(self.total), "", "their sum")]
        if self.constant:
            ends = [(signed(self.constant), "", "the mean of the training examples"), *ends]
        rows = [(part.value, part.name) for part in parts]
        return DocumentSection(
            title,
            [
                Paragraph(f"predicted: {self.prediction.short().strip()}"),
                *([Paragraph(self.scope)] if self.scope else []),
                *self.tables(),
                *sum_parts(self.effects, "word" if self.unit.endswith("words") else self.unit),
                *self.special_tokens.parts(),
                DocumentSection(
                    "by part of the model", [bars(rows, [*(others if len(parts) < len(self.parts) else []), *ends])]
                ),
                Paragraph(f"the model's own: {signed(self.logit)}"),
            ],
        )

    def tables(self) -> list[DocumentSection]:
        """The words of each text."""
        longest = max((abs(word.effect) for word in self.words), default=0.0)
        sources = sorted({word.source for word in self.words})
        sections = []
        for source in sources:
            words = [word for word in self.words if word.source == source]
            rows = [WordRow(word.text, word.effect, word.error, {"direct": signed(word.value)}) for word in words]
            shown = largest_in_order(rows)
            title = f"by {self.unit}" + (f", text {source + 1}" if len(sources) > 1 else "")
            title += f", the {len(shown)} largest of {len(rows)}" if len(shown) < len(rows) else ""
            sections.append(DocumentSection(title, [word_table(shown, longest, self.unit.split()[0])]))
        return sections

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "prediction": self.prediction.to_json(), "effects": self.effects.to_json()}


def bars(rows: Sequence[tuple[float, str]], more: Sequence[tuple[str, str, str]] = ()) -> Table:
    """Numbers with bars and names; bars are relative to the largest."""
    longest = max((abs(value) for value, _ in rows), default=1.0) or 1.0
    return Table(("", "", ""), [*((signed(value), bar(value / longest), name) for value, name in rows), *more])
