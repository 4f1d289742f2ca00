"""Attention as a weighted sum: with and without a mask, at every context length, and in a decoder that forecasts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.insight.trace import Trace
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import (
    FigureCheck,
    Lesson,
    RepeatedRows,
    above,
    adam,
    below,
    generate_greedily,
    same,
    train_on,
)
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.mask import Mask
from foretell.training.optimizer import make_optimizer
from foretell.typesetting.expression import Matrix

# Printed in the source
H = np.array([[2, 0, 0], [0, -1, 0], [0, 0, 1]])
W = np.array([1, 1, 1])
WEIGHTED_SUM = [2, -1, 1]
MASKED_SUMS = [[2, 0, 0], [2, -1, 0], [2, -1, 1]]

PAIRS = ("subject", "verb", "object")  # the source's order of words; their keys and queries here are made up
KEYS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]])  # what am I: subject, verb, object
QUERIES = np.array([[0, 2, 0], [0, 0, 2], [0, 0, 0]])  # what am I looking for: a subject its verb, a verb its object
OTHER_V = np.array([[2, 1, 0], [0, -1, 3], [1, 0, 1]])  # values that are not on a diagonal

DISTANCES = (4, 15, 60)  # steps back at which the gradient of the last output is measured
RECURRENT_WIDTH = 16

LEVELS, WINDOW = 4, 8  # the series goes up and down between 0 and 3
STEPS, LEARNING_RATE, SEED = 120, 0.02, 1
HORIZON = 8
POSITIONS = ("learned", "sinusoidal", "none")
SAME = 1e-12  # float64: the same sums, in rows of other lengths
CHANGED = 1e-3


class AggregationLesson(Lesson):
    """A weighted sum, a masked sum, positions, and a forecast."""

    name = "aggregation"

    def __init__(self) -> None:
        self.weighted_sum = W @ H
        self.mask = Mask(3, 3).allowed[0, 0].numpy().astype(int)  # the model's: 1 where row i sees column k
        self.masked_sums = self.mask @ H
        self.associations = QUERIES @ KEYS.T  # A = Q Kᵀ of subject, verb and object
        self.aggregated = self.associations @ H  # A V, with the words themselves as values
        self.elementwise = elementwise_sum(OTHER_V)  # A_1 V as the source computes it, and as it should be
        self.row_times_matrix = self.mask[1] @ OTHER_V
        self.gradients = {"recurrent": recurrent_gradients(), "attention": attention_gradients()}  # by distance
        self.prefixes = {kind: prefix_difference(make_untrained(kind)) for kind in POSITIONS}
        self.reordered = {kind: order_difference(make_untrained(kind)) for kind in POSITIONS}
        decoder, self.losses = train_on_series()
        self.probabilities = next_probabilities(decoder)
        self.window = series(WINDOW)
        self.forecast = generate_greedily(decoder, [self.window], HORIZON)[0].generated

    def shown(self) -> dict[str, Any]:
        numbers = series(WINDOW + 1, start=1)
        return {
            "w": [W],
            "H": H,
            **{f"w_{i}": W[i] for i in range(3)},
            **{f"h_{i}": H[i] for i in range(3)},
            "weighted_sum": self.weighted_sum,
            "queries": Matrix(QUERIES, row_labels=PAIRS),
            "keys": KEYS,
            "associations": Matrix(self.associations, row_labels=PAIRS),
            "A": self.associations,
            "aggregated": self.aggregated,
            "mask": self.mask,
            "mask_1": self.mask[1],
            "masked_sums": self.masked_sums,
            **{f"masked_sum_{i}": MASKED_SUMS[i] for i in range(3)},
            "other_V": OTHER_V,
            "row_times_matrix": self.row_times_matrix,
            "elementwise": self.elementwise,
            "window_length": WINDOW,
            "prefix_differences": [(kind, f"{difference:.1e}") for kind, difference in self.prefixes.items()],
            "order_changes": [(kind, f"{change:.1e}") for kind, change in self.reordered.items()],
            "first_loss": f"{self.losses[0]:.3f}",
            "last_loss": f"{self.losses[-1]:.3f}",
            "steps": len(self.losses),
            "predictions": [
                (" ".join(map(str, numbers[: t + 1])), numbers[t + 1], f"{probability:.4f}")
                for t, probability in enumerate(self.probabilities)
            ],
            "window": self.window,
            "forecast": self.forecast,
            "gradients": [
                (distance, *(f"{size:.1e}" for size in sizes))
                for distance, *sizes in zip(DISTANCES, *self.gradients.values(), strict=True)
            ],
        }

    def solutions(self) -> list[Exercise]:
        weights = np.array([1, 2, 3])
        mean = float(self.masked_sums[-1, 0]) / len(H)
        second = " + ".join(f"{weight} · ({entry})" for weight, entry in zip(weights, H[:, 1], strict=True))
        first = " + ".join(f"1/3 · {entry}" for entry in H[:, 0])
        return [
            Exercise(int((weights @ H)[1]), second, "the second column of H"),
            Exercise(mean, first, "equal scores give equal weights, which sum to 1"),
            Exercise(series(HORIZON + 1, WINDOW)[-1], "3 - 1", "the series turns at 3"),
        ]

    def checks(self) -> list[FigureCheck]:
        return [
            same("wH", WEIGHTED_SUM, self.weighted_sum),
            same("the model's mask is lower triangular", np.tril(np.ones((3, 3), dtype=int)), self.mask),
            same("the mask times H", MASKED_SUMS, self.masked_sums),
            *(same(f"A_{i} V", MASKED_SUMS[i], sum_of_rows(i)) for i in range(3)),
            same("A is not symmetric", False, bool((self.associations == self.associations.T).all())),
            same("sizes of A and V'", [[3, 3], [3, 3]], [list(self.associations.shape), list(self.aggregated.shape)]),
            same("the largest weight of subject and of verb", [1, 2], self.associations[:2].argmax(axis=1)),
            same("elementwise products are right on a diagonal", MASKED_SUMS[1], elementwise_sum(H)),
            same(
                "and give another sum for other values", False, np.array_equal(self.elementwise, self.row_times_matrix)
            ),
            below("a recurrent network's gradient over the longest distance", 1e-9, self.gradients["recurrent"][-1]),
            above("attention's gradient over the longest distance", 1e-6, self.gradients["attention"][-1]),
            *(
                below(f"contexts of 1 to {WINDOW}, alone and in the window, {kind} positions", SAME, difference)
                for kind, difference in self.prefixes.items()
            ),
            below("without positions the order has no effect", SAME, self.reordered["none"]),
            above("sinusoidal positions make the order matter", CHANGED, self.reordered["sinusoidal"]),
            above("learned positions make the order matter", CHANGED, self.reordered["learned"]),
            *(
                above(f"next number after a context of {length}", 0.9, probability)
                for length, probability in enumerate(self.probabilities, start=1)
                if length > 1  # one number does not tell whether the series rises or falls
            ),
            same("forecast", series(HORIZON, WINDOW), self.forecast),
        ]


def sum_of_rows(i: int) -> np.ndarray:
    """The sum of the entries up to i times 1 and the later ones times 0."""
    return sum((int(k <= i) * entry for k, entry in enumerate(H)), np.zeros(3, dtype=int))


def elementwise_sum(V: np.ndarray) -> np.ndarray:
    """A_1 V as the source computes it: rows of the mask times rows of V, element by element."""
    T = np.tril(np.ones((3, 3), dtype=int))
    return T[0] * V[0] + T[1] * V[1]


def recurrent_gradients() -> list[float]:
    """Norms of the last output's gradient by inputs at DISTANCES, in a recurrent network (Elman)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = torch.nn.RNN(RECURRENT_WIDTH, RECURRENT_WIDTH).double()
        inputs = torch.randn(max(DISTANCES) + 1, RECURRENT_WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(network(inputs)[0][-1].square().sum(), [inputs])
    return gradient_sizes(gradient)


def attention_gradients() -> list[float]:
    """Gradient sizes of one layer of masked attention with random weights: each input is one step away."""
    config = series_config("none", context_length=max(DISTANCES) + 1, width=RECURRENT_WIDTH)
    decoder = make_decoder(config, SEED).double().eval()
    ids = torch.tensor([series(max(DISTANCES) + 1)])
    with Trace(decoder, "embed", gradients=True) as trace:
        decoder(ids)[0, -1].square().sum().backward()
    return gradient_sizes(trace["grad:embed"][0])


def gradient_sizes(gradient: Tensor) -> list[float]:
    """The norms of a gradient (T, D) at DISTANCES from its last row."""
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
    """The largest difference between the logits after each prefix alone and at the same position in the window."""
    ids = torch.tensor([series(WINDOW)])
    window = decoder(ids)[0]  # (T, V)
    alone = torch.stack([decoder(ids[:, :length])[0, -1] for length in range(1, WINDOW + 1)])
    return float((window - alone).abs().max())


@torch.inference_mode()
def order_difference(decoder: Decoder) -> float:
    """The largest change of the last position's logits when all earlier entries are reversed."""
    ids = torch.tensor([series(WINDOW, start=2)])  # from start 0, reversing would change nothing
    reversed_ids = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), dim=1)
    return float((decoder(ids)[0, -1] - decoder(reversed_ids)[0, -1]).abs().max())


def train_on_series() -> tuple[Decoder, list[float]]:
    """A decoder trained on windows that start at every index of the series' period, and its losses."""
    decoder = make_decoder(series_config("learned", context_length=WINDOW + HORIZON), SEED)
    config = adam(STEPS, LEARNING_RATE)
    windows = [series(WINDOW + HORIZON + 1, start) for start in range(2 * (LEVELS - 1))]
    return decoder, train_on(decoder, make_optimizer(decoder, config), RepeatedRows(windows), config)


@torch.inference_mode()
def next_probabilities(decoder: Decoder) -> list[float]:
    """The decoder's probability of the series' next number, after 1, 2, ... numbers."""
    numbers = series(WINDOW + 1, start=1)
    logprobs = decoder(torch.tensor([numbers[:-1]]))[0].log_softmax(-1)
    return [math.exp(float(row[target])) for row, target in zip(logprobs, numbers[1:], strict=True)]
