"""The task of fine-tuning with a head: the examples of labelled files, and the training on them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foretell.config.section import make_section
from foretell.data.data_use import DataUse
from foretell.data.table import Table, open_table
from foretell.evaluation.material import table_rows
from foretell.evaluation.replayed_row import ReplayedRow, ReplayedToken
from foretell.finetuning.examples import SAMPLED, Example, check_columns, columns_by_cells
from foretell.finetuning.figures import describe_figures
from foretell.finetuning.head import TaskObjective, encode_examples, head_of, head_outputs, weights_by_path
from foretell.finetuning.inputs import (
    BatchOrder,
    EncodedExample,
    InputFormat,
    TaskBatch,
    make_task_batch,
    without_words,
)
from foretell.finetuning.kind import find_kind, kind_of
from foretell.finetuning.probe import starts_from_probe
from foretell.finetuning.settings import Columns, FinetuneConfig, HeadSettings, TuningSettings
from foretell.finetuning.split import check_groups, count_repeated, hash_examples, split_off_dev
from foretell.language_model import LanguageModel
from foretell.numerics.randomness import stream_key
from foretell.saved_model.parts_on_disk import save_parts
from foretell.session.task import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskData:
    """Encoded examples for training and for choosing the best checkpoint, and their files."""

    train: Sequence[EncodedExample]
    dev: Sequence[EncodedExample]
    files: LabelledFiles


@dataclass(frozen=True)
class LabelledFiles:
    """Training and held-out examples, the settings of their head, and the rule of the split."""

    settings: HeadSettings
    train: list[Example]
    dev: list[Example]
    split_rule: str
    suffix: str  # of the file with the training examples

    def encoded(self, inputs: InputFormat) -> TaskData:
        encoded = encode_examples([*self.train, *self.dev], kind_of(self.settings), inputs)
        count = len(self.train)
        return TaskData(encoded[:count], encoded[count:], self)

    @cached_property
    def digest(self) -> str:
        """A hash of all texts and labels in their order."""
        state = hashlib.sha256()
        for part in (self.train, self.dev):
            for example in part:
                state.update("\0".join((*example.texts, *example.labels, "")).encode("utf-8", "surrogatepass"))
            state.update(b"\n")
        return state.hexdigest()[:16]


def read_files(
    data: Path | Table,
    dev: Path | Table | None,
    tuning: TuningSettings,
    head: Mapping[str, Any],
    columns: Columns,
    seed: int,
) -> LabelledFiles:
    """The examples of a file, and held-out examples from a part of it or another file. head: settings of the head."""
    kind, group = find_kind(tuning.task), tuning.group_column
    reader = kind.reader
    table = open_table(data, tuning.encoding, tuning.names, reader.otherwise)
    suffix, available = table.file.suffix, table.first_columns()
    check_columns(available, [group] if group else [], str(data))
    rows = [*islice(table, SAMPLED)]
    guessed = columns_by_cells(rows, without=group)
    if not kind.splits_by_label:  # numbers to predict may be in any column
        guessed = guessed.model_copy(update={"label": None})
    columns = reader.find_columns([name for name in available if name != group], columns, str(data), guessed)
    if columns.decimal is None and not any(isinstance(row.cells.get(columns.label or ""), str) for row in rows):
        columns = columns.model_copy(update={"decimal": "."})  # numbers of JSON or a DataFrame have one reading
    train = reader.read_all(table, columns, group)
    head = {"pool": kind.pools[0], "truncate": "tail", **head, "task": tuning.task, "columns": columns.model_dump()}
    settings = kind.fit(make_section(HeadSettings, head, "head"), train)
    if dev is not None:
        table = open_table(dev, tuning.encoding, tuning.names, reader.otherwise)
        held_out = reader.read_all(table, columns, group)
        check_groups(train, held_out)
        if repeated := count_repeated([each.texts for each in train], [each.texts for each in held_out]):
            logger.warning(
                f"held out    {repeated:,} of {len(held_out):,} examples have texts that are also learned from"
            )
        return LabelledFiles(settings, train, held_out, f"dev is {dev}", suffix)
    fraction, by_label = tuning.dev_fraction, kind_of(settings).splits_by_label
    train, held_out = split_off_dev(train, fraction, seed, by_label)
    of, key = "of each label " if by_label and group is None else "", "text" if group is None else group
    rule = f"dev is the {fraction:.3g} {of}with the smallest SHA-256 of seed {seed} and {key}"
    return LabelledFiles(settings, train, held_out, rule, suffix)


class FinetuneTask(Task):
    """Trains a model with a head."""

    closing_evaluations = 1.0
    held_out_setting = "--dev-fraction"

    def __init__(self, config: FinetuneConfig, data: TaskData, tuned: LanguageModel):
        self.config, self.data, self.tuned, self.split_rule = config, data, tuned, data.files.split_rule
        self.material = table_rows(data.files.suffix)
        self.head, settings = head_of(tuned), config.finetuning
        self.row_length, self.has_held_out = config.model.context_length, bool(data.dev)
        self.objective = TaskObjective(
            tuned.decoder, self.head, settings.lm_weight, settings.head_dropout, config.training.label_smoothing
        )
        self.order = BatchOrder(
            [example.length for example in data.train], config.training.batch_size, config.training.seed
        )
        self.weights = self.head.task.weights(data.train, settings.class_weights)  # (N,)
        self.kept = frozenset(tuned.tokenizer.special_tokens.values())
        self.model = weights_by_path(tuned.decoder, self.head)

    @property
    def starts_trained(self) -> bool:
        """True for a head that starts from a probe, which may remain the best."""
        return self.has_held_out and starts_from_probe(self.head, self.config.model.width, self.data.train[0].target)

    def batch(self, step: int) -> TaskBatch:
        indices = self.order.indices(step)
        examples = [self.data.train[index] for index in indices]
        if rate := self.config.finetuning.word_dropout:
            keys = (stream_key("words", self.config.training.seed, step, row) for row in range(len(examples)))
            examples = [without_words(each, rate, key, self.kept) for each, key in zip(examples, keys, strict=True)]
        return make_task_batch(examples, self.weights[indices].tolist())

    def row_as_text(self, row: TaskBatch, step: int, index: int) -> ReplayedRow:
        """The sequences, with losses if language modelling is learned too, and the target with the task's loss.

        The loss of the row is the objective's, which adds them up with their weights.
        """
        assert isinstance(self.objective, TaskObjective)
        objective, decode = self.objective, self.tuned.tokenizer.decode
        outputs, hidden = objective.outputs(row)
        ids, lengths = row.ids.flatten(0, 1), row.lengths.flatten().tolist()  # (K, T)
        learned = objective.language_modelling.losses(hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        losses = learned.view(len(ids), -1).tolist()
        tokens = [
            ReplayedToken(each, decode([each]), losses[k][t - 1] if t and objective.lm_weight > 0 else None, k)
            for k, length in enumerate(lengths)
            for t, each in enumerate(ids[k, :length].tolist())
        ]
        loss = objective.kind.losses(outputs.float(), row, objective.label_smoothing)
        labels = self.head.settings.labels
        targets = row.targets[0, : max(1, int((row.positions >= 0).sum()))].tolist()
        answer = " ".join(labels[int(each)] if labels else f"{each:g}" for each in targets)
        target = ReplayedToken(-1, f" → {answer}", float(loss), len(lengths) - 1)
        return ReplayedRow(None, [*tokens, target], objective(row).mean)

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """Figures on the held-out examples; the first selects the best checkpoint."""
        if not self.has_held_out:
            return {}
        figures = self.figures(self.dev_outputs(dtype))
        own = {name: value for name, value in figures.items() if name != "loss"}
        return {"validation_loss": self.decisive(figures), **own}

    def figures(self, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """The figures of outputs for the held-out examples."""
        return self.head.task.figures(outputs, [example.target for example in self.data.dev])

    def decisive(self, figures: Mapping[str, float]) -> float:
        """The figure that selects the best checkpoint; smaller is better."""
        best_by = self.config.finetuning.best_by
        return next(iter(figures.values())) if best_by == "loss" else 1 - figures[best_by]

    def dev_outputs(self, dtype: torch.dtype) -> list[np.ndarray]:
        """The outputs (C,) of each held-out example by the current weights."""
        self.tuned.decoder.eval()
        outputs = head_outputs(self.tuned.decoder, self.head, self.data.dev, dtype)
        self.tuned.decoder.train()
        return outputs

    def save_model(self, directory: Path) -> None:
        save_parts(directory, self.tuned.all_parts())

    def data_use(self) -> DataUse:
        return DataUse.of([hash_examples(self.data.files.train)], [hash_examples(self.data.files.dev)])

    def fingerprints(self) -> dict[str, str]:
        return {"tokenizer": self.tuned.tokenizer.fingerprint, "examples": self.data.files.digest}

    def describe_start(self, batch: TaskBatch, dtype: torch.dtype) -> list[str]:
        """The figures of the head before its first step."""
        if not self.has_held_out:
            return []
        weight = self.config.finetuning.lm_weight
        parts = f"the task and {weight:g} x language modelling in training; " if weight else ""
        return [
            f"before      {describe_figures(self.figures(self.dev_outputs(dtype)))} on the held-out examples",
            *([f"loss        of {parts}of the task alone in validation"] if parts else []),
        ]
