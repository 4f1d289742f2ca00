"""A sorter that is trained when the lesson is made: six digits in, the same digits in order out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.data.batch import Batch, make_batch
from foretell.files import EXAMPLES, write_json
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, same, train_on
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.text import Tokenizer, train_tokenizer
from foretell.training.optimizer import make_optimizer

DIGITS, SIGN = "0123456789", "="
LENGTH = 6  # digits
SEED, STEPS, ROWS, TESTED = 1, 900, 64, 1000
TEXT = "314159="
WEIGHTS = "trunk.blocks.0.attention.core.weights"
LEAST_SORTED, LEAST_ATTENTION, MOST_BY_CHANCE = 0.95, 0.4, 0.3


def sorted_rows(rng: np.random.Generator, count: int) -> np.ndarray:
    """Rows (count, 2 LENGTH + 1) of digits, the sign (10), and the digits in order."""
    digits = rng.integers(0, len(DIGITS), (count, LENGTH))
    return np.concatenate([digits, np.full((count, 1), len(DIGITS)), np.sort(digits, 1)], 1)


class SortedRows:
    """Training data: new rows in every step; the sorted digits are the targets."""

    def __init__(self, ids: np.ndarray):
        self.ids = ids  # of the digits and of the sign

    def batch(self, step: int) -> Batch:
        rows = sorted_rows(np.random.default_rng((SEED, step)), ROWS)
        return make_batch(
            self.ids[rows], loss_mask=(np.arange(rows.shape[1]) > LENGTH) * np.ones(rows.shape, np.float32)
        )


@dataclass(frozen=True)
class SortTest:
    """New rows: the shares of digits and of rows that are right, and attention where a digit is written.

    wanted: for each head, the mean weight on the input's digits that are equal to the digit to write; by_chance: the
    share of such digits in the input.
    """

    digits: float
    rows: float
    wanted: list[float]
    by_chance: float


class SortLesson(Lesson):
    """One layer with two heads learns to sort."""

    name = "sort"

    def __init__(self) -> None:
        self.tokenizer = train_tokenizer("characters", [DIGITS + SIGN])
        self.ids = np.array([self.tokenizer.encode(letter)[0] for letter in DIGITS + SIGN])
        started = time.monotonic()
        self.decoder, self.losses = train_sorter(self.tokenizer, self.ids)
        self.seconds = time.monotonic() - started
        self.test = measure(self.decoder, self.ids)

    def shown(self) -> dict[str, Any]:
        return {
            "weights": sum(weight.numel() for weight in self.decoder.parameters()),
            "steps": STEPS,
            "rows": ROWS,
            "seconds": f"{self.seconds:.0f}",
            "losses": [[str(step), f"{self.losses[step]:.4f}"] for step in (0, 99, 199, 399, STEPS - 1)],
            "tested": TESTED,
            "digits_right": f"{100 * self.test.digits:.1f}",
            "rows_right": f"{100 * self.test.rows:.1f}",
            "wanted": f"{self.test.wanted[self.head]:.2f}",
            "head": self.head,
            "by_chance": f"{self.test.by_chance:.2f}",
            "answer": self.answer(),
        }

    def checks(self) -> list[FigureCheck]:
        return [
            above("the first loss", 1.5, self.losses[0]),
            below("the last loss", 0.1, self.losses[-1]),
            above("share of rows sorted", LEAST_SORTED, self.test.rows),
            above("share of digits right", LEAST_SORTED, self.test.digits),
            above("mean weight on digits equal to the next one", LEAST_ATTENTION, self.test.wanted[self.head]),
            below("share of such digits", MOST_BY_CHANCE, self.test.by_chance),
            same("the sorted text", "".join(sorted(TEXT.removesuffix(SIGN))), self.answer()),
        ]

    @property
    def head(self) -> int:
        """The head that attends most to digits equal to the next one."""
        return int(np.argmax(self.test.wanted))

    @torch.inference_mode()
    def answer(self) -> str:
        """The most probable digits after TEXT."""
        ids = self.tokenizer.encode(TEXT)
        for _ in range(LENGTH):
            ids.append(int(self.decoder(torch.tensor([ids]))[0, -1].argmax()))
        return self.tokenizer.decode(ids[len(TEXT) :])

    def save(self, directory: Path) -> None:
        """Save the sorter, with examples for the live page."""
        LanguageModel(self.decoder, self.tokenizer, "sort").save(directory)
        titles = {
            "Six digits, and half of them in order": f"{TEXT}113",
            "The first digit to write": TEXT,
            "A wrong digit": f"{TEXT}119",
        }
        examples = [{"title": title, "text": text, "layer": 0, "head": self.head} for title, text in titles.items()]
        write_json(directory / EXAMPLES, {"examples": examples})


def train_sorter(tokenizer: Tokenizer, ids: np.ndarray) -> tuple[Decoder, list[float]]:
    """The trained decoder, and the loss of each step."""
    config = make_section(
        ModelConfig,
        {
            "num_layers": 1,
            "num_heads": 2,
            "width": 48,
            "context_length": 2 * LENGTH,
            "vocab_size": tokenizer.vocab_size,
        },
    )
    settings = {"steps": STEPS, "learning_rate": 3e-3, "batch_size": ROWS, "warmup_steps": 20, "weight_decay": 0.0}
    training = make_section(TrainingConfig, settings)
    decoder = make_decoder(config, seed=SEED)
    return decoder, train_on(decoder, make_optimizer(decoder, training), SortedRows(ids), training)


@torch.inference_mode()
def measure(decoder: Decoder, ids: np.ndarray) -> SortTest:
    rows = sorted_rows(np.random.default_rng(SEED), TESTED)
    known = torch.from_numpy(ids[rows])
    with Trace(decoder, WEIGHTS) as trace:
        right = decoder(known[:, :-1])[:, LENGTH:].argmax(-1) == known[:, LENGTH + 1 :]
    wanted = (known[:, None, :LENGTH] == known[:, LENGTH + 1 :, None]).float()  # (rows, written, given)
    means = (trace[WEIGHTS][:, :, LENGTH:, :LENGTH] * wanted[:, None]).sum(-1).mean((0, 2))  # (H,)
    digits, whole = (float(share.float().mean()) for share in (right, right.all(-1)))
    return SortTest(digits, whole, means.tolist(), float(wanted.mean()))
