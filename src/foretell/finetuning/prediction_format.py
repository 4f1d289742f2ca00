"""The predictions of a kind: made from a head's outputs, shown, written to cells of a file, and explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretell.errors import UsageError
from foretell.finetuning.settings import HeadSettings
from foretell.typesetting.document import DocumentSection, Paragraph
from foretell.typesetting.html import Shown


@dataclass(frozen=True)
class TaskPrediction(Shown):
    """The prediction for one example; attributes that its kind does not predict are None.

    cut: the number of tokens of its texts that were left out to fit the context.
    """

    label: str | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None
    cut: int = 0

    @abstractmethod
    def short(self) -> str:
        """The prediction in a few characters."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    def document(self) -> DocumentSection:
        return DocumentSection("", [Paragraph(self.short())])


@dataclass(frozen=True)
class AskedOutput:
    """An output to divide into contributions, alone or compared with another one as in `TaskReadout.compare`.

    title, minus: the names of the number and of the number it is compared with.
    """

    output: int
    title: str
    against: int | None = None
    minus: str = ""


class PredictionFormat(ABC):
    """Makes predictions from the outputs of a head with these settings, and names its outputs."""

    answer: ClassVar[str]  # the key of the predicted value in JSON

    def __init__(self, settings: HeadSettings):
        self.settings = settings
        self.column = f"predicted_{self.answer}"  # the column of the predicted values in a file

    @abstractmethod
    def make(self, outputs: np.ndarray, texts: Sequence[str]) -> TaskPrediction:
        """The prediction from the outputs of one example."""

    def cells(self, prediction: Any) -> dict[str, Any]:
        """The cells in a file for a prediction, or for None (an empty text); the first is `column`."""
        values = {} if prediction is None else prediction.to_json()
        return {self.column: values.pop(self.answer, None), **values}

    def table_cells(self, prediction: Any) -> dict[str, Any]:
        """The cells in a table, the same columns for every row."""
        return self.cells(prediction)

    def names(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The names of the outputs for the texts of an example."""
        return self.settings.labels or ("the number",)

    def num_answers(self, others: Sequence[str]) -> int:
        """The number of sequences that can be shown instead of the first."""
        return 0

    def asked(self, texts: Sequence[str], label: str | None, against: str | None) -> AskedOutput:
        """The output for `explain --prediction`, given the label to explain."""
        task = self.settings.task
        raise UsageError(f"`foretell explain --prediction` cannot divide what a model for --task {task} predicts")

    def refuse_against(self, against: str | None) -> None:
        if against is not None:
            raise UsageError(f"--against compares two labels, but this model is for --task {self.settings.task}")
