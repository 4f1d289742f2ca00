"""Predictions of a tuned model for texts and for files of any size, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from foretell.data.table import Row
from foretell.errors import UsageError
from foretell.finetuning.batches import EncodedExample
from foretell.finetuning.figures import log_softmax
from foretell.finetuning.head import head_of, input_format
from foretell.finetuning.input_format import check_cuts
from foretell.finetuning.settings import PAIRED, HeadSettings
from foretell.finetuning.task import head_outputs
from foretell.insight.wording import percent
from foretell.language_model import LanguageModel
from foretell.typesetting.document import DocumentSection, Table
from foretell.typesetting.notebook import Shown, ShownList

COUNTS = {1: "one text", 2: "two texts", 3: "a question and two answers or more"}
ROWS_AT_ONCE = 1024
SHOWN, BAR_WIDTH = 20, 24  # labels of one prediction, columns of a bar


@dataclass(frozen=True)
class TaskPrediction(Shown):
    """A label with the probability of each, or a number."""

    label: str | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None

    def document(self) -> DocumentSection:
        """The labels with their probabilities, the likeliest first; or the number."""
        if self.probabilities is None:
            return DocumentSection(f"{self.value:.6g}", [])
        ordered = sorted(self.probabilities.items(), key=lambda item: -item[1])[:SHOWN]
        rows = [(percent(value), "█" * max(1, round(BAR_WIDTH * value)), name) for name, value in ordered]
        return DocumentSection(f"label {self.label}", [Table(("probability", "", "label"), rows)])

    def lines(self) -> str:
        """The labels with their probabilities, one per line; or the number."""
        if self.probabilities is None:
            return f"{self.value:.6g}"
        ordered = sorted(self.probabilities.items(), key=lambda item: -item[1])
        return "\n".join(f"{percent(value):>7}  {name}" for name, value in ordered[:SHOWN])

    def short(self) -> str:
        """The label and its probability, or the number, in a few characters."""
        if self.probabilities is None:
            return f"{self.value:.6g}"
        assert self.label is not None
        return f"{self.probabilities[self.label]:>6.1%}  {self.label[:16]}"

    def to_json(self) -> dict[str, Any]:
        if self.probabilities is None:
            return {"value": self.value}
        return {"label": self.label, "probabilities": self.probabilities}


def predict(model: LanguageModel, texts: str | Sequence[str | Sequence[str]]) -> ShownList[TaskPrediction]:
    """The predictions of a tuned model for a text, or for several.

    For tasks on more than one text, each of `texts` is a sequence: both texts of a pair, or a question and its answers.
    Raises the errors of `predict_rows`.
    """
    several = [texts] if isinstance(texts, str) else texts
    return ShownList(predict_rows(model, [(row,) if isinstance(row, str) else tuple(row) for row in several]))


def predict_rows(
    model: LanguageModel, rows: Sequence[Sequence[str]], where: Sequence[str] = ()
) -> list[TaskPrediction]:
    """A prediction for each row of texts: one, two, or a question and its answers.

    Raises UsageError for an empty text, the wrong number of texts and a model without a head, DataError for a text that
    does not fit the context where the model was not trained to cut it.
    """
    head = head_of(model)
    check_counts(rows, head.settings)
    if not all(text.strip() for texts in rows for text in texts):
        raise UsageError("the text is empty; give at least one character")
    places = where or [f"text {index}" for index in range(1, len(rows) + 1)]
    inputs = input_format(model)
    encoded = inputs.encode_all(rows)
    check_cuts(encoded, places, head.settings, inputs.context_length)
    examples = [EncodedExample(texts.sequences) for texts in encoded]
    outputs = head_outputs(model.decoder, head, examples, model.dtype) if examples else np.zeros((0, 1))
    return [prediction_of(row, texts, head.settings) for row, texts in zip(outputs, rows, strict=True)]


def check_counts(rows: Sequence[Sequence[str]], settings: HeadSettings) -> None:
    """Refuse a row with another number of texts than the task reads."""
    least = 2 if settings.task in PAIRED else 3 if settings.task == "choice" else 1
    for texts in rows:
        if len(texts) < least or (len(texts) > least and settings.task != "choice"):
            what = COUNTS[least]
            raise UsageError(f"a model for --task {settings.task} reads {what}, not {len(texts)}")


def prediction_of(outputs: np.ndarray, texts: Sequence[str], settings: HeadSettings) -> TaskPrediction:
    """The prediction from the outputs (C,) of one example."""
    if settings.is_number:
        return TaskPrediction(value=settings.mean + settings.deviation * float(outputs[0]))
    names = settings.labels or tuple(texts[1:])
    probabilities = np.exp(log_softmax(outputs[None, : len(names)])[0])
    pairs = dict(zip(names, probabilities.tolist(), strict=True))
    return TaskPrediction(label=names[int(probabilities.argmax())], probabilities=pairs)


def iter_predictions(
    model: LanguageModel, rows: Iterable[tuple[Row, tuple[str, ...]]]
) -> Iterator[tuple[Row, TaskPrediction | None]]:
    """Rows with their predictions, ROWS_AT_ONCE at a time; None for a row with an empty text."""
    pending = iter(rows)
    while group := list(islice(pending, ROWS_AT_ONCE)):
        full = [(row, texts) for row, texts in group if all(text.strip() for text in texts)]
        results = iter(predict_rows(model, [texts for _, texts in full], [row.where for row, _ in full]))
        present = {id(row) for row, _ in full}
        for row, _ in group:
            yield row, next(results) if id(row) in present else None
