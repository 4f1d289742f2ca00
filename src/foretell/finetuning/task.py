"""The task of a fine-tuning: a decoder and its head on labelled texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from foretell.device import autocast
from foretell.finetuning.batches import (
    BatchOrder,
    EncodedExample,
    TaskBatch,
    iter_by_length,
    make_task_batch,
    without_words,
)
from foretell.finetuning.figures import evaluation_figures
from foretell.finetuning.head import TASK_HEAD, TaskHead, head_of
from foretell.finetuning.objective import TaskObjective
from foretell.finetuning.settings import FinetuneConfig
from foretell.finetuning.targets import class_weights
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.kernels.dispatch import Use, choose_kernels
from foretell.randomness import stream_key
from foretell.saved_model.parts_on_disk import save_parts
from foretell.session.task import Task


@dataclass(frozen=True)
class TaskData:
    """Encoded examples to train on and to choose the best checkpoint with, the rule of the split, and a digest."""

    train: Sequence[EncodedExample]
    dev: Sequence[EncodedExample]
    split_rule: str
    digest: str


class FinetuneTask(Task):
    """Trains a model that has a head. `about` is what run.json says next to the configuration."""

    unit = "examples"

    def __init__(self, config: FinetuneConfig, data: TaskData, tuned: LanguageModel, about: dict[str, Any]):
        self.config, self.data, self.tuned, self.about = config, data, tuned, about
        self.head, settings = head_of(tuned), config.finetuning
        self.objective = TaskObjective(
            tuned.decoder, self.head, settings.lm_weight, settings.head_dropout, config.training.label_smoothing
        )
        self.order = BatchOrder(
            [example.length for example in data.train], config.training.batch_size, config.training.seed
        )
        self.weights = self.example_weights()
        self.kept = frozenset(tuned.tokenizer.special_tokens.values())
        self.model = weights_by_path(tuned.decoder, self.head)

    def example_weights(self) -> np.ndarray:
        """The weight of each training example in the loss, (N,)."""
        targets = [example.target for example in self.data.train]
        if self.config.finetuning.class_weights == "none":
            return np.ones(len(targets))
        by_class = class_weights(targets, self.head.settings.num_outputs)
        return np.array([by_class[int(target)] for target in targets])

    def choose_kernels(self, device: torch.device, dtype: torch.dtype) -> None:
        choose_kernels(self.tuned.decoder, Use(device, dtype, self.config.model.context_length, is_training=True))

    def batch(self, step: int) -> TaskBatch:
        indices = self.order.indices(step)
        examples = [self.data.train[index] for index in indices]
        if rate := self.config.finetuning.word_dropout:
            keys = (stream_key("words", self.config.training.seed, step, row) for row in range(len(examples)))
            examples = [without_words(each, rate, key, self.kept) for each, key in zip(examples, keys, strict=True)]
        return make_task_batch(examples, self.weights[indices].tolist())

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """Figures on the held-out examples; the first decides which checkpoint is best."""
        figures = evaluation_figures(*self.outputs(dtype), self.head.settings)
        best_by = self.config.finetuning.best_by
        decisive = next(iter(figures.values())) if best_by == "loss" else 1 - figures[best_by]
        own = {name: value for name, value in figures.items() if name != "loss"}
        return {"validation_loss": decisive, **own}

    def outputs(self, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
        """The outputs (N, C) for the held-out examples and their targets (N,)."""
        targets = np.array([example.target for example in self.data.dev])
        self.tuned.decoder.eval()
        outputs = head_outputs(self.tuned.decoder, self.head, self.data.dev, dtype)
        self.tuned.decoder.train()
        return outputs, targets

    def save_model(self, directory: Path) -> None:
        save_parts(directory, self.tuned.all_parts())

    def fingerprints(self) -> dict[str, str]:
        return {"tokenizer": self.tuned.tokenizer.fingerprint, "examples": self.data.digest}

    def record(self) -> dict[str, Any]:
        return {
            "config": self.config.model_dump(mode="json"),
            **self.about,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "split": self.data.split_rule,
        }

    def describe_start(self, batch: TaskBatch, dtype: torch.dtype) -> list[str]:
        """The figures of the head before its first step."""
        figures = evaluation_figures(*self.outputs(dtype), self.head.settings)
        return [f"before      {describe_figures(figures)} on the held-out examples"]


def describe_figures(figures: Mapping[str, float]) -> str:
    """`accuracy 0.812, macro F1 0.790`."""
    names = {"macro_f1": "macro F1", "rmse": "RMSE", "mae": "MAE", "r2": "R2"}
    return ", ".join(f"{names.get(name, name)} {value:.3f}" for name, value in figures.items())


@torch.no_grad()
def head_outputs(
    decoder: Decoder, head: TaskHead, examples: Sequence[EncodedExample], dtype: torch.dtype
) -> np.ndarray:
    """The outputs (N, C) for examples, in their order; C is the largest number of answers of a choice."""
    device = head.linear.weight.device
    most = max(len(example.sequences) for example in examples) if head.settings.task == "choice" else 0
    outputs = np.full((len(examples), most or head.settings.num_outputs), -np.inf)
    for indices, batch in iter_by_length(examples):
        with autocast(device, dtype):
            rows = head.outputs(decoder, batch.to(device)).double().cpu().numpy()  # (B, C)
        outputs[indices, : rows.shape[1]] = rows
    return outputs


def weights_by_path(decoder: Decoder, head: TaskHead) -> nn.Module:
    """A module that holds the weights of a decoder and its head under the paths that a saved model has."""
    tree = nn.Module()
    for name, child in decoder.named_children():
        tree.add_module(name, child)
    tree.add_module(TASK_HEAD, head.linear)
    return tree
