"""Sums with weights and with a mask, at every context length, and a small decoder that forecasts a series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretell.config import ModelConfig, make_section
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
        {kind: prefix_difference(make_untrained(kind)) for kind in POSITIONS},
        {kind: order_difference(make_untrained(kind)) for kind in POSITIONS},
        next_probabilities(decoder),
        window,
        generate_greedily(decoder, [window], HORIZON)[0].generated,
        losses,
    )


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
