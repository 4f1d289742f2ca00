"""Sums with weights, with a mask, at every context length; and a small decoder that forecasts numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretell.config import ModelConfig, make_section
from foretell.lessons.practice import adam, continue_with_likeliest, practise
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.mask import Mask
from foretell.textbook.vectors import Matrix
from foretell.training.optimizer import make_optimizer

H = [[2, 0, 0], [0, -1, 0], [0, 0, 1]]
W = [1, 1, 1]
WEIGHTED_SUM = [2, -1, 1]  # printed
MASKED_SUMS = [[2, 0, 0], [2, -1, 0], [2, -1, 1]]  # printed

LEVELS, WINDOW = 4, 8  # the series goes up and down between 0 and 3
STEPS, LEARNING_RATE, SEED = 120, 0.02, 1
HORIZON = 8
POSITIONS = ("learned", "sinusoidal", "none")


@dataclass(frozen=True)
class Everything:
    """All that the lesson shows and checks."""

    mask: Matrix  # of the model: 1 where row i sees column k
    weighted_sum: Matrix
    masked_sums: Matrix
    prefixes: dict[str, float]  # kind of positions -> how far a prefix alone is from the prefix in its window
    reordered: dict[str, float]  # kind of positions -> how far the last output moves when earlier entries change places
    sure: list[float]  # probability of the next number of the series, after a context of 1, 2, ... numbers
    wave: list[int]  # the series, as long as a window
    forecast: list[int]
    losses: list[float]


def compute() -> Everything:
    """All of it."""
    mask = Mask(3, 3).allowed[0, 0].numpy().astype(int)
    decoder, losses = learn_wave()
    wave = series(WINDOW)
    return Everything(
        mask,
        np.array(W) @ np.array(H),
        mask @ np.array(H),
        {kind: prefix_difference(make_small(kind)) for kind in POSITIONS},
        {kind: order_difference(make_small(kind)) for kind in POSITIONS},
        certainty(decoder),
        wave,
        continue_with_likeliest(decoder, [wave], HORIZON)[0].generated,
        losses,
    )


def config(position: str, **changes: Any) -> ModelConfig:
    """A small decoder of one layer over the series' levels."""
    sizes = {"num_layers": 1, "num_heads": 2, "width": 16, "context_length": WINDOW, "vocab_size": LEVELS}
    return make_section(
        ModelConfig, {**sizes, "position": position, "init": "torch", "tie_embeddings": False, **changes}
    )


def make_small(position: str) -> Decoder:
    """A small decoder with new weights, in float64."""
    return make_decoder(config(position), SEED).double().eval()


def series(length: int, start: int = 0) -> list[int]:
    """Up and down again: 0 1 2 3 2 1 0 1 ..., from some place on."""
    period = 2 * (LEVELS - 1)
    return [min(t % period, period - t % period) for t in range(start, start + length)]


@torch.inference_mode()
def prefix_difference(decoder: Decoder) -> float:
    """The largest difference between what each prefix gives alone and what its last position gives in the window."""
    ids = torch.tensor([series(WINDOW)])
    window = decoder(ids)[0]  # (T, V)
    alone = torch.stack([decoder(ids[:, :length])[0, -1] for length in range(1, WINDOW + 1)])
    return float((window - alone).abs().max())


@torch.inference_mode()
def order_difference(decoder: Decoder) -> float:
    """How far the last position's output moves when all entries before it are turned round."""
    ids = torch.tensor([series(WINDOW, start=2)])  # from 0 on, it reads the same from both ends
    turned = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    return float((decoder(ids)[0, -1] - decoder(turned)[0, -1]).abs().max())


def learn_wave() -> tuple[Decoder, list[float]]:
    """A decoder trained on windows of the series that begin at every place of it, and its losses."""
    decoder = make_decoder(config("learned", context_length=WINDOW + HORIZON), SEED)
    settings = adam(STEPS, LEARNING_RATE)
    windows = [series(WINDOW + HORIZON + 1, start) for start in range(2 * (LEVELS - 1))]
    return decoder, practise(decoder, make_optimizer(decoder, settings), windows, settings)


@torch.inference_mode()
def certainty(decoder: Decoder) -> list[float]:
    """The probability that the trained decoder gives to the series' next number, after 1, 2, ... numbers."""
    wave = series(WINDOW + 1, start=1)
    logprobs = decoder(torch.tensor([wave[:-1]]))[0].log_softmax(-1)
    return [math.exp(float(row[target])) for row, target in zip(logprobs, wave[1:], strict=True)]
