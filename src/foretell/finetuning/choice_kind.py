"""Multiple choice, the right one of several answers to a question: `--task choice`."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from foretell.data.table import Row, list_names
from foretell.errors import DataError
from foretell.finetuning.examples import Example, ExampleForm, ExampleReader, cell_text, label_text
from foretell.finetuning.inputs import Target, TaskBatch
from foretell.finetuning.kind import Token
from foretell.finetuning.label_kind import LabelFormat, LabelKind, find_label, whole
from foretell.finetuning.prediction_format import AskedOutput
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.insight.readout import ChoiceReadout
from foretell.typesetting.document import quoted

CHOICES = "choices"  # a column with a list, in JSON
ANSWERS = ("choice", "answer", "ending", "option")  # columns of single answers begin so
LETTERS = "ABCDEFGH"


class ChoiceReader(ExampleReader):
    form = ExampleForm(
        fewest=3,
        most=None,
        words="a question and two answers or more",
        arguments='"a question" "an answer" "another answer"',
    )
    text_names = ("query", "question", "context", "premise", "ctx", "prompt", "text")
    text_word = "question"

    def find_texts(self, available: Sequence[str], given: Columns, where: str) -> Columns:
        """Also chooses the columns of the answers; none if one column has them as a list."""
        columns = super().find_texts(available, given, where)
        others = [name for name in available if name not in columns.texts]
        single = [name for name in others if name.lower().startswith(ANSWERS) and name[-1:].isalnum()]
        is_list = CHOICES in others
        choices = given.choices or (() if is_list else tuple(name for name in single if name.lower() != CHOICES))
        if not is_list and len(choices) < 2:
            raise DataError(
                f"{where}: which columns hold the answers? Name each with --choice-column; its columns are "
                f"{list_names(others, 12)}"
            )
        return columns.model_copy(update={"choices": choices})

    def texts(self, row: Row, columns: Columns) -> tuple[str, ...]:
        """The question and the answers; with a column per answer, some may be empty."""
        question = super().texts(row, columns)
        if columns.choices:
            return (*question, *(text for name in columns.choices if (text := cell_text(row, name))))
        choices = row.cells.get(CHOICES)
        if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
            raise DataError(f"{row.where}: 'choices' must be a list of two or more texts")
        return (*question, *choices)

    def text_name(self, index: int, columns: Columns) -> str:
        names = (*columns.texts, *columns.choices)
        return names[index] if index < len(names) else f"{CHOICES}, item {index}"

    def labels(self, row: Row, texts: tuple[str, ...], columns: Columns) -> tuple[str, ...]:
        """The index of the right answer, given as an index from 0, a letter, the answer or its column."""
        assert columns.label is not None
        label, choices = label_text(row.cells.get(columns.label), columns.label, row.where), texts[1:]
        names = {str(index): index for index in range(len(choices))}
        names |= {letter: index for index, letter in enumerate(LETTERS[: len(choices)])}
        names |= {column: index for index, column in enumerate(columns.choices)}
        names |= {choice: index for index, choice in enumerate(choices)}
        label = label if label in names else whole(label)
        if label not in names:
            raise DataError(
                f"{row.where}: the right answer is {label[:40]!r}; give its index (0 to {len(choices) - 1}), its "
                "letter, its column or the answer itself"
            )
        return (str(names[label]),)


class ChoiceFormat(LabelFormat):
    def names(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(texts[1:])

    def num_answers(self, others: Sequence[str]) -> int:
        return len(others)

    def asked(self, texts: Sequence[str], label: str | None, against: str | None) -> AskedOutput:
        names = self.names(texts)
        chosen = find_label(names, label)
        self.refuse_against(against)
        return AskedOutput(chosen, f"the score of answer {chosen}, {quoted(names[chosen])}")


class ChoiceKind(LabelKind):
    """A score for each answer after the question, with a softmax over the answers. The label is the right index."""

    reader = ChoiceReader("choice")
    format = ChoiceFormat
    readout = ChoiceReadout

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        return settings

    def target(self, example: Example) -> Target:
        return (int(example.labels[0]),)

    def describe_targets(self, targets: Sequence[Target]) -> str:
        return "the index of the right answer"

    def groups(self, texts: list[Token]) -> list[list[Token]]:
        return [[texts[0], answer] for answer in texts[1:]]

    def combined(self, layer: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
        """(B, K): minus infinity where an example has fewer answers."""
        return layer(vectors)[..., 0].masked_fill(lengths == 0, float("-inf"))

    def losses(self, outputs: Tensor, batch: TaskBatch, label_smoothing: float) -> Tensor:
        """Without smoothing, because missing answers have a score of minus infinity."""
        return F.cross_entropy(outputs, batch.targets[:, 0].long(), reduction="none")
