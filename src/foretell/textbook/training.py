"""Training by stochastic gradient descent, one sequence a step."""

from __future__ import annotations

from collections.abc import Sequence

from foretell.textbook.gradient import loss_and_gradient
from foretell.textbook.parameters import DTransformerParameters, combine


def d_training(
    sequences: Sequence[Sequence[int]], theta: DTransformerParameters, N_epochs: int, eta: float
) -> DTransformerParameters:
    """theta after N_epochs passes over the sequences with learning rate eta.

    Phuong and Hutter 2022, Algorithm 13. The model is `d_transformer_overwriting`.
    """
    for _ in range(N_epochs):
        for x in sequences:
            _, theta = sgd_step(x, theta, eta)
    return theta


def sgd_step(x: Sequence[int], theta: DTransformerParameters, eta: float) -> tuple[float, DTransformerParameters]:
    """The loss of x (l,) before the step, and theta - eta * gradient."""
    loss, gradient = loss_and_gradient(x, theta)
    return loss, combine(lambda weight, slope: weight - eta * slope, theta, gradient)
