"""Numbers of texts: `--task regress`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foretell.data.numbers import LARGEST, MARKS, may_group, plain_number, two_readings
from foretell.errors import DataError
from foretell.finetuning.examples import Example, ExampleReader
from foretell.finetuning.figures import draw_scatter, number_figures
from foretell.finetuning.inputs import Target, TaskBatch
from foretell.finetuning.kind import Kind
from foretell.finetuning.prediction_format import AskedOutput, PredictionFormat, TaskPrediction
from foretell.finetuning.settings import HeadSettings
from foretell.typesetting.numbers import format_significant

DIGITS = 7  # significant digits of a prediction in a table; float32 has about 7


@dataclass(frozen=True)
class NumberPrediction(TaskPrediction):
    """A number on the scale of the data."""

    value: float = math.nan

    def short(self) -> str:
        return format_significant(self.value, DIGITS - 1)

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value}


class NumberFormat(PredictionFormat):
    answer = "value"

    def make(self, outputs: np.ndarray, texts: Sequence[str]) -> NumberPrediction:
        return NumberPrediction(value=self.settings.mean + self.settings.deviation * float(outputs[0]))

    def table_cells(self, prediction: NumberPrediction | None) -> dict[str, Any]:
        """As `cells`, with the decimal mark of the training file."""
        text = "" if prediction is None else format_significant(prediction.value, DIGITS)
        return {self.column: text.replace(".", self.settings.columns.decimal or ".")}

    def asked(self, texts: Sequence[str], label: str | None, against: str | None) -> AskedOutput:
        self.refuse_against(against)
        return AskedOutput(0, "the number")


class NumberKind(Kind):
    """A number for a text: squared error on one output, which is (number - mean) / deviation."""

    reader = ExampleReader("regress")
    format = NumberFormat
    splits_by_label = False
    linear_model = "ridge"

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        if settings.columns.decimal is None and (unclear := may_group([example.labels[0] for example in examples])):
            where = next(example.where for example in examples if example.labels[0] == unclear)
            raise DataError(f"{where}: {two_readings(unclear)}")
        values = np.array([number_of(example) for example in examples])
        deviation = float(values.std())
        if deviation == 0:
            file = examples[0].where.rpartition(", ")[0]
            raise DataError(f"{file}: every number is {values[0]:g}; there is nothing to learn")
        return settings.model_copy(update={"mean": float(values.mean()), "deviation": deviation})

    def target(self, example: Example) -> Target:
        return ((number_of(example) - self.settings.mean) / self.settings.deviation,)

    def regression_targets(self, targets: Sequence[Target]) -> np.ndarray | None:
        return np.array(targets)

    def describe_targets(self, targets: Sequence[Target]) -> str:
        return f"a number, mean {self.settings.mean:.4g}, deviation {self.settings.deviation:.4g}"

    def losses(self, outputs: Tensor, batch: TaskBatch, label_smoothing: float) -> Tensor:
        return (outputs[:, 0] - batch.targets[:, 0]).square()

    def on_scale(self, numbers: Sequence[Any]) -> np.ndarray:
        """Outputs or targets (N, 1) as numbers of the data (N,)."""
        return self.settings.mean + self.settings.deviation * np.array(numbers)[:, 0]

    def figures(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, float]:
        return number_figures(self.on_scale(outputs), self.on_scale(targets))

    def baseline(self, train: Sequence[Target], targets: Sequence[Target]) -> dict[str, Any]:
        values, mean = self.on_scale(targets), self.settings.mean
        return {
            "rule": "the mean of the labels in training",
            "value": mean,
            **number_figures(np.full(len(values), mean), values),
        }

    def draw(
        self, figure: Any, report: dict[str, Any], outputs: Sequence[np.ndarray], targets: Sequence[Target]
    ) -> None:
        draw_scatter(figure.subplots(), self.on_scale(targets), self.on_scale(outputs))


def number_of(example: Example) -> float:
    """The label as a finite number."""
    (label,) = example.labels
    number = parse_number(label)
    if number is None:
        marks = [mark for mark in MARKS if parse_number(plain_number(label, mark) or "") is not None]
        if len(marks) == 2 and "," in label:
            raise DataError(f"{example.where}: {two_readings(label)}")
        advice = f", or give --decimal {marks[0]}" if marks else ""
        raise DataError(
            f"{example.where}: the label {label[:40]!r} is not a finite number, such as 0.5 with a point{advice}"
        )
    if abs(number) > LARGEST:
        raise DataError(f"{example.where}: the label {number:g} is too large to compute with; rescale the numbers")
    return number


def parse_number(text: str) -> float | None:
    """A finite number; None for anything else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
