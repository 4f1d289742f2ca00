"""The loss: near bins are less wrong in training, plain cross entropy in evaluation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from foretell.config.model import ModelConfig
from foretell.forecasting.task import OrdinalLosses
from foretell.model.init import make_decoder

BINS = 21


@pytest.fixture(scope="module")
def decoder():
    return make_decoder(ModelConfig(num_layers=1, num_heads=1, width=8, context_length=4, vocab_size=BINS + 1), seed=1)


@torch.no_grad()
def loss_for(decoder, target: int, smoothing: float, training: bool = True) -> float:
    losses = OrdinalLosses(decoder, BINS, smoothing).train(training)
    return float(losses(torch.ones(1, 8), torch.tensor([target])))


@torch.no_grad()
def test_the_loss_is_cross_entropy_with_a_normal_distribution_around_the_target(decoder):
    near = torch.arange(BINS + 1.0) - 10
    shares = torch.exp(-0.5 * (near / 1.5) ** 2) * (near.abs() <= 6)
    logits = decoder.head(torch.ones(1, 8))
    expected = F.cross_entropy(logits, (shares / shares.sum())[None])
    assert loss_for(decoder, 10, 1.5) == pytest.approx(float(expected), abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
def test_without_smoothing_or_training_it_is_plain(decoder, training):
    plain = F.cross_entropy(decoder.head(torch.ones(1, 8)), torch.tensor([7]))
    assert loss_for(decoder, 7, 0.0 if training else 1.5, training) == pytest.approx(float(plain), abs=1e-6)


def test_at_the_edge_the_last_bin_takes_what_lies_beyond(decoder):
    assert 0 < loss_for(decoder, 0, 2.0) < 10
