"""Labels of texts: `--task classify`."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from foretell.errors import DataError, UsageError, did_you_mean
from foretell.finetuning.examples import Example, ExampleReader
from foretell.finetuning.figures import class_report, confusion, label_figures, log_softmax, macro_f1
from foretell.finetuning.inputs import EncodedExample, Target, TaskBatch
from foretell.finetuning.kind import Kind
from foretell.finetuning.number_kind import parse_number
from foretell.finetuning.prediction_format import AskedOutput, PredictionFormat, TaskPrediction
from foretell.finetuning.settings import HeadSettings
from foretell.typesetting.document import DocumentSection, Table, bar, quoted
from foretell.typesetting.numbers import percent
from foretell.typesetting.text import shorten

MOST_LABELS = 1000
PROBABILITY, PROBABILITIES = "probability_", "probabilities"
SHOWN = 20  # labels shown per prediction
WHOLE_WITH_POINT = re.compile(r"([+-]?\d+)\.0+")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelPrediction(TaskPrediction):
    """A label, and the probability of each."""

    label: str = ""
    probabilities: dict[str, float] = field(default_factory=dict)

    def document(self) -> DocumentSection:
        likeliest = sorted(self.probabilities.items(), key=lambda item: -item[1])[:SHOWN]
        rows = [(percent(value), bar(value), shorten(name, 60)) for name, value in likeliest]
        return DocumentSection(f"label {shorten(self.label, 60)}", [Table(("probability", "", "label"), rows)])

    def short(self) -> str:
        return f"{self.probabilities[self.label]:>6.1%}  {shorten(self.label, 16)}"

    def to_json(self) -> dict[str, Any]:
        return {"label": self.label, "probabilities": self.probabilities}


class LabelFormat(PredictionFormat):
    answer = "label"

    def make(self, outputs: np.ndarray, texts: Sequence[str]) -> LabelPrediction:
        names = self.names(texts)
        probabilities = np.exp(log_softmax(outputs[None, : len(names)])[0])
        pairs = dict(zip(names, probabilities.tolist(), strict=True))
        return LabelPrediction(names[int(probabilities.argmax())], pairs)

    def table_cells(self, prediction: LabelPrediction | None) -> dict[str, Any]:
        """A column for each label, or for each answer by its number."""
        values = [] if prediction is None else [f"{value:.6g}" for value in prediction.probabilities.values()]
        names = self.settings.labels or tuple(map(str, range(len(values))))
        cells = zip(names, values or [""] * len(names), strict=True)
        return {self.column: prediction and prediction.label} | {f"{PROBABILITY}{name}": value for name, value in cells}

    def asked(self, texts: Sequence[str], label: str | None, against: str | None) -> AskedOutput:
        """The logit of a label minus the logit of `against`, or minus the mean over all labels."""
        names = self.settings.labels
        chosen, other = find_label(names, label), len(names) if against is None else find_label(names, against)
        if other == chosen:
            raise UsageError(f"--against is the label itself, {quoted(names[chosen])}; give another one")
        minus = "the mean of all labels" if against is None else f"the logit of {quoted(names[other])}"
        return AskedOutput(chosen, f"the logit of {quoted(names[chosen])}", other, f"minus {minus}")


class LabelKind(Kind):
    """One of several labels: cross entropy on a logit per label."""

    format = LabelFormat
    scores = ("accuracy", "macro_f1")

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        labels = find_labels(examples)
        if len(labels) > 2 and all(parse_number(label) is not None for label in labels):
            logger.info("labels      are numbers, each learned as a class; regress is the task that predicts a number")
        return settings.model_copy(update={"labels": labels})

    def target(self, example: Example) -> Target:
        (label,) = example.labels
        return (label_index(label, self.settings.labels, example.where),)

    def regression_targets(self, targets: Sequence[Target]) -> np.ndarray | None:
        """1 for the label of each example, centered over the labels; None for the answers of a choice."""
        count = len(self.settings.labels)
        return np.eye(count)[indices_of(targets)] - 1 / count if count else None

    def weights(self, examples: Sequence[EncodedExample], class_weights: str) -> np.ndarray:
        """With `balanced`, all classes have the same total weight."""
        if class_weights == "none":
            return super().weights(examples, class_weights)
        indices, count = indices_of([example.target for example in examples]), self.settings.num_outputs
        seen = np.bincount(indices, minlength=count)
        return (len(indices) / (count * np.maximum(seen, 1)))[indices]

    def losses(self, outputs: Tensor, batch: TaskBatch, label_smoothing: float) -> Tensor:
        targets = batch.targets[:, 0].long()
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)

    # --- figures

    def figures(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, float]:
        return label_figures(stacked(outputs), indices_of(targets))

    def report(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, Any]:
        logits, indices = stacked(outputs), indices_of(targets)
        names = self.settings.labels or tuple(map(str, range(logits.shape[1])))
        return {**label_figures(logits, indices), **class_report(logits, indices, names)}

    def baseline(self, train: Sequence[Target], targets: Sequence[Target]) -> dict[str, Any]:
        indices, majority = indices_of(targets), int(np.bincount(indices_of(train)).argmax())
        chosen = np.full(len(indices), majority)
        return {
            "rule": "the most frequent label",
            "label": self.settings.labels[majority] if self.settings.labels else str(majority),
            "accuracy": float((chosen == indices).mean()),
            "macro_f1": macro_f1(confusion(chosen, indices, max(int(indices.max()), majority) + 1)),
        }


class ClassifyKind(LabelKind):
    """One of several labels for a text."""

    reader = ExampleReader("classify")
    pools = ("mean", "extract", "last")  # docs/finetuning-reference.md has the measurements
    learning_rate = 1e-3
    linear_model = "logistic"
    in_transformers = True


def find_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels in order: numbers by value, words by alphabet. Refuses a single label and a column of unique names."""
    names = {whole(label): label for label in sorted({example.labels[0] for example in examples}, reverse=True)}
    counts = Counter(names[whole(example.labels[0])] for example in examples)
    if len(counts) == 1:
        file = examples[0].where.rpartition(", ")[0]
        raise DataError(f"{file}: every row has the label {next(iter(counts))!r}; there is nothing to learn")
    if len(counts) > MOST_LABELS or len(counts) > max(2, len(examples) / 2):
        raise DataError(
            f"{len(counts):,} different labels in {len(examples):,} rows, such as {next(iter(counts))[:30]!r}: a label "
            f"needs two rows on average, and {MOST_LABELS:,} can be learned; name the right column with "
            "--label-column, or use --task regress for numbers"
        )
    labels = in_order(counts)
    spellings = Counter(label.casefold() for label in labels)
    if alike := [label for label in labels if spellings[label.casefold()] > 1]:
        logger.warning(f"labels      {' and '.join(map(repr, alike[:4]))} differ only in case and are different labels")
    return labels


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels in order: numbers by value, words by alphabet."""
    numbers = {label: parse_number(label) for label in labels}
    if None in numbers.values():
        return tuple(sorted(numbers))
    return tuple(sorted(numbers, key=lambda label: (numbers[label], label)))


def whole(label: str) -> str:
    """A label, 1 for 1.0 and true for True.

    pandas writes whole numbers with a fraction in a column where one is missing, and True where JSON has true.
    """
    match = WHOLE_WITH_POINT.fullmatch(label)
    if match is None:
        return label.lower() if label.lower() in ("true", "false") else label
    return match[1]


def label_index(label: str, labels: tuple[str, ...], where: str) -> int:
    """The index of a label; a DataError for one that was not in the training examples."""
    if label in labels:
        return labels.index(label)
    same = next((index for index, each in enumerate(labels) if whole(each) == whole(label)), None)
    if same is None:
        raise DataError(
            f"{where}: the label {label[:40]!r} is not one of {', '.join(labels[:12])}, which the model learned"
        )
    return same


def find_label(labels: Sequence[str], label: str | None) -> int:
    """The index of a label given by the user."""
    if label is None or label not in labels:
        known = ", ".join(labels[:12])
        raise UsageError(f"unknown label '{label}'{did_you_mean(str(label), labels)}; the labels are {known}")
    return labels.index(label)


def stacked(outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Logits (N, C), with minus infinity for missing answers."""
    most = max(map(len, outputs))
    return np.stack([np.pad(each, (0, most - len(each)), constant_values=-np.inf) for each in outputs])


def indices_of(targets: Sequence[Target]) -> np.ndarray:
    """Targets as indices, (N,)."""
    return np.array([int(index) for (index,) in targets])
