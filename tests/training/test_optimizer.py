"""AdamW: which weights decay, and that it is AdamW."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from foretell.config import TrainingConfig
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer, set_learning_rate

MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]


def test_matrices_and_embeddings_decay_and_biases_and_norms_do_not(
    make_objective: MakeObjective, settings: Settings
) -> None:
    decoder = make_objective(tie_embeddings=False).decoder
    decaying, staying = make_optimizer(decoder, settings(weight_decay=0.3)).param_groups
    assert (decaying["weight_decay"], staying["weight_decay"]) == (0.3, 0)
    staying_paths = {
        path for path, one in decoder.named_parameters() if any(one is other for other in staying["params"])
    }
    assert staying_paths == {path for path, _ in decoder.named_parameters() if path.endswith(("bias", "norm.weight"))}
    assert len(decaying["params"]) + len(staying["params"]) == len(list(decoder.parameters()))


def test_frozen_weights_are_left_out(make_objective: MakeObjective, settings: Settings) -> None:
    decoder = make_objective().decoder
    decoder.embed.requires_grad_(False)
    groups = make_optimizer(decoder, settings()).param_groups
    assert not any(one is decoder.embed.token.weight for group in groups for one in group["params"])


def test_a_learning_rate_is_set_for_all_groups(make_objective: MakeObjective, settings: Settings) -> None:
    optimizer = make_optimizer(make_objective(), settings())
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


def test_a_step_is_the_formula(settings: Settings) -> None:
    layer = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(layer.weight, 2.0)
    config = settings(learning_rate=0.1, weight_decay=0.5, beta1=0.8, beta2=0.9, epsilon=1e-3)
    optimizer = make_optimizer(layer, config)
    weight, mean, square = 2.0, 0.0, 0.0
    for step, gradient in enumerate([3.0, -1.0, 0.5], start=1):
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        weight -= 0.1 * 0.5 * weight
        mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient**2
        weight -= 0.1 * (mean / (1 - 0.8**step)) / ((square / (1 - 0.9**step)) ** 0.5 + 1e-3)
        assert layer.weight.item() == pytest.approx(weight, rel=1e-12)
