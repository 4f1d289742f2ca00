"""Sums with weights and with a mask, at every context length, and a small decoder that forecasts a series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.insight.trace import Trace
from foretell.lessons.practice import adam, generate_greedily, train_on_rows
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.mask import Mask
from foretell.textbook.vectors import Matrix
from foretell.training.optimizer import make_optimizer

# Printed in the source
H = [[2, 0, 0], [0, -1, 0], [0, 0, 1]]
W = [1, 1, 1]
WEIGHTED_SUM = [2, -1, 1]
MASKED_SUMS = [[2, 0, 0], [2, -1, 0], [2, -1, 1]]

PAIRS = ("subject", "verb", "object")  # the source's order of words; their keys and queries here are made up
KEYS = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]  # what am I: subject, verb, object
QUERIES = [[0, 2, 0], [0, 0, 2], [0, 0, 0]]  # who am I looking for: a subject its verb, a verb its object
OTHER_V = [[2, 1, 0], [0, -1, 3], [1, 0, 1]]  # values that are not on a diagonal

DISTANCES = (4, 15, 60)  # how far back the gradient of the last output is measured
RECURRENT_WIDTH = 16

LEVELS, WINDOW = 4, 8  # the series goes up and down between 0 and 3
STEPS, LEARNING_RATE, SEED = 120, 0.02, 1
HORIZON = 8
POSITIONS = ("learned", "sinusoidal", "none")


@dataclass(frozen=True)
class AggregationValues:
    """Every value that the lesson shows and checks."""

    mask: Matrix  # the model's: 1 where row i sees column k
    weighted_sum: Matrix
    masked_sums: Matrix
    associations: Matrix  # A = Q Kᵀ of subject, verb and object
    aggregated: Matrix  # A V, with the words themselves as values
    elementwise: Matrix  # A_1 V for OTHER_V as the source computes it
    row_times_matrix: Matrix  # and the right one
    gradients: dict[str, list[float]]  # kind of network -> size of the last output's gradient, by distance
    prefixes: dict[str, float]  # kind of positions -> largest difference between a prefix alone and in its window
    reordered: dict[str, float]  # kind of positions -> change of the last output when earlier entries are reversed
    probabilities: list[float]  # of the series' next number, after a context of 1, 2, ... numbers
    window: list[int]  # the first numbers of the series
    forecast: list[int]
    losses: list[float]


def compute_aggregation() -> AggregationValues:
    """All values of the lesson; trains the forecasting decoder."""
    mask = Mask(3, 3).allowed[0, 0].numpy().astype(int)
    decoder, losses = train_on_series()
    window = series(WINDOW)
    return AggregationValues(
        mask,
        np.array(W) @ np.array(H),
        mask @ np.array(H),
        np.array(QUERIES) @ np.array(KEYS).T,
        np.array(QUERIES) @ np.array(KEYS).T @ np.array(H),
        mask[0] * np.array(OTHER_V)[0] + mask[1] * np.array(OTHER_V)[1],
        mask[1] @ np.array(OTHER_V),
        {"recurrent": recurrent_gradients(), "attention": attention_gradients()},
        {kind: prefix_difference(make_untrained(kind)) for kind in POSITIONS},
        {kind: order_difference(make_untrained(kind)) for kind in POSITIONS},
        next_probabilities(decoder),
        window,
        generate_greedily(decoder, [window], HORIZON)[0].generated,
        losses,
    )


def recurrent_gradients() -> list[float]:
    """The size of the last output's gradient by an input that is some steps back, in a recurrent network (Elman)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = torch.nn.RNN(RECURRENT_WIDTH, RECURRENT_WIDTH).double()
        inputs = torch.randn(max(DISTANCES) + 1, RECURRENT_WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(network(inputs)[0][-1].square().sum(), [inputs])
    return gradient_sizes(gradient)


def attention_gradients() -> list[float]:
    """The same in one layer of masked attention with random weights, where each input is one step away."""
    config = series_config("none", context_length=max(DISTANCES) + 1, width=RECURRENT_WIDTH)
    decoder = make_decoder(config, SEED).double().eval()
    ids = torch.tensor([series(max(DISTANCES) + 1)])
    with Trace(decoder, "embed", gradients=True) as trace:
        decoder(ids)[0, -1].square().sum().backward()
    return gradient_sizes(trace["grad:embed"][0])


def gradient_sizes(gradient: Tensor) -> list[float]:
    """The norm of a gradient (T, D) at the distances from its last row."""
    return [float(gradient[-1 - distance].norm()) for distance in DISTANCES]


def series_config(position: str, **changes: Any) -> ModelConfig:
    """A small decoder of one layer whose vocabulary is the series' levels."""
    sizes = {"num_layers": 1, "num_heads": 2, "width": 16, "context_length": WINDOW, "vocab_size": LEVELS}
    return make_section(
        ModelConfig, {**sizes, "position": position, "init": "torch", "tie_embeddings": False, **changes}
    )


def make_untrained(position: str) -> Decoder:
    """A small decoder with random weights, in float64."""
    return make_decoder(series_config(position), SEED).double().eval()


def series(length: int, start: int = 0) -> list[int]:
    """The numbers 0 1 2 3 2 1 0 1 ... from index `start` on."""
    period = 2 * (LEVELS - 1)
    return [min(t % period, period - t % period) for t in range(start, start + length)]


@torch.inference_mode()
def prefix_difference(decoder: Decoder) -> float:
    """The largest difference between the logits of each prefix alone and those at its last position in the window."""
    ids = torch.tensor([series(WINDOW)])
    window = decoder(ids)[0]  # (T, V)
    alone = torch.stack([decoder(ids[:, :length])[0, -1] for length in range(1, WINDOW + 1)])
    return float((window - alone).abs().max())


@torch.inference_mode()
def order_difference(decoder: Decoder) -> float:
    """The largest change of the last position's logits when all earlier entries are reversed."""
    ids = torch.tensor([series(WINDOW, start=2)])  # from 0 on, the reversed entries would be the same
    reversed_ids = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    return float((decoder(ids)[0, -1] - decoder(reversed_ids)[0, -1]).abs().max())


def train_on_series() -> tuple[Decoder, list[float]]:
    """A decoder trained on windows that start at every index of the series' period, and its losses."""
    decoder = make_decoder(series_config("learned", context_length=WINDOW + HORIZON), SEED)
    config = adam(STEPS, LEARNING_RATE)
    windows = [series(WINDOW + HORIZON + 1, start) for start in range(2 * (LEVELS - 1))]
    return decoder, train_on_rows(decoder, make_optimizer(decoder, config), windows, config)


@torch.inference_mode()
def next_probabilities(decoder: Decoder) -> list[float]:
    """The decoder's probability of the series' next number, after 1, 2, ... numbers."""
    numbers = series(WINDOW + 1, start=1)
    logprobs = decoder(torch.tensor([numbers[:-1]]))[0].log_softmax(-1)
    return [math.exp(float(row[target])) for row, target in zip(logprobs, numbers[1:], strict=True)]
