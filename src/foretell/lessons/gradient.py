"""The gradient of the smallest decoder: the chain rule by hand, finite differences, and one step of descent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import make_batch
from foretell.insight.explain.explain_address import explain_value
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import ADAM, FigureCheck, Lesson, above, below, near, printed
from foretell.lessons.smallest import (
    CONTEXT,
    IDS,
    LAYER,
    TARGETS,
    VOCABULARY,
    WIDTH,
    WORDS,
    WeightsByPath,
    draw_weights,
    make_smallest,
    model_values,
)
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.typesetting.expression import Matrix, Number

LOSS = 8.645427  # of the lesson `smallest`: the sum over five targets
RATE = 0.1
CHANGE = 1e-5  # of a weight, for finite differences
VALUE, WORD = f"{LAYER}.value.weight", "embed.token.weight"
SHOWN = (0, 0)  # row and column of the weight that is followed
HAND_BOUND = 1e-12  # the same float64 sums in another order
DIFFERENCE_BOUND = 1e-8  # the error of central differences in float64


class GradientLesson(Lesson):
    """From the loss to every weight by the chain rule, and one step of gradient descent."""

    name = "gradient"

    def __init__(self, weights: WeightsByPath | None = None):
        self.weights = draw_weights() if weights is None else weights
        self.forward = model_values(self.weights)
        self.loss = loss_of(self.weights)
        self.by_hand = chain_rule(self.weights, self.forward)
        self.by_autograd = autograd(self.weights)
        self.explained = {path: CONTEXT * explained(self.weights, path) for path in (VALUE, WORD)}
        self.differences = {path: central_differences(self.weights, path) for path in (VALUE, WORD)}
        self.updated = descend(self.weights)
        self.new_loss = loss_of(self.updated)
        self.new_probabilities = model_values(self.updated)["probabilities"]

    def shown(self) -> dict[str, Any]:
        hand, (row, column) = self.by_hand, SHOWN
        up, down = (loss_of(changed(self.weights, VALUE, SHOWN, change)) for change in (CHANGE, -CHANGE))
        squares = sum(float((gradient**2).sum()) for gradient in self.by_autograd.values())
        before_and_after = self.forward["probabilities"], self.new_probabilities
        error = max(float(np.abs(self.differences[path] - hand[path]).max()) for path in self.differences)
        return {
            "loss": f"{self.loss:.6f}",
            "of_logits": Matrix(hand["logits"], row_labels=WORDS),
            "of_output": Matrix(hand["output"], row_labels=WORDS),
            "of_values": Matrix(hand["values"], row_labels=WORDS),
            "of_value_weight": Matrix(hand[VALUE], 6),
            "of_scores": Matrix(hand["scores"], row_labels=WORDS),
            "of_stream": Matrix(hand["stream"], row_labels=WORDS),
            "row": row,
            "column": column,
            "change": f"{CHANGE:.5f}",
            "loss_up": Number(up, 8),
            "loss_down": Number(down, 8),
            "two_h": Number(2 * CHANGE, 5),
            "difference": Number((up - down) / (2 * CHANGE), 6),
            "largest_error": f"{error:.1e}",
            "rate": str(RATE),
            "weight": Number(float(self.weights[VALUE][SHOWN]), 6),
            "gradient": Number(float(hand[VALUE][SHOWN]), 6),
            "new_weight": Number(float(self.updated[VALUE][SHOWN]), 6),
            "num_weights": sum(weight.numel() for weight in self.weights.values()),
            "new_loss": f"{self.new_loss:.6f}",
            "predicted": f"{RATE * squares:.6f}",
            "fall": f"{self.loss - self.new_loss:.6f}",
            "probabilities": [
                (WORDS[t], VOCABULARY[target], *(f"{p[t, target]:.6f}" for p in before_and_after))
                for t, target in enumerate(TARGETS)
            ],
        }

    def checks(self) -> list[FigureCheck]:
        return [
            printed("loss", LOSS, self.loss, 6),
            *(
                near(f"{path}: by hand and by autograd", gradient, self.by_hand[path], HAND_BOUND)
                for path, gradient in self.by_autograd.items()
            ),
            *(
                near(f"{path}: by hand and as explained", gradient, self.by_hand[path], HAND_BOUND)
                for path, gradient in self.explained.items()
            ),
            *(
                near(f"{path}: by hand and by differences", gradient, self.by_hand[path], DIFFERENCE_BOUND)
                for path, gradient in self.differences.items()
            ),
            near(
                "the gradient of each row of logits sums to 0", np.zeros(CONTEXT), self.by_hand["logits"].sum(1), 1e-12
            ),
            near("the gradient of a word that is not read", np.zeros(3), self.by_hand[WORD][-1], 0.0),
            below("the loss after one step", self.loss, self.new_loss),
            above("the fall of the loss", 0.0, self.loss - self.new_loss),
            *(
                near(
                    f"{path}: the new weight",
                    self.weights[path].numpy() - RATE * gradient,
                    self.updated[path].numpy(),
                    HAND_BOUND,
                )
                for path, gradient in self.by_hand.items()
                if path in self.weights
            ),
        ]

    def solutions(self) -> list[Exercise]:
        weight, gradient = float(self.weights[VALUE][SHOWN]), float(self.by_hand[VALUE][SHOWN])
        squares = sum(float((each**2).sum()) for each in self.by_autograd.values())
        return [
            Exercise.largest(VOCABULARY, self.by_hand["logits"][3], "section 2, the row of is"),
            Exercise(
                weight - 0.5 * gradient,
                f"{weight:.6f} - 0.5 · ({gradient:.6f})",
                f"{VALUE}[0,0] and its gradient",
                0.002,
            ),
            Exercise(0.01 * squares, f"{RATE * squares:.6f} / {RATE} · 0.01", "section 6", 0.001),
        ]


def loss_of(weights: WeightsByPath) -> float:
    """The sum of -log P over the five targets."""
    probabilities = model_values(weights)["probabilities"]
    return -sum(math.log(probabilities[t, target]) for t, target in enumerate(TARGETS))


def chain_rule(weights: WeightsByPath, forward: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients of the loss by hand: of values by name, and of all weights by path."""
    W = {path.removeprefix(f"{LAYER}."): weight.numpy() for path, weight in weights.items()}
    X, A, V, root = forward["stream"], forward["weights"], forward["value"], math.sqrt(WIDTH)
    logits = forward["probabilities"] - np.eye(len(VOCABULARY))[TARGETS]  # (T, V)
    output = logits @ W["head.weight"]  # (T, D)
    values = A.T @ output
    of_weights = output @ V.T  # (T, T)
    scores = A * (of_weights - (A * of_weights).sum(1, keepdims=True)) / root
    query, key = scores @ forward["key"], scores.T @ forward["query"]
    stream = values @ W["value.weight"] + query @ W["query.weight"] + key @ W["key.weight"]
    words = np.zeros_like(W[WORD])
    np.add.at(words, IDS, stream)
    return {
        "logits": logits,
        "output": output,
        "values": values,
        "scores": scores,
        "stream": stream,
        "head.weight": logits.T @ forward["output"],
        "head.bias": logits.sum(0),
        VALUE: values.T @ X,
        f"{LAYER}.query.weight": query.T @ X,
        f"{LAYER}.key.weight": key.T @ X,
        WORD: words,
        "embed.position.weight": stream,
    }


def autograd(weights: WeightsByPath) -> dict[str, np.ndarray]:
    """The gradients of all weights, by the objective that trains."""
    decoder = make_smallest(weights).decoder
    Objective(decoder)(make_batch(np.array([[*IDS, TARGETS[-1]]]))).sum.backward()
    return {path: weight.grad.numpy() for path, weight in decoder.named_parameters() if weight.grad is not None}


def explained(weights: WeightsByPath, path: str) -> np.ndarray:
    """The gradient of the mean loss for each number of a weight, as `foretell explain` shows it."""
    model = make_smallest(weights, CONTEXT + 1)
    ids = [*IDS, TARGETS[-1]]
    rows, columns = weights[path].shape
    return np.array(
        [
            [explain_value(model, ids, f"grad:{path}[{row},{column}]").recomputed for column in range(columns)]
            for row in range(rows)
        ]
    )


def central_differences(weights: WeightsByPath, path: str) -> np.ndarray:
    """(L(w + h) - L(w - h)) / 2h for each number of a weight."""
    gradient = np.zeros(weights[path].shape)
    for index in np.ndindex(gradient.shape):
        up, down = (loss_of(changed(weights, path, index, change)) for change in (CHANGE, -CHANGE))
        gradient[index] = (up - down) / (2 * CHANGE)
    return gradient


def changed(weights: WeightsByPath, path: str, index: tuple[int, ...], change: float) -> WeightsByPath:
    weight = weights[path].clone()
    weight[index] += change
    return {**weights, path: weight}


def descend(weights: WeightsByPath) -> WeightsByPath:
    """The weights after one step of gradient descent, by the optimizer that trains."""
    settings = {**ADAM, "optimizer": "sgd", "momentum": 0.0, "learning_rate": RATE, "steps": 1}
    decoder = make_smallest(weights).decoder
    optimizer = make_optimizer(decoder, make_section(TrainingConfig, settings))
    Objective(decoder)(make_batch(np.array([[*IDS, TARGETS[-1]]]))).sum.backward()
    optimizer.step()
    return {path: weight.detach().clone() for path, weight in decoder.named_parameters()}
