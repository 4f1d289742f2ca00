"""The hand-written gradient against finite differences and torch's autograd; gradient descent on a toy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foretell.numerics.norms import EPSILON
from foretell.textbook import training
from foretell.textbook.attention import Matrix
from foretell.textbook.training import d_training, loss_and_gradient, sgd_step
from foretell.textbook.transformer import (
    DTransformerParameters,
    Hyperparameters,
    combine,
    conditional_log_probability,
    d_transformer_overwriting,
    random_parameters,
)

SIZES = Hyperparameters(N_V=5, l_max=6, L=2, H=2, d_e=4, d_mlp=5)
x = [3, 0, 4, 4, 1]


@pytest.fixture
def theta() -> DTransformerParameters:
    rng = np.random.default_rng(7)
    return combine(lambda weight: weight + 0.3 * rng.normal(size=weight.shape), random_parameters(SIZES, rng))


def named_arrays(parameters: Any, name: str = "theta") -> Iterator[tuple[str, Any]]:
    """Every array of a set of parameters, with its path."""
    if dataclasses.is_dataclass(parameters):
        for field in dataclasses.fields(parameters):
            yield from named_arrays(getattr(parameters, field.name), f"{name}.{field.name}")
    elif isinstance(parameters, tuple):
        for index, part in enumerate(parameters):
            yield from named_arrays(part, f"{name}[{index}]")
    else:
        yield name, parameters


def loss_of(theta: DTransformerParameters) -> float:
    return -conditional_log_probability(d_transformer_overwriting(x, theta), x)


def slopes(loss: Callable[[], float], weight: Matrix, step: float = 1e-5) -> Matrix:
    """Central differences of the loss by every element of `weight`, which is changed in place and restored."""
    slope = np.empty_like(weight)
    for index in np.ndindex(weight.shape):
        original = weight[index]
        weight[index] = original + step
        above = loss()
        weight[index] = original - step
        slope[index] = (above - loss()) / (2 * step)
        weight[index] = original
    return slope


def largest_error(parameters: DTransformerParameters, expected: dict[str, Matrix]) -> float:
    return max(float(np.abs(part - expected[name]).max()) for name, part in named_arrays(parameters))


def test_gradient_matches_finite_differences_for_every_parameter(theta):
    _, gradient = loss_and_gradient(x, theta)
    expected = {name: slopes(lambda: loss_of(theta), weight) for name, weight in named_arrays(theta)}
    assert len(expected) == 5 + SIZES.L * (4 + 6 * SIZES.H + 2 + 4)
    assert largest_error(gradient, expected) < 1e-8


def torch_loss(x: list[int], theta: Any) -> Tensor:
    """The loss of the same listing in torch, with one row per token, for autograd."""
    X = theta.W_e.T[x] + theta.W_p.T[: len(x)]
    for layer in theta.layers:
        X = F.layer_norm(X, X.shape[1:], layer.gamma_1, layer.beta_1, EPSILON)
        heads = [torch_head(X, head) for head in layer.attention.heads]
        X = X + F.linear(torch.cat(heads, dim=1), layer.attention.W_o, layer.attention.b_o)
        X = F.layer_norm(X, X.shape[1:], layer.gamma_2, layer.beta_2, EPSILON)
        X = X + F.linear(F.gelu(F.linear(X, layer.W_mlp1, layer.b_mlp1)), layer.W_mlp2, layer.b_mlp2)
    X = F.layer_norm(X, X.shape[1:], theta.gamma, theta.beta, EPSILON)
    return F.cross_entropy(F.linear(X, theta.W_u)[:-1], torch.tensor(x[1:]), reduction="sum")


def torch_head(X: Tensor, head: Any) -> Tensor:
    query, key, value = (F.linear(X, getattr(head, f"W_{p}"), getattr(head, f"b_{p}")) for p in "qkv")
    return F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0]


def test_loss_and_gradient_match_autograd(theta):
    leaves = as_tensors(theta)
    expected_loss = torch_loss(x, leaves)
    expected_loss.backward()
    loss, gradient = loss_and_gradient(x, theta)
    assert loss == pytest.approx(expected_loss.item(), rel=1e-12)
    expected = {name: leaf.grad.numpy() for name, leaf in named_arrays(leaves)}
    assert largest_error(gradient, expected) < 1e-12


def as_tensors(theta: DTransformerParameters) -> Any:
    return combine(lambda weight: torch.from_numpy(weight.copy()).requires_grad_(), theta)


def test_a_layer_norm_gradient_without_the_variance_term_is_caught(theta, monkeypatch):
    correct = training.layer_norm_backward

    def without_variance(X, gamma, d_Y):
        _, d_gamma, d_beta = correct(X, gamma, d_Y)
        return d_Y * gamma[:, None] / X.std(axis=0), d_gamma, d_beta

    monkeypatch.setattr(training, "layer_norm_backward", without_variance)
    leaves = as_tensors(theta)
    torch_loss(x, leaves).backward()
    _, wrong = loss_and_gradient(x, theta)
    assert largest_error(wrong, {name: leaf.grad.numpy() for name, leaf in named_arrays(leaves)}) > 1e-3


def test_sgd_step_follows_the_gradient_and_keeps_the_old_parameters(theta):
    before = {name: weight.copy() for name, weight in named_arrays(theta)}
    loss, gradient = loss_and_gradient(x, theta)
    reported_loss, stepped = sgd_step(x, theta, eta=0.001)
    assert reported_loss == loss
    assert largest_error(theta, before) == 0
    expected = before["theta.W_u"] - 0.001 * gradient.W_u
    assert stepped.W_u == pytest.approx(expected)
    squared_slope = sum(float((slope**2).sum()) for _, slope in named_arrays(gradient))
    assert loss_of(stepped) == pytest.approx(loss - 0.001 * squared_slope, rel=1e-2)


def test_training_takes_one_step_per_sequence_and_epoch_in_order(theta):
    sequences = [[0, 1, 2], [3, 4]]
    by_hand = theta
    for sequence in sequences * 2:
        _, by_hand = sgd_step(sequence, by_hand, eta=0.05)
    trained = d_training(sequences, theta, N_epochs=2, eta=0.05)
    assert largest_error(trained, dict(named_arrays(by_hand))) == 0


def test_training_memorises_two_sequences():
    sequences = [[0, 1, 2, 3, 4], [4, 0, 3, 1, 2]]
    theta = random_parameters(SIZES, np.random.default_rng(0))
    trained = d_training(sequences, theta, N_epochs=60, eta=0.05)
    for sequence in sequences:
        # the first token alone determines the second; the earlier tokens determine the rest
        assert d_transformer_overwriting(sequence, trained).argmax(axis=0)[:-1].tolist() == sequence[1:]
