"""Speedruns: how soon a character-level decoder reaches a loss on held-out text, as a record that others can repeat.

The rules. The last tenth of the characters is held out. The loss is in float32, over all of the held-out text in
windows of the context that do not overlap. With a number of steps the clock counts only training; with a limit of
minutes it counts everything, and the learning rate follows the time. Text and rules are taken from nanoGPT's
data/shakespeare_char/prepare.py, so its published loss is the default target on that text.

A record has the settings, the machine, and for each seed the curve and the digest of the weights. The same settings
on the same instruction set with the same number of threads give the same bits, which `repeat` verifies.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import check_known, make_section, own_names
from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch, make_batch
from foretell.data.documents import embedded_corpus
from foretell.device import DtypeName, choose_training_dtype, dtype_name
from foretell.errors import ConfigError, DataError
from foretell.evaluation.loss import bits_per_byte, evaluate
from foretell.language_model import weights_digest
from foretell.model.init import make_decoder
from foretell.model.presets import preset
from foretell.planning.estimate import device_memory
from foretell.pretraining.resolve import training_defaults
from foretell.pretraining.speedrun_record import CPU, Point, Repetition, SeedRun, Settings, SpeedrunRecord
from foretell.randomness import permutation, stream_key, uniform
from foretell.session.fit import check_batch_fits, check_model_fits
from foretell.training.execution import make_objective
from foretell.training.loop import Action, Progress, train
from foretell.training.optimizer import make_optimizer
from foretell.training.pace import Mark, TimeBudget
from foretell.weight_shapes import weight_shapes

SHAKESPEARE = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"  # Karpathy's tinyshakespeare
SHAKESPEARE_TARGET = 1.4697  # nats per character: nanoGPT's README, train_shakespeare_char on a GPU
HELD_OUT = 0.1
ROWS_AT_ONCE = 64  # rows per batch in evaluations
STEPS = 1300
PACE = {
    "warmup_steps": 40,
    "evaluate_every": 100,
}  # chosen by trial (docs/speedrun.md); the rest is the recipe of the size
WITHOUT_EFFECT = (
    "checkpoint_activations checkpoint_every compile evaluation_tokens frozen keep_checkpoints label_smoothing "
    "log_every parallel patience sample_every sample_prompts seed similar_vectors"
)  # settings of other trainings

Report = Callable[[SeedRun], None]


# --- the text --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Characters:
    """A text as character ids (N,): a part to train on, and the held-out last tenth."""

    train: np.ndarray
    held_out: np.ndarray
    vocab_size: int
    held_out_bytes: int
    sha256: str  # digest of the whole text in UTF-8

    @classmethod
    def of(cls, text: str) -> Characters:
        """The vocabulary is the sorted set of the text's characters; `check_fits` refuses an empty text."""
        vocabulary, ids = np.unique(np.array(list(text), dtype=str), return_inverse=True)
        split = int((1 - HELD_OUT) * len(ids))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return cls(ids[:split], ids[split:], max(1, len(vocabulary)), len(text[split:].encode()), digest)

    def held_out_batches(self, length: int) -> list[Batch]:
        """The held-out text in windows of `length`; a last, incomplete window is left out."""
        count = (len(self.held_out) - 1) // length
        windows = self.held_out[np.arange(count)[:, None] * length + np.arange(length + 1)]
        return [make_batch(windows[first : first + ROWS_AT_ONCE]) for first in range(0, count, ROWS_AT_ONCE)]

    def bits_per_byte(self, loss: float) -> float:
        return bits_per_byte(loss, len(self.held_out), self.held_out_bytes)


def embedded_text() -> str:
    """The language reference that comes with Python, as one text."""
    return "\n".join(document.text for document in embedded_corpus())


@dataclass(frozen=True)
class Windows:
    """Windows of the training text, with a new order and a new offset in each epoch."""

    ids: np.ndarray  # (N,)
    rows: int
    length: int
    seed: int

    def batch(self, step: int) -> Batch:
        per_epoch = ((len(self.ids) - 1) // self.length - 1) // self.rows
        epoch, index = divmod(step, per_epoch)
        key = stream_key("speedrun", self.seed, epoch)
        offset = int(uniform(key, 0) * self.length)
        windows = permutation(key, per_epoch * self.rows)[index * self.rows :][: self.rows].numpy()
        return make_batch(self.ids[offset + windows[:, None] * self.length + np.arange(self.length + 1)])


# --- running ---------------------------------------------------------------------------------------------------------


def make_settings(
    text: Characters,
    size: str,
    overrides: Mapping[str, Mapping[str, Any]],
    *,
    target: float | None = None,
    minutes: float | None = None,
    dtype: DtypeName = "auto",
) -> Settings:
    """The settings of a speedrun; the model is a size, changed by `overrides` of the sections model and training.

    Raises ConfigError for a setting without effect, and for a model too large for the memory; DataError for a text too
    short for a step.
    """
    for name in overrides:
        check_known(name, ("model", "training"), "section of a speedrun:")
    shape = {**preset(size), "dropout": 0.0, **own_names(overrides.get("model", {})), "vocab_size": text.vocab_size}
    model, given = make_section(ModelConfig, shape, "model"), own_names(overrides.get("training", {}))
    for name in given.keys() & WITHOUT_EFFECT.split():
        hint = "give --seed" if name == "seed" else "leave it out"
        raise ConfigError(f"training.{name} has no effect in a speedrun; {hint}")
    recipe = {**training_defaults(size, model, given.get("steps", STEPS), given), **PACE, **given}
    if minutes is not None and "evaluate_every" not in given:
        recipe["evaluate_every"] = 10**9  # only before and after the training, because evaluations take time
    values = {
        "text_sha256": text.sha256,
        "target": SHAKESPEARE_TARGET if target is None and text.sha256 == SHAKESPEARE else target,
        "minutes": minutes,
        "model": model,
        "training": make_section(TrainingConfig, recipe, "training"),
        "dtype": dtype_name(choose_training_dtype(dtype, CPU)),
        "threads": torch.get_num_threads(),
    }
    settings = make_section(Settings, values)
    check_fits(text, settings)
    return settings


def check_fits(text: Characters, settings: Settings) -> None:
    """Refuse a text that is too short for a step and an evaluation, and a model that does not fit the memory."""
    model, training = settings.model, settings.training
    if model.vocab_size != text.vocab_size:
        raise ConfigError(f"model.vocab_size is {model.vocab_size}, but the text has {text.vocab_size} characters")
    needed = (training.batch_size + 1) * model.context_length + 1
    if len(text.train) < needed or len(text.held_out) <= model.context_length:
        raise DataError(
            f"the text has {len(text.train):,} characters to train on and {len(text.held_out):,} held out; a step "
            f"needs {needed:,}, an evaluation {model.context_length + 1:,}"
        )
    memory, shapes = device_memory(CPU), weight_shapes(model)
    check_model_fits(shapes, training, memory)
    check_batch_fits(model, shapes, training, memory)


def run_seed(text: Characters, settings: Settings, seed: int, report: Report, marks: Sequence[Mark] = ()) -> SeedRun:
    """Train with one seed. report: called after each evaluation. marks: the marks of a time budget to repeat."""
    began = time.monotonic()
    config = settings.training.model_copy(update={"seed": seed})
    dtype = choose_training_dtype(settings.dtype, CPU)
    objective = make_objective(make_decoder(settings.model, seed), CPU, dtype)
    optimizer = make_optimizer(objective.decoder, config, dtype)
    batches = text.held_out_batches(settings.model.context_length)
    taken = dict(enumerate(marks))
    curve: list[Point] = []

    def measure(progress: Progress) -> None:
        loss = evaluate(objective, batches, torch.float32).loss
        seconds = progress.seconds if settings.minutes is None else time.monotonic() - began
        curve.append(Point(step=progress.step, tokens=progress.tokens, seconds=seconds, loss=loss))
        report(SeedRun(seed=seed, curve=tuple(curve)))

    evaluation, progress = Action(config.evaluate_every, measure), Progress()
    evaluation.do(progress)  # its duration is reserved in a time budget for the last evaluation
    pace = None
    if settings.minutes is not None:
        spent, record = time.monotonic() - began, taken.__setitem__
        pace = TimeBudget(config, 60 * settings.minutes, spent=spent, marks=taken, record=record)
    windows = Windows(text.train, config.batch_size, settings.model.context_length, seed)
    train(objective, optimizer, windows, config, progress, [evaluation], pace=pace, dtype=dtype)
    digest = weights_digest(objective.decoder)
    return SeedRun(seed=seed, curve=tuple(curve), marks=tuple(taken.values()), weights_sha256=digest)


def iter_runs(text: Characters, settings: Settings, seeds: Sequence[int], report: Report) -> Iterator[SeedRun]:
    """Train with each seed in turn. Raises ConfigError for an impossible seed before the first training."""
    for seed in seeds:
        make_section(TrainingConfig, {**settings.training.model_dump(), "seed": seed}, "training")
    return (run_seed(text, settings, seed, report) for seed in seeds)


def repeat(text: Characters, record: SpeedrunRecord, report: Report) -> list[Repetition]:
    """Repeat every run of a record, with the record's number of threads."""
    settings = record.settings
    if text.sha256 != settings.text_sha256:
        raise DataError(f"the record is for another text: its SHA-256 is {settings.text_sha256}, not {text.sha256}")
    check_fits(text, settings)
    torch.set_num_threads(settings.threads)
    return [Repetition(each, run_seed(text, settings, each.seed, report, each.marks)) for each in record.runs]
