"""The base class of the kinds of fine-tuning.

A kind has everything that depends on the task: the columns, the token sequences for the texts of an example, the head's
outputs, the loss, the metrics, the baseline, and the formats of predictions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foretell.data.numbers import plain_number
from foretell.data.table import LINES, Format, Row, Table, list_names, without_index
from foretell.errors import DataError, UsageError
from foretell.finetuning.columns import (
    UNNAMED,
    EmptyCellError,
    cell_text,
    check_columns,
    is_for_labels,
    label_text,
    only_column,
    warn_of_row_as_header,
    with_name,
)
from foretell.finetuning.figures import draw_calibration, draw_confusion
from foretell.finetuning.inputs import EncodedExample, InputFormat, Target, TaskBatch, make_task_batch
from foretell.finetuning.kinds import KINDS, known_task
from foretell.finetuning.settings import Columns, HeadSettings, Pool, TuningSettings
from foretell.insight.readout import TaskReadout
from foretell.typesetting.html import Shown

TEXT_NAMES = (
    *("text", "sentence", "content", "review", "tweet", "document", "body", "message", "comment", "headline", "title"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "gold_label", "gold", "sentiment", "score", "rating"),
    *("similarity", "stars", "answer", "y"),
)
FIRST_EMPTY = 3  # rows with empty cells that a message names


@dataclass(frozen=True)
class Example:
    """The texts of a row and its labels as written in the file; `where` is its file and line.

    group: examples of a group are held out together or not at all.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    where: str
    group: str | None = None


@dataclass(frozen=True)
class TaskPrediction(Shown):
    """The prediction for one example; attributes that its kind does not predict are None."""

    label: str | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None

    @abstractmethod
    def short(self) -> str:
        """The prediction in a few characters."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class AskedOutput:
    """An output to divide into contributions, alone or compared with another one as in `TaskReadout.compare`.

    title, minus: the names of the number and of the number it is compared with.
    """

    output: int
    title: str
    against: int | None = None
    minus: str = ""


class Kind(ABC):
    """A task of a head with its settings. Class methods need no settings.

    Shapes: B examples of up to K sequences of T tokens, D width, C outputs of the head. In NumPy, `outputs` has an
    array (C,) per example, and `targets` what `target` returned.
    """

    name: ClassVar[str]  # the value of `finetune --task`
    # rows of a file
    text_columns: ClassVar[int] = 1
    text_names: ClassVar[tuple[str, ...]] = TEXT_NAMES
    text_word: ClassVar[str] = "text"
    label_names: ClassVar[tuple[str, ...]] = LABEL_NAMES
    otherwise: ClassVar[Format] = LINES  # the format of files whose suffix is not in FORMATS
    suffixes: ClassVar[tuple[str, ...]] = ()  # suffixes of files in that format, for `predict`
    splits_by_label: ClassVar[bool] = True  # held-out examples have the same shares of labels
    # an example
    fewest_texts: ClassVar[int] = 1
    most_texts: ClassVar[int | None] = 1
    reads: ClassVar[str] = "one text"
    arguments: ClassVar[str] = '"a text"'  # of `foretell predict`
    has_delimiter: ClassVar[bool] = False  # True: a delimiter token is between the texts of a sequence
    readout: ClassVar[type[TaskReadout]] = TaskReadout  # how the head reads the pass of an example
    pools: ClassVar[tuple[Pool, ...]] = ("extract", "last", "mean")  # the first is the default
    learning_rate: ClassVar[float] = 5e-4  # for models below SMALL_WIDTH; larger ones use GPT-1's
    scores: ClassVar[tuple[str, ...]] = ()  # figures between 0 and 1 that can select the best checkpoint
    drops_words: ClassVar[bool] = True  # True: supports `word_dropout`
    reads_case: ClassVar[bool] = False  # True: a new vocabulary distinguishes upper and lower case
    linear_model: ClassVar[str] = ""  # the baseline on TF-IDF of the text: "logistic" or "ridge"
    in_transformers: ClassVar[bool] = False  # True: transformers has a class for it
    answer: ClassVar[str]  # the key of the prediction in JSON

    def __init__(self, settings: HeadSettings):
        self.settings = settings
        self.predicted = f"predicted_{self.answer}"  # the column of the predictions in a file

    @classmethod
    def of(cls, settings: HeadSettings) -> Kind:
        """The kind of a head, whose settings are complete."""
        return cls(settings)

    # --- rows of a file

    @classmethod
    def find_columns(cls, available: Sequence[str], given: Columns, where: str, guessed: Columns = UNNAMED) -> Columns:
        """Choose the columns of texts and labels in a file; `given` are the columns that the user named.

        guessed: columns by their cells, for a file in which no column has a common name.
        Raises DataError for a missing column and, with the list of columns, if the names are ambiguous.
        """
        check_columns(available, given.names, where)
        known = given.texts or with_name(available, cls.text_names) or guessed.texts
        rest = [name for name in without_index(available) if name not in (*known, *given.choices)]
        few = guessed.label if cls.splits_by_label else None  # numbers to predict may be in any column
        is_only = len(rest) == 1 and len(known) == cls.text_columns and is_for_labels(rest[0])
        wanted = rest[0] if is_only else few
        names = cls.label_names[:1] if with_name(available, cls.label_names[:1]) else cls.label_names
        label = given.label or only_column(available, names, "label", "--label-column", where, wanted)
        if label in given.texts:
            raise DataError(
                f"{where}: {label!r} is named as text and as label; its columns are {list_names(available, 12)}"
            )
        others = [name for name in available if name != label and name not in given.choices]
        texts = [name for name in guessed.texts if name in others]
        if not given.texts and len(texts) == cls.text_columns and not with_name(others, cls.text_names):
            given = given.model_copy(update={"texts": guessed.texts})
        return cls.find_texts(others, given, where).model_copy(update={"label": label, "decimal": given.decimal})

    @classmethod
    def find_texts(cls, available: Sequence[str], given: Columns, where: str) -> Columns:
        """The columns of texts, without the label."""
        check_columns(available, given.texts, where)
        texts = given.texts or cls.guess_texts(available, where)
        if len(texts) != cls.text_columns:
            needed = f"{cls.text_columns} text column{'s' * (cls.text_columns > 1)}"
            raise DataError(f"{where}: --task {cls.name} reads {needed}, not {len(texts)}")
        return Columns(texts=texts)

    @classmethod
    def guess_texts(cls, available: Sequence[str], where: str) -> tuple[str, ...]:
        """Find the columns of texts by common names."""
        if len(named := without_index(available)) == 1:
            return (named[0],)
        return (only_column(available, cls.text_names, cls.text_word, "--text-column", where),)

    @classmethod
    def texts(cls, row: Row, columns: Columns) -> tuple[str, ...]:
        """The texts of a row, which may be empty; a DataError for a missing column or a cell that is not a text."""
        return tuple(cell_text(row, name) for name in columns.texts)

    @classmethod
    def text_name(cls, index: int, columns: Columns) -> str:
        return columns.texts[index]

    @classmethod
    def labels(cls, row: Row, texts: tuple[str, ...], columns: Columns) -> tuple[str, ...]:
        assert columns.label is not None
        label = label_text(row.cells.get(columns.label), columns.label, row.where)
        return (label if columns.decimal is None else plain_number(label, columns.decimal) or label,)

    @classmethod
    def read(cls, row: Row, columns: Columns) -> Example:
        """A row as an example. Raises EmptyCellError for an empty text or label."""
        texts = cls.texts(row, columns)
        empty = next((index for index, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            name = cls.text_name(empty, columns)
            raise EmptyCellError(f"{row.where}: the text in column {name!r} is empty; fill it or remove the row")
        return Example(texts, cls.labels(row, texts, columns), row.where)

    @classmethod
    def read_all(cls, table: Table, columns: Columns, group: str | None = None) -> list[Example]:
        """All rows of a file as examples; `group` is the column of their groups.

        Raises DataError for a row that is not an example, and for a file without rows.
        """
        examples, empty = [], list[EmptyCellError]()
        for row in table:
            try:
                name = None if group is None else label_text(row.cells.get(group), group, row.where, "group")
                examples.append(replace(cls.read(row, columns), group=name))
            except EmptyCellError as error:
                empty.append(error)
        if len(empty) > 1:
            first = "; ".join(str(error).partition(";")[0] for error in empty[:FIRST_EMPTY])
            raise DataError(f"{len(empty):,} rows have empty cells: {first}{' ...' * (len(empty) > FIRST_EMPTY)}")
        if empty:
            raise empty[0]
        if not examples:
            raise DataError(f"{table}: it has no rows; give a file with a row per example")
        warn_of_row_as_header(table, columns.label, {label for example in examples for label in example.labels})
        return examples

    # --- targets

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        """The settings with the names of the labels, or the scale of the numbers, from the training examples."""
        return settings

    @abstractmethod
    def target(self, example: Example) -> Target:
        """The numbers for the head to learn."""

    @abstractmethod
    def describe_targets(self, targets: Sequence[Target]) -> str:
        """The labels with their numbers of examples, or the scale of the numbers."""

    def check(self, tuning: TuningSettings) -> None:
        """Refuse settings that the task does not support."""
        if self.settings.pool not in self.pools:
            raise UsageError(f"--task {self.name} has no --pool {self.settings.pool}; give {' or '.join(self.pools)}")
        known = ("loss", *self.scores)
        if tuning.best_by not in known:
            raise UsageError(f"--task {self.name} has no --best-by {tuning.best_by}; give {' or '.join(known)}")
        if tuning.class_weights != "none" and not self.settings.labels:
            raise UsageError(f"--class-weights {tuning.class_weights} needs labels, which --task {self.name} lacks")

    def weights(self, examples: Sequence[EncodedExample], class_weights: str) -> np.ndarray:
        """The weight of each training example in the loss (N,); their mean is 1."""
        return np.ones(len(examples))

    # --- inputs

    def given_texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The texts of an example that a user gives; a UsageError for the wrong number."""
        if len(texts) < self.fewest_texts or (self.most_texts is not None and len(texts) > self.most_texts):
            raise UsageError(f"a model for --task {self.name} reads {self.reads}, not {len(texts)}")
        return tuple(texts)

    def encode(self, examples: Sequence[Sequence[str]], inputs: InputFormat) -> list[EncodedExample]:
        """The token sequences of examples, given their texts."""
        flat = [text for texts in examples for text in texts]
        inputs.tokenizer.note_spelled(flat)
        ids = iter(inputs.tokenizer.encode_batch(flat))
        return [self.arrange([next(ids).tolist() for _ in texts], inputs) for texts in examples]

    def arrange(self, texts: list[list[int]], inputs: InputFormat) -> EncodedExample:
        """The sequences of an example from the ids of its texts."""
        joined = [inputs.join(group) for group in self.groups(texts)]
        return EncodedExample(tuple(ids for ids, _ in joined), cut=max(cut for _, cut in joined))

    def groups(self, texts: list[list[int]]) -> list[list[list[int]]]:
        return [texts]

    # --- outputs of the head, and the loss

    def outputs(self, layer: nn.Module, hidden: Tensor, batch: TaskBatch) -> Tensor:
        """The outputs (B, C) by the linear `layer` from hidden states (B*K, T, D)."""
        vectors = POOLS[self.settings.pool](hidden, batch.lengths.flatten())  # (B*K, D)
        return self.combined(layer, vectors.unflatten(0, batch.lengths.shape), batch.lengths)

    def combined(self, layer: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
        """(B, C) from the vectors (B, K, D) of sequences of lengths (B, K), which are 0 for missing sequences."""
        return layer(vectors[:, 0])

    @abstractmethod
    def losses(self, outputs: Tensor, batch: TaskBatch, label_smoothing: float) -> Tensor:
        """The loss of each example, (B,)."""

    # --- figures

    @abstractmethod
    def figures(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, float]:
        """The figures on the scale of the data; the first one (lower is better) selects the best checkpoint."""

    def report(self, outputs: Sequence[np.ndarray], targets: Sequence[Target]) -> dict[str, Any]:
        """All figures, including those by label."""
        return dict(self.figures(outputs, targets))

    @abstractmethod
    def baseline(self, train: Sequence[Target], targets: Sequence[Target]) -> dict[str, Any]:
        """The figures of a `rule` that uses only the targets of the training examples."""

    def draw(
        self, figure: Any, report: dict[str, Any], outputs: Sequence[np.ndarray], targets: Sequence[Target]
    ) -> None:
        """Draw the report into a figure of matplotlib."""
        axes = iter(np.atleast_1d(figure.subplots(1, ("confusion" in report) + ("calibration" in report) or 1)))
        if "confusion" in report:
            draw_confusion(next(axes), report["labels"], np.array(report["confusion"]))
        if "calibration" in report:
            draw_calibration(next(axes), report["calibration"])

    # --- predictions

    @abstractmethod
    def prediction(self, outputs: np.ndarray, texts: Sequence[str]) -> TaskPrediction:
        """The prediction from the outputs of one example."""

    @abstractmethod
    def cells(self, prediction: Any) -> dict[str, Any]:
        """The cells in a file for a prediction, or for None (an empty text); the first is `predicted`."""

    def table_cells(self, prediction: Any) -> dict[str, Any]:
        """The cells in a table, the same columns for every row."""
        return self.cells(prediction)

    @abstractmethod
    def names(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The names of the outputs for the texts of an example."""

    @property
    def scale(self) -> tuple[float, float]:
        """The factor and the constant that make an output a number of the data."""
        return 1.0, 0.0

    def outputs_of_pass(self, layer: nn.Module, sequences: Sequence[Tensor]) -> Tensor:
        """The outputs (C,) by the linear `layer` from the hidden states (T, D) of an example's sequences."""
        batch = make_task_batch([EncodedExample(tuple([0] * len(each) for each in sequences))]).to(sequences[0].device)
        return self.outputs(layer, pad_sequence(list(sequences), batch_first=True), batch)[0]

    def num_answers(self, others: Sequence[str]) -> int:
        """The number of sequences that can be shown instead of the first."""
        return 0

    def asked(self, texts: Sequence[str], label: str | None, against: str | None) -> AskedOutput:
        """The output for `explain --prediction`, given the label to explain."""
        raise UsageError(f"`foretell explain --prediction` cannot divide what a model for --task {self.name} predicts")


def find_kind(task: str) -> type[Kind]:
    module, _, name = KINDS[known_task(task)].partition(":")
    return getattr(import_module(module), name)


def kind_of(settings: HeadSettings) -> Kind:
    return find_kind(settings.task).of(settings)


def last_vectors(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The vectors (N, D) of hidden (N, T, D) at the last token of each sequence; its position is length - 1."""
    return hidden[torch.arange(len(hidden), device=hidden.device), (lengths - 1).clamp(min=0)]


def mean_vectors(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The mean (N, D) over the tokens of each sequence, without padding."""
    is_token = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]  # (N, T)
    return (hidden * is_token[..., None]).sum(1) / lengths.clamp(min=1)[:, None]


# The last token is the extract token with `extract`, and the text's last token with `last`
POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "extract": last_vectors,
    "last": last_vectors,
    "mean": mean_vectors,
}
