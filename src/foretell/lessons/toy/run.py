"""The toy: its model, its training, and one weight watched while Adam moves it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.generation.sequence import Sequence
from foretell.lessons.practice import Rows, adam, continue_with_likeliest, practise
from foretell.lessons.toy import printed
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.text import Tokenizer, vocabulary_tokenizer
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer

WATCHED, PLACE = "trunk.blocks.0.attention.value.weight", (0, 0)
WATCHED_STEPS = 3
DIFFERENCE = 1e-6  # by how much a weight is shaken


@dataclass(frozen=True)
class AdamStep:
    """What one step of Adam does to one weight."""

    gradient: float
    mean: float  # m, the running mean of the gradient
    square: float  # v, the running mean of its square
    corrected_mean: float
    corrected_square: float
    before: float
    after: float


@dataclass
class Run:
    """A toy that has been trained, and what was seen on the way."""

    decoder: Decoder
    gradient: Tensor  # of the watched matrix, in the first step
    slopes: Tensor  # the same by finite differences
    losses: list[float] = field(default_factory=list)  # of every step
    steps: list[AdamStep] = field(default_factory=list)
    answers: list[Sequence] = field(default_factory=list)

    @property
    def gradient_error(self) -> float:
        """How far the gradient is from the slopes, at the worst entry."""
        return float((self.gradient - self.slopes).abs().max())

    @property
    def epochs(self) -> list[float]:
        """The larger of the two losses of every epoch."""
        return [max(pair) for pair in zip(self.losses[::2], self.losses[1::2], strict=True)]


def tokenizer() -> Tokenizer:
    return vocabulary_tokenizer(printed.VOCABULARY, special=[printed.END])


def prompt_ids() -> list[list[int]]:
    return [tokenizer().encode(prompt, allow_special=True) for prompt in printed.PROMPTS]


def answer_ids() -> list[int]:
    return tokenizer().encode(printed.ANSWER, allow_special=True)


def rows() -> list[list[int]]:
    """Each prompt with the answer behind it; every token but the first is a target."""
    return [prompt + answer_ids() for prompt in prompt_ids()]


def model_config() -> ModelConfig:
    """Sinusoidal positions and a residual; no norm, no feed-forward layer, no bias but the head's."""
    return make_section(
        ModelConfig,
        {
            "num_layers": 1,
            "num_heads": 1,
            "width": printed.WIDTH,
            "context_length": printed.CONTEXT,
            "vocab_size": len(printed.VOCABULARY),
            "position": "sinusoidal",
            "norm": "none",
            "feedforward": "none",
            "attention_output": False,
            "bias": {"attention": False, "head": True},
            "tie_embeddings": False,
            "init": "torch",
        },
    )


def training_config() -> TrainingConfig:
    """Adam with one sequence a step."""
    return adam(steps=printed.EPOCHS * len(printed.PROMPTS), learning_rate=printed.LEARNING_RATE)


def run_toy(seed: int) -> Run:
    """Make the toy, train it and ask it both questions."""
    decoder, config = make_decoder(model_config(), seed), training_config()
    run = Run(decoder, first_gradient(decoder), slopes(decoder))
    optimizer = make_optimizer(decoder, config)
    watch(optimizer, decoder, run)
    run.losses = practise(decoder, optimizer, rows(), config)
    run.answers = continue_with_likeliest(decoder, prompt_ids(), end_id=answer_ids()[-1])
    return run


def watch(optimizer: Optimizer, decoder: Decoder, run: Run) -> None:
    """Write down what the first steps of the optimizer do to the watched weight."""
    weight = decoder.get_parameter(WATCHED)
    seen: dict[str, float] = {}

    def before(_: Optimizer, __: Any, ___: Any) -> None:
        assert weight.grad is not None
        seen.update(gradient=float(weight.grad[PLACE]), before=float(weight.detach()[PLACE]))

    def after(_: Optimizer, __: Any, ___: Any) -> None:
        if len(run.steps) < WATCHED_STEPS:
            state = optimizer.state[weight]
            mean, square = float(state["exp_avg"][PLACE]), float(state["exp_avg_sq"][PLACE])
            run.steps.append(adam_step(seen, mean, square, len(run.steps) + 1, float(weight.detach()[PLACE])))

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def adam_step(seen: dict[str, float], mean: float, square: float, number: int, after: float) -> AdamStep:
    """The optimizer's own moments, and what their start at 0 is made up for by (Kingma and Ba 2015, algorithm 1)."""
    config = training_config()
    return AdamStep(
        seen["gradient"],
        mean,
        square,
        mean / (1 - config.beta1**number),
        square / (1 - config.beta2**number),
        seen["before"],
        after,
    )


def adam_by_hand(gradients: list[float], start: float) -> list[AdamStep]:
    """What Adam does to a weight with these gradients, from nothing but its definition."""
    config = training_config()
    steps: list[AdamStep] = []
    mean, square, weight = 0.0, 0.0, start
    for number, gradient in enumerate(gradients, start=1):
        mean = config.beta1 * mean + (1 - config.beta1) * gradient
        square = config.beta2 * square + (1 - config.beta2) * gradient**2
        corrected, corrected_square = mean / (1 - config.beta1**number), square / (1 - config.beta2**number)
        after = weight - config.learning_rate * corrected / (math.sqrt(corrected_square) + config.epsilon)
        steps.append(AdamStep(gradient, mean, square, corrected, corrected_square, weight, after))
        weight = after
    return steps


def first_gradient(decoder: Decoder) -> Tensor:
    """The gradient of the watched matrix in the first step, as the trainer computes it."""
    weight = decoder.get_parameter(WATCHED)
    loss = Objective(decoder)(Rows(rows()).batch(0))
    (gradient,) = torch.autograd.grad(loss.sum / loss.count, [weight])
    return gradient


@torch.no_grad()
def slopes(decoder: Decoder) -> Tensor:
    """How the loss changes when each entry of the watched matrix is shaken, in float64: the gradient once more."""
    precise = Decoder(decoder.config).double()
    precise.load_state_dict(decoder.state_dict())
    weight = precise.get_parameter(WATCHED)
    found = torch.empty_like(weight)
    for place in [(row, column) for row in range(weight.shape[0]) for column in range(weight.shape[1])]:
        kept = float(weight[place])
        weight[place] = kept + DIFFERENCE
        above = first_loss(precise)
        weight[place] = kept - DIFFERENCE
        found[place] = (above - first_loss(precise)) / (2 * DIFFERENCE)
        weight[place] = kept
    return found


def first_loss(decoder: Decoder) -> float:
    """The loss of the first row in float64; the trainer's objective rounds to float32, too much for this."""
    batch = Rows(rows()).batch(0)
    return float(F.cross_entropy(decoder(batch.ids)[0], batch.targets[0]))
