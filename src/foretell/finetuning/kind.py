"""The base class of the kinds of fine-tuning, which has what depends on the task, in three parts.

`reader` makes examples from the rows of a file (examples.py). The kind itself has their targets and token sequences,
the head's outputs, the loss, the figures and the baseline. `format` makes predictions (prediction_format.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foretell.errors import UsageError
from foretell.finetuning.examples import Example, ExampleReader
from foretell.finetuning.figures import draw_calibration, draw_confusion
from foretell.finetuning.inputs import EncodedExample, InputFormat, Target, TaskBatch, make_task_batch
from foretell.finetuning.kinds import KINDS, known_task
from foretell.finetuning.prediction_format import PredictionFormat
from foretell.finetuning.settings import HeadSettings, Pool, TuningSettings
from foretell.insight.readout import TaskReadout

SHOWN_LABELS = 8
Token = TypeVar("Token")


class Kind(ABC):
    """A task of a head with its settings. Class methods need no settings.

    Shapes: B examples of up to K sequences of T tokens, D width, C outputs of the head. In NumPy, `outputs` has an
    array (C,) per example, and `targets` what `target` returned.
    """

    reader: ClassVar[ExampleReader]
    format: ClassVar[type[PredictionFormat]]
    readout: ClassVar[type[TaskReadout]] = TaskReadout  # how the head reads the pass of an example
    splits_by_label: ClassVar[bool] = True  # held-out examples have the same shares of labels
    pools: ClassVar[tuple[Pool, ...]] = ("extract", "last", "mean")  # the first is the default
    learning_rate: ClassVar[float] = 5e-4  # for models below SMALL_WIDTH; larger ones use GPT-1's
    scores: ClassVar[tuple[str, ...]] = ()  # figures between 0 and 1 that can select the best checkpoint
    drops_words: ClassVar[bool] = True  # True: supports `word_dropout`
    reads_case: ClassVar[bool] = False  # True: a new vocabulary distinguishes upper and lower case
    linear_model: ClassVar[str] = ""  # the baseline on TF-IDF of the text: "logistic" or "ridge"
    in_transformers: ClassVar[bool] = False  # True: transformers has a class for it

    def __init__(self, settings: HeadSettings):
        self.settings = settings
        self.predictions = self.format(settings)

    @classmethod
    def of(cls, settings: HeadSettings) -> Kind:
        """The kind of a head, whose settings are complete."""
        return cls(settings)

    # --- targets

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        """The settings with the names of the labels, or the scale of the numbers, from the training examples."""
        return settings

    @abstractmethod
    def target(self, example: Example) -> Target:
        """The numbers for the head to learn."""

    def describe_targets(self, targets: Sequence[Target]) -> str:
        """The labels with their numbers of targets; kinds without labels describe what their targets are."""
        counts, labels = Counter(int(index) for target in targets for index in target), self.settings.labels
        shown = ", ".join(f"{label} {counts[index]:,}" for index, label in enumerate(labels[:SHOWN_LABELS]))
        return shown + (" ..." if len(labels) > SHOWN_LABELS else "")

    def check(self, tuning: TuningSettings) -> None:
        """Refuse settings that the task does not support."""
        task, pool, known = self.settings.task, self.settings.pool, ("loss", *self.scores)
        if pool not in self.pools:
            raise UsageError(f"--task {task} has no --pool {pool}; give {' or '.join(self.pools)}")
        if tuning.best_by not in known:
            raise UsageError(f"--task {task} has no --best-by {tuning.best_by}; give {' or '.join(known)}")
        if tuning.class_weights != "none" and not self.settings.labels:
            raise UsageError(f"--class-weights {tuning.class_weights} needs labels, which --task {task} lacks")

    def regression_targets(self, targets: Sequence[Target]) -> np.ndarray | None:
        """Numbers (N, C) that a linear regression on vectors (N, D) learns; None without a vector per example."""
        return None

    def weights(self, examples: Sequence[EncodedExample], class_weights: str) -> np.ndarray:
        """The weight of each training example in the loss (N,); their mean is 1."""
        return np.ones(len(examples))

    # --- inputs

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

    def groups(self, texts: list[Token]) -> list[list[Token]]:
        """The texts of each sequence."""
        return [texts]

    # --- outputs of the head, and the loss

    def outputs(self, layer: nn.Module, hidden: Tensor, batch: TaskBatch) -> Tensor:
        """The outputs (B, C) by the linear `layer` from hidden states (B*K, T, D)."""
        vectors = POOLS[self.settings.pool](hidden, batch.lengths.flatten())  # (B*K, D)
        return self.combined(layer, vectors.unflatten(0, batch.lengths.shape), batch.lengths)

    def outputs_of_pass(self, layer: nn.Module, sequences: Sequence[Tensor]) -> Tensor:
        """The outputs (C,) by the linear `layer` from the hidden states (T, D) of an example's sequences."""
        batch = make_task_batch([EncodedExample(tuple([0] * len(each) for each in sequences))]).to(sequences[0].device)
        return self.outputs(layer, pad_sequence(list(sequences), batch_first=True), batch)[0]

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
