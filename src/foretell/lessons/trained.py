"""Lessons about a small decoder that is trained on rows of letters when the lesson is made, and can be saved."""

from __future__ import annotations

import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch, make_batch
from foretell.language_model import LanguageModel
from foretell.lessons.lesson import Lesson, generate_greedily, train_on
from foretell.model.init import make_decoder
from foretell.storage.files import EXAMPLES, write_json
from foretell.text import train_tokenizer
from foretell.training.optimizer import make_optimizer

SEED, ROWS, TESTED = 1, 64, 1000


class TrainedLesson(Lesson):
    """A decoder that has learned rows of letters; a token is a letter.

    letters: the vocabulary. shape: settings of the decoder. steps: number of training steps, each with ROWS new rows.
    """

    letters: ClassVar[str]
    shape: ClassVar[dict[str, Any]]
    steps: ClassVar[int]

    def __init__(self) -> None:
        self.tokenizer = train_tokenizer("characters", [self.letters])
        self.ids = np.array([self.tokenizer.encode(letter)[0] for letter in self.letters])
        self.decoder = make_decoder(
            make_section(ModelConfig, {**self.shape, "vocab_size": self.tokenizer.vocab_size}), seed=SEED
        )
        settings = {"steps": self.steps, "learning_rate": 3e-3, "batch_size": ROWS, "warmup_steps": 20}
        training = make_section(TrainingConfig, {**settings, "weight_decay": 0.0})
        started = time.monotonic()
        self.losses = train_on(self.decoder, make_optimizer(self.decoder, training), self, training)
        self.seconds = time.monotonic() - started

    @abstractmethod
    def rows(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """New rows (count, T+1) of indices of letters, and the letters that are targets, 1 or 0."""

    @abstractmethod
    def examples(self) -> list[dict[str, Any]]:
        """The examples of the live page."""

    def batch(self, step: int) -> Batch:
        """The rows of a training step; each step has new rows."""
        rows, targets = self.rows(np.random.default_rng((SEED, step)), ROWS)
        return make_batch(self.ids[rows], loss_mask=targets.astype(np.float32))

    def test_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """TESTED new rows of ids, and which ids are targets."""
        rows, targets = self.rows(np.random.default_rng(SEED), TESTED)
        return torch.from_numpy(self.ids[rows]), torch.from_numpy(targets > 0)

    def trained(self) -> dict[str, Any]:
        """The values that the texts of all these lessons name."""
        shown = [0, *(self.steps * share // 100 - 1 for share in (10, 25, 50, 100))]
        return {
            "weights": sum(weight.numel() for weight in self.decoder.parameters()),
            "steps": self.steps,
            "rows": ROWS,
            "seconds": f"{self.seconds:.0f}",
            "losses": [[str(step), f"{self.losses[step]:.4f}"] for step in shown],
            "tested": TESTED,
        }

    def answer(self, text: str, count: int) -> str:
        """The most probable letters after a text."""
        [sequence] = generate_greedily(self.decoder, [self.tokenizer.encode(text)], count)
        return self.tokenizer.decode(sequence.generated)

    def save(self, directory: Path) -> None:
        """Save the model, with examples for the live page."""
        LanguageModel(self.decoder, self.tokenizer, self.name).save(directory)
        write_json(directory / EXAMPLES, {"examples": self.examples()})
