"""Which weights decay, which optimizer updates which, and that each follows its formula."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch
from foretell.training.objective import Objective
from foretell.training.optimizer import (
    OPTIMIZERS,
    freeze,
    make_optimizer,
    moments_per_element,
    optimizer_flops_per_step,
    orthogonalize_flops,
    set_learning_rate,
)
from foretell.training.pace import learning_rate_at
from foretell.training.step import training_step

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


def decays(make_objective: MakeObjective, config: TrainingConfig) -> dict[str, float]:
    """The weight decay of every weight, by its path."""
    decoder = make_objective(tie_embeddings=False).decoder
    groups = make_optimizer(decoder, config).param_groups
    return {
        path: next(group["weight_decay"] for group in groups if any(member is weight for member in group["params"]))
        for path, weight in decoder.named_parameters()
    }


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_last_matching_glob_gives_the_decay(
    optimizer: str, make_objective: MakeObjective, settings: Settings
) -> None:
    by_path = {"embed.**": 0.0, "trunk.blocks.1.**": 0.02, "**.query.weight": 0.5, "**.norm.bias": 0.25}
    decay = decays(make_objective, settings(optimizer=optimizer, weight_decay=0.3, weight_decay_by_path=by_path))
    assert decay["embed.token.weight"] == 0
    assert decay["trunk.blocks.0.attention.query.weight"] == 0.5
    assert decay["trunk.blocks.1.attention.query.weight"] == 0.5
    assert decay["trunk.blocks.1.attention.key.weight"] == 0.02
    assert decay["trunk.blocks.1.attention.key.bias"] == 0.02
    assert decay["trunk.blocks.0.attention.key.weight"] == 0.3
    assert decay["trunk.blocks.0.attention.key.bias"] == 0
    assert decay["trunk.norm.bias"] == 0.25
    assert decay["head.weight"] == 0.3


def test_weights_without_a_gradient_are_left_out(make_objective: MakeObjective, settings: Settings) -> None:
    decoder = make_objective().decoder
    decoder.embed.requires_grad_(False)
    groups = make_optimizer(decoder, settings()).param_groups
    assert not any(member is decoder.embed.token.weight for group in groups for member in group["params"])


@pytest.mark.parametrize(("name", "groups"), [("adamw", 2), ("muon", 3), ("sgd", 2)])
def test_a_learning_rate_is_set_for_all_groups(
    name: str, groups: int, make_objective: MakeObjective, settings: Settings
) -> None:
    optimizer = make_optimizer(make_objective().decoder, settings(optimizer=name))
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125] * groups


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_learning_rate_of_0_changes_no_weight(
    name: str, make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    """Also those of the parts of a composite, which take it from the groups that they share with it."""
    objective = make_objective()
    before = copy.deepcopy(objective.state_dict())
    config = settings(optimizer=name)
    optimizer = make_optimizer(objective.decoder, config)
    for learning_rate, moves in ((0.0, False), (0.01, True)):
        set_learning_rate(optimizer, learning_rate)
        training_step(objective, optimizer, batch, 0, config)
        for path, weight in objective.state_dict().items():
            assert torch.equal(weight, before[path]) != moves, path


@pytest.mark.parametrize("tied", [True, False])
def test_muon_updates_the_matrices_of_the_trunk_and_adamw_all_others(
    tied: bool, make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    objective = make_objective(tie_embeddings=tied)
    config = settings(optimizer="muon")
    optimizer = make_optimizer(objective.decoder, config)
    training_step(objective, optimizer, batch, 0, config)
    for path, weight in objective.decoder.named_parameters():
        is_matrix = path.startswith("trunk.") and path.endswith(".weight") and "norm" not in path
        assert set(optimizer.state[weight]) == ({"momentum"} if is_matrix else {"step", "exp_avg", "exp_avg_sq"}), path


def test_sgd_follows_the_formula_and_its_decay_stays_out_of_the_momentum(settings: Settings) -> None:
    layer = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(layer.weight, 2.0)
    config = settings(optimizer="sgd", learning_rate=0.1, weight_decay=0.5, momentum=0.8)
    optimizer = make_optimizer(layer, config)
    weight, velocity = 2.0, 0.0
    for gradient in [3.0, -1.0, 0.5]:
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        velocity = 0.8 * velocity + gradient
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * velocity
        assert layer.weight.item() == pytest.approx(weight, rel=1e-12)


def test_adamw_follows_the_formula(settings: Settings) -> None:
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


# --- frozen weights, and what an optimizer holds and computes ---------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("frozen", [(), ("embed.**", "trunk.blocks.1.**")])
def test_the_predicted_moments_are_those_that_the_optimizer_holds(
    name: str, frozen: tuple[str, ...], make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    objective = make_objective()
    config = settings(optimizer=name, frozen=frozen)
    freeze(objective.decoder, config)
    optimizer = make_optimizer(objective.decoder, config)
    training_step(objective, optimizer, batch, 0, config)
    for path, weight in objective.decoder.named_parameters():
        moments = [value for value in optimizer.state.get(weight, {}).values() if value.shape == weight.shape]
        assert len(moments) == moments_per_element(path, tuple(weight.shape), config), path


def test_freezing_sets_no_other_weight_free(make_objective: MakeObjective, settings: Settings) -> None:
    decoder = make_objective().decoder
    decoder.trunk.requires_grad_(False)
    freeze(decoder, settings(frozen=("embed.position.weight",)))
    assert [path for path, weight in decoder.named_parameters() if weight.requires_grad] == ["embed.token.weight"]


def test_a_decay_glob_may_match_a_frozen_weight(make_objective: MakeObjective, settings: Settings) -> None:
    decoder = make_objective().decoder
    config = settings(frozen=("embed.**",), weight_decay_by_path={"embed.**": 0.0})
    freeze(decoder, config)
    make_optimizer(decoder, config)


def test_only_muon_has_products_and_they_are_those_of_its_trained_matrices(settings: Settings) -> None:
    shapes = {
        "embed.token.weight": (50, 8),
        "trunk.a.weight": (8, 24),
        "trunk.b.weight": (24, 8),
        "trunk.b.bias": (24,),
    }
    assert optimizer_flops_per_step(shapes, settings()) == 0
    whole = optimizer_flops_per_step(shapes, settings(optimizer="muon"))
    assert whole == 2 * orthogonalize_flops(8, 24)
    assert optimizer_flops_per_step(shapes, settings(optimizer="muon", frozen=("trunk.a.**",))) == whole / 2


# 10 steps of warm-up, then 100 down to a tenth; stable_decay falls in the last 24 of those
CORNERS = {
    "cosine": [(10, 1.0), (35, 0.1 + 0.9 * (0.5 + 0.5**1.5)), (60, 0.55), (110, 0.1)],
    "linear": [(10, 1.0), (35, 0.775), (60, 0.55), (110, 0.1)],
    "stable_decay": [(10, 1.0), (60, 1.0), (86, 1.0), (98, 0.55), (110, 0.1)],
    "constant": [(10, 1.0), (60, 1.0), (110, 1.0)],
}


def share(step: int, settings: Settings, **changes: object) -> float:
    """The learning rate as a share of its largest."""
    config = settings(steps=110, warmup_steps=10, learning_rate=0.02, decay_fraction=0.24, **changes)
    return learning_rate_at(step, config) / 0.02


@pytest.mark.parametrize("schedule", CORNERS)
def test_a_schedule_has_the_expected_rates(schedule: str, settings: Settings) -> None:
    for step, expected in CORNERS[schedule]:
        assert share(step, settings, schedule=schedule) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", CORNERS)
def test_warm_up_is_linear_and_does_not_begin_at_0(schedule: str, settings: Settings) -> None:
    shares = [share(step, settings, schedule=schedule) for step in range(10)]
    assert shares == pytest.approx([(step + 1) / 10 for step in range(10)])


@pytest.mark.parametrize("schedule", CORNERS)
def test_after_warm_up_no_schedule_rises_or_falls_below_its_final_share(schedule: str, settings: Settings) -> None:
    shares = [share(step, settings, schedule=schedule) for step in range(10, 130)]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) >= 0.1 - 1e-12


def test_without_warm_up_the_first_step_has_the_whole_learning_rate(settings: Settings) -> None:
    assert learning_rate_at(0, settings(steps=5, warmup_steps=0, learning_rate=0.02)) == 0.02


def test_a_run_shorter_than_the_warm_up_never_decays(settings: Settings) -> None:
    config = settings(steps=5, warmup_steps=10, learning_rate=1.0)
    assert [learning_rate_at(step, config) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_a_step_counts_as_a_change_of_every_weight(
    name: str, make_objective: MakeObjective, settings: Settings
) -> None:
    decoder = make_objective().decoder
    optimizer = make_optimizer(decoder, settings(optimizer=name))
    for weight in decoder.parameters():
        weight.grad = torch.ones_like(weight)
    before = [weight._version for weight in decoder.parameters()]
    optimizer.step()
    assert all(weight._version > version for weight, version in zip(decoder.parameters(), before, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hooks_of_a_step_run_once_also_next_to_optimizers_of_torch(
    name: str, make_objective: MakeObjective, settings: Settings
) -> None:
    """torch patches the step of each class that is made, and a class whose base is patched could be patched twice."""
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    decoder = make_objective().decoder
    optimizer = make_optimizer(decoder, settings(optimizer=name))
    for weight in decoder.parameters():
        weight.grad = torch.ones_like(weight)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.step()
    assert calls == ["before"]
