"""The training loop: learning, actions, early stopping, and resuming bit-identical to never stopping."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import make_batch
from foretell.data.loader import Loader
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.language_model import load_model
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.training_state import CheckpointParts, load_optimizer, save_checkpoint
from foretell.saved_model.parts_on_disk import save_model
from foretell.text import train_tokenizer
from foretell.training.loop import Action, Progress, is_out_of_patience, record_evaluation, train
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.pace import learning_rate_at
from foretell.training.step import training_step

MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]

STEPS = 6
TOKENIZER = train_tokenizer("characters", ["abcdefghijklm"])  # with the end token 14 tokens, as many as the model has


class Training:
    """A decoder and its optimizer during training."""

    def __init__(self, decoder: Decoder, config: TrainingConfig, loader: Loader, dtype: torch.dtype, step: int = 0):
        self.objective, self.config, self.loader, self.dtype = Objective(decoder), config, loader, dtype
        self.optimizer = make_optimizer(decoder, config, dtype)
        self.progress = Progress(step=step)

    def go(self, until: int = STEPS, actions: list[Action] | None = None) -> None:
        train(
            self.objective,
            self.optimizer,
            self.loader,
            self.config,
            self.progress,
            actions or [],
            dtype=self.dtype,
            should_stop=lambda: self.progress.step == until,
        )

    @property
    def state(self) -> dict[str, Tensor]:
        """Every weight and every moment."""
        decoder = self.objective.decoder
        moments = {
            f"{path}.{name}": value
            for path, parameter in decoder.named_parameters()
            for name, value in self.optimizer.state[parameter].items()
        }
        return copy.deepcopy({**decoder.state_dict(), **moments})

    def save(self, folder: Path) -> Checkpoint:
        decoder, step = self.objective.decoder, self.progress.step
        write_model = partial(save_model, decoder=decoder, tokenizer=TOKENIZER)
        return save_checkpoint(folder, step, CheckpointParts(write_model, decoder, self.optimizer, {"step": step}))


def resumed(checkpoint: Checkpoint, config: TrainingConfig, loader: Loader, dtype: torch.dtype) -> Training:
    decoder = load_model(checkpoint.directory, for_training=True).decoder
    training = Training(decoder, config, loader, dtype, checkpoint.training()["step"])
    load_optimizer(checkpoint, training.optimizer, decoder)
    return training


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


# --- resumed = uninterrupted -----------------------------------------------------------------------------------------


PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(params=["adamw-float32", "adamw-bfloat16", "muon-float32", "muon-bfloat16", "sgd-float32"])
def training(
    request: pytest.FixtureRequest, make_objective: MakeObjective, settings: Settings, loader: Loader
) -> Training:
    optimizer, precision = request.param.split("-")
    config = settings(steps=STEPS, gradient_accumulation_steps=2, optimizer=optimizer, label_smoothing=0.1)
    return Training(make_objective(dropout=0.2).decoder, config, loader, PRECISIONS[precision])


@pytest.mark.parametrize(
    "interrupted_after",
    [pytest.param(step, marks=() if step in (1, STEPS - 2) else pytest.mark.long) for step in range(1, STEPS)],
)
def test_resumed_training_is_bit_identical_to_uninterrupted_training(
    interrupted_after: int, training: Training, tmp_path: Path
) -> None:
    training.go(until=interrupted_after)
    checkpoint = training.save(tmp_path)
    training.go()
    other = resumed(checkpoint, training.config, training.loader, training.dtype)
    other.go()
    assert other.progress.step == training.progress.step == STEPS
    assert equal(other.state, training.state)


def forget_moments(training: Training) -> None:
    training.optimizer.state.clear()


def forget_step(training: Training) -> None:
    training.progress.step = 0


def forget_dropout(training: Training) -> None:
    training.objective.decoder.dropout_rng.seed = 7
    training.config = training.config.model_copy(update={"seed": 7})


@pytest.mark.parametrize("forget", [forget_moments, forget_step, forget_dropout])
def test_resuming_without_a_part_of_the_state_gives_other_weights(
    forget: Callable[[Training], None], training: Training, tmp_path: Path
) -> None:
    training.go(until=3)
    other = resumed(training.save(tmp_path), training.config, training.loader, training.dtype)
    training.go()
    forget(other)
    other.go()
    assert not equal(other.state, training.state)


def test_weights_and_moments_stay_in_float32_when_products_are_in_bfloat16(training: Training) -> None:
    training.go()
    assert {value.dtype for value in training.state.values()} == {torch.float32}


# --- actions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "due"), [(1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (6, [6]), (100, [6])])
def test_an_action_runs_every_n_steps_and_after_the_last(every: int, due: list[int], training: Training) -> None:
    steps: list[int] = []
    training.go(actions=[Action(every, lambda progress: steps.append(progress.step))])
    assert steps == due


def test_progress_holds_rates_tokens_seconds_and_loss(training: Training) -> None:
    rates: list[float | None] = []
    training.go(actions=[Action(1, lambda progress: rates.append(progress.learning_rate))])
    assert rates == [learning_rate_at(step, training.config) for step in range(STEPS)]
    assert training.progress.tokens == STEPS * 8 * 6
    assert training.progress.seconds > 0
    assert training.progress.loss is not None


def test_actions_do_not_change_the_training(training: Training, make_objective: MakeObjective) -> None:
    undisturbed = copy.deepcopy(training)
    undisturbed.go()

    def draw_and_generate(progress: Progress) -> None:
        torch.randn(3)
        decoder = training.objective.decoder
        decoder.eval()
        list(generate(decoder, [Sequence([1, 2])], Sampler(SamplingConfig(seed=progress.step)), 3))
        decoder.train()

    training.go(actions=[Action(1, draw_and_generate)])
    assert equal(training.state, undisturbed.state)


# --- early stopping --------------------------------------------------------------------------------------------------


def evaluations_until_stop(losses: list[float | None], config: TrainingConfig) -> int | None:
    """The number of evaluations after which training stops; None if it does not."""
    progress = Progress()
    for count, progress.validation_loss in enumerate(losses, start=1):
        record_evaluation(progress)
        if is_out_of_patience(progress, config):
            return count
    return None


@pytest.mark.parametrize(
    ("losses", "patience", "stop"),
    [
        ([3.0, 2.0, 1.0, 0.5], 1, None),
        ([3.0, 4.0, 2.0], 1, 2),
        ([3.0, 4.0, 2.0, 5.0], 2, None),
        ([3.0, 4.0, 5.0, 2.0], 2, 3),
        ([3.0, 3.0, 3.0], 2, 3),  # an equal loss is not better
        ([3.0, 2.9, 3.0, 2.95, 2.8, 9.0], 2, 4),  # better than the one before is not better than the best
        ([None, None, None], 1, None),
        ([3.0, 4.0, 5.0, 6.0], None, None),
    ],
)
def test_training_stops_after_patience_evaluations_without_improvement(
    losses: list[float | None], patience: int | None, stop: int | None, settings: Settings
) -> None:
    assert evaluations_until_stop(losses, settings(patience=patience)) == stop


def test_the_first_evaluation_is_the_best_so_far() -> None:
    progress = Progress(validation_loss=3.0)
    assert record_evaluation(progress)
    assert not record_evaluation(progress)
    assert (progress.best_validation_loss, progress.evaluations_since_best) == (3.0, 1)


# --- learning --------------------------------------------------------------------------------------------------------


# Muon takes AdamW's learning rate; SGD needs a larger one, and reaches a higher loss
@pytest.mark.parametrize(
    ("optimizer", "learning_rate", "limit"), [("adamw", 0.02, 0.5), ("muon", 0.02, 0.5), ("sgd", 0.2, 1.0)]
)
def test_the_loss_falls_on_a_learnable_text(
    optimizer: str,
    learning_rate: float,
    limit: float,
    make_objective: MakeObjective,
    settings: Settings,
    loader: Loader,
) -> None:
    config = settings(steps=80, learning_rate=learning_rate, final_learning_rate_share=0.1, optimizer=optimizer)
    training = Training(make_objective().decoder, config, loader, torch.float32)
    losses: list[float] = []
    training.go(until=80, actions=[Action(1, lambda progress: losses.append(progress.loss or 0))])
    assert losses[0] == pytest.approx(np.log(14), abs=0.2)
    assert sum(losses[-5:]) / 5 < limit  # the first position of a window cannot know the direction: about ln(2) / 6


HOW, IS, LIVING, IN, AMSTERDAM, EXCITING, END = range(7)
TOY: dict[str, Any] = {
    "num_layers": 1,
    "num_heads": 1,
    "width": 4,
    "context_length": 20,
    "vocab_size": 7,
    "position": "sinusoidal",
    "norm": "none",
    "feedforward": "none",
    "attention_output": False,
    "tie_embeddings": False,
    "bias": {"attention": False, "head": True},
}
ANSWER = [EXCITING, END]
QUESTIONS = [[HOW, IS, LIVING, IN, AMSTERDAM, END], [LIVING, IN, AMSTERDAM, IS, HOW, END]]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("init", ["gpt2", "torch"])
def test_a_toy_of_width_4_learns_to_answer_two_questions(seed: int, init: str) -> None:
    model = make_section(ModelConfig, {**TOY, "init": init})
    config = TrainingConfig(
        steps=200, batch_size=1, learning_rate=0.05, weight_decay=0, beta2=0.999, clip_norm=None, seed=seed
    )
    objective = Objective(make_decoder(model, seed)).train()
    optimizer = make_optimizer(objective, config)
    batches = [make_batch(np.array([question + ANSWER])) for question in QUESTIONS]
    losses = [training_step(objective, optimizer, batches[step % 2], step, config).loss for step in range(200)]
    assert losses[0] > 1.5
    assert max(losses[-2:]) < 0.01

    sequences = [Sequence(question) for question in QUESTIONS]
    list(generate(objective.decoder.eval(), sequences, Sampler(SamplingConfig(temperature=0)), 10, end_ids=[END]))
    assert [sequence.generated for sequence in sequences] == [ANSWER, ANSWER]
    assert [sequence.finish_reason for sequence in sequences] == ["end", "end"]
