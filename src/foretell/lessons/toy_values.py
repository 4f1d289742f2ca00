"""The toy: the settings of its source, its training, one weight recorded while Adam changes it, and its answers."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.errors import ContextLengthError
from foretell.generation.sequence import Sequence
from foretell.insight.trace import Trace
from foretell.lessons.mask_values import UnmaskedAttention
from foretell.lessons.practice import RepeatedRows, adam, generate_greedily, train_on_rows
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.position import SinusoidalPosition
from foretell.model.surgery import replace
from foretell.text import Tokenizer, vocabulary_tokenizer
from foretell.textbook.embedding import sinusoidal_encoding
from foretell.textbook.vectors import Matrix
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer

# From the source
VOCABULARY = ("how", "is", "living", "in", "amsterdam", "exciting", "<EOS>")
END = "<EOS>"
PROMPTS = ("how is living in amsterdam <EOS>", "living in amsterdam is how <EOS>")
ANSWER = "exciting <EOS>"
WIDTH, CONTEXT = 4, 20
LEARNING_RATE, EPOCHS = 0.05, 100
FIRST_POSITION = [0, 1, 0, 1]
PRINTED_LOSSES = {  # epoch, from 0 -> the loss of the second sentence, of a run whose seed is not given
    0: 2.28202,
    10: 0.66447,
    20: 0.06849,
    30: 0.00769,
    40: 0.00344,
    50: 0.00221,
    60: 0.00162,
    70: 0.00126,
    80: 0.00101,
    90: 0.00083,
}

LIMIT = 0.01  # every seed must end below this loss
WATCHED_PATH, WATCHED_INDEX = "trunk.blocks.0.attention.value.weight", (0, 0)
WATCHED_STEPS = 3
DIFFERENCE = 1e-6  # by how much a weight is changed for finite differences
CORE = "trunk.blocks.0.attention.core"


@dataclass(frozen=True)
class AdamStep:
    """The values of one step of Adam for one weight."""

    gradient: float
    mean: float  # m, the running mean of the gradient
    square: float  # v, the running mean of its square
    corrected_mean: float
    corrected_square: float
    before: float
    after: float


@dataclass
class ToyRun:
    """A trained toy, and what was recorded during its training."""

    decoder: Decoder
    gradient: Tensor  # of the watched matrix, in the first step
    finite_differences: Tensor  # of the same matrix
    losses: list[float] = field(default_factory=list)  # of every step
    steps: list[AdamStep] = field(default_factory=list)
    answers: list[Sequence] = field(default_factory=list)

    @property
    def gradient_error(self) -> float:
        """The largest difference between gradient and finite differences."""
        return float((self.gradient - self.finite_differences).abs().max())

    @property
    def second_losses(self) -> list[float]:
        """The loss of the second sentence in every epoch, which the source prints."""
        return self.losses[1::2]

    @property
    def epochs(self) -> list[float]:
        """The larger of the two losses of every epoch."""
        return [max(pair) for pair in zip(self.losses[::2], self.losses[1::2], strict=True)]


def run_toy(seed: int) -> ToyRun:
    """Make the toy, train it, and generate from both prompts."""
    decoder, config = make_decoder(toy_config(), seed), toy_training()
    run = ToyRun(decoder, first_gradient(decoder), finite_differences(decoder))
    optimizer = make_optimizer(decoder, config)
    record_steps(optimizer, decoder, run)
    run.losses = train_on_rows(decoder, optimizer, training_rows(), config)
    run.answers = generate_greedily(decoder, prompt_ids(), end_id=answer_ids()[-1])
    return run


def toy_config() -> ModelConfig:
    """Sinusoidal positions and a residual; no norm, no feed-forward layer, no bias except the head's."""
    return make_section(
        ModelConfig,
        {
            "num_layers": 1,
            "num_heads": 1,
            "width": WIDTH,
            "context_length": CONTEXT,
            "vocab_size": len(VOCABULARY),
            "position": "sinusoidal",
            "norm": "none",
            "feedforward": "none",
            "attention_output": False,
            "bias": {"attention": False, "head": True},
            "tie_embeddings": False,
            "init": "torch",
        },
    )


def toy_training() -> TrainingConfig:
    """Adam with one sequence per step."""
    return adam(steps=EPOCHS * len(PROMPTS), learning_rate=LEARNING_RATE)


def toy_tokenizer() -> Tokenizer:
    return vocabulary_tokenizer(VOCABULARY, special=[END])


def prompt_ids() -> list[list[int]]:
    return [toy_tokenizer().encode(prompt, allow_special=True) for prompt in PROMPTS]


def answer_ids() -> list[int]:
    return toy_tokenizer().encode(ANSWER, allow_special=True)


def training_rows() -> list[list[int]]:
    """Each prompt followed by the answer; every token but the first is a target."""
    return [prompt + answer_ids() for prompt in prompt_ids()]


def record_steps(optimizer: Optimizer, decoder: Decoder, run: ToyRun) -> None:
    """Record the first steps of the optimizer for the watched weight."""
    weight = decoder.get_parameter(WATCHED_PATH)
    recorded: dict[str, float] = {}

    def before(_: Optimizer, __: Any, ___: Any) -> None:
        assert weight.grad is not None
        recorded.update(gradient=float(weight.grad[WATCHED_INDEX]), before=float(weight.detach()[WATCHED_INDEX]))

    def after(_: Optimizer, __: Any, ___: Any) -> None:
        if len(run.steps) < WATCHED_STEPS:
            state = optimizer.state[weight]
            mean, square = float(state["exp_avg"][WATCHED_INDEX]), float(state["exp_avg_sq"][WATCHED_INDEX])
            updated = float(weight.detach()[WATCHED_INDEX])
            run.steps.append(adam_step(recorded, mean, square, len(run.steps) + 1, updated))

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def adam_step(recorded: dict[str, float], mean: float, square: float, step: int, after: float) -> AdamStep:
    """The optimizer's own moments, with the correction for their start at 0 (Kingma and Ba 2015, algorithm 1)."""
    config = toy_training()
    return AdamStep(
        recorded["gradient"],
        mean,
        square,
        mean / (1 - config.beta1**step),
        square / (1 - config.beta2**step),
        recorded["before"],
        after,
    )


def adam_by_hand(gradients: list[float], start: float) -> list[AdamStep]:
    """The steps of Adam for a weight with these gradients, computed from its definition."""
    config = toy_training()
    steps: list[AdamStep] = []
    mean, square, weight = 0.0, 0.0, start
    for step, gradient in enumerate(gradients, start=1):
        mean = config.beta1 * mean + (1 - config.beta1) * gradient
        square = config.beta2 * square + (1 - config.beta2) * gradient**2
        corrected, corrected_square = mean / (1 - config.beta1**step), square / (1 - config.beta2**step)
        after = weight - config.learning_rate * corrected / (math.sqrt(corrected_square) + config.epsilon)
        steps.append(AdamStep(gradient, mean, square, corrected, corrected_square, weight, after))
        weight = after
    return steps


def first_gradient(decoder: Decoder) -> Tensor:
    """The gradient of the watched matrix in the first step, as training computes it."""
    weight = decoder.get_parameter(WATCHED_PATH)
    loss = Objective(decoder)(RepeatedRows(training_rows()).batch(0))
    (gradient,) = torch.autograd.grad(loss.sum / loss.count, [weight])
    return gradient


@torch.no_grad()
def finite_differences(decoder: Decoder) -> Tensor:
    """The derivative of the loss by each entry of the watched matrix, by central differences in float64."""
    precise = Decoder(decoder.config).double()
    precise.load_state_dict(decoder.state_dict())
    weight = precise.get_parameter(WATCHED_PATH)
    slopes = torch.empty_like(weight)
    for index in np.ndindex(*weight.shape):
        original = float(weight[index])
        weight[index] = original + DIFFERENCE
        above = first_loss(precise)
        weight[index] = original - DIFFERENCE
        slopes[index] = (above - first_loss(precise)) / (2 * DIFFERENCE)
        weight[index] = original
    return slopes


def first_loss(decoder: Decoder) -> float:
    """The loss of the first row in float64; the objective rounds to float32, which is too coarse for differences."""
    batch = RepeatedRows(training_rows()).batch(0)
    return float(F.cross_entropy(decoder(batch.ids)[0], batch.targets[0]))


def position_vectors(count: int) -> Matrix:
    """The vectors of the first positions, (positions, width), by the model."""
    return SinusoidalPosition(WIDTH)(torch.arange(count)).numpy()


def position_vectors_by_textbook(count: int) -> Matrix:
    """The same vectors by the printed formula."""
    return np.stack([sinusoidal_encoding(t, WIDTH) for t in range(count)])


@torch.inference_mode()
def attention_of_answer(decoder: Decoder) -> dict[str, Matrix]:
    """The masked scores and the weights (T, T), the values and the output (T, width) in the first prompt's row."""
    names = ("masked", "weights", "value")
    with Trace(decoder, [CORE, *(f"{CORE}.{name}" for name in names)]) as trace:
        decoder(RepeatedRows(training_rows()).batch(0).ids)
    return {name: trace[f"{CORE}.{name}"][0, 0].numpy() for name in names} | {"output": trace[CORE][0, 0].numpy()}


@torch.inference_mode()
def probabilities_without_mask(decoder: Decoder) -> list[float]:
    """P of each target of the first prompt and its answer by the same weights, when all words see all others."""
    unmasked = copy.deepcopy(decoder)
    replace(unmasked, CORE, lambda core: UnmaskedAttention(decoder.config))
    batch = RepeatedRows(training_rows()).batch(0)
    return unmasked(batch.ids)[0].softmax(-1).gather(1, batch.targets[0][:, None])[:, 0].tolist()


def ask(decoder: Decoder, text: str) -> tuple[str, Sequence]:
    """The prompt as the toy reads it, and its answer to it: lower case, without punctuation, <EOS> at the end.

    Raises:
        TokenizerError: a word that is not among the toy's seven.
        ContextLengthError: a prompt that fills the context.
    """
    words = re.findall(r"\w+", text.replace(END, "").lower())
    prompt = " ".join([*words, END])
    ids = toy_tokenizer().encode(prompt, allow_special=True)
    if len(ids) >= CONTEXT:
        raise ContextLengthError(f"a prompt of {len(ids)} words: the toy reads {CONTEXT - 1} at most, <EOS> included")
    return prompt, generate_greedily(decoder, [ids], end_id=answer_ids()[-1])[0]


@torch.inference_mode()
def most_likely_next(decoder: Decoder) -> list[tuple[int, int, float]]:
    """(token, most likely next token, its probability) along the first prompt with its answer."""
    ids = RepeatedRows(training_rows()).batch(0).ids
    best = decoder(ids)[0].softmax(-1).max(-1)
    return list(zip(ids[0].tolist(), best.indices.tolist(), best.values.tolist(), strict=True))
