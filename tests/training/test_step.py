"""One optimizer step: the same for any number of micro-batches, and no update if a number is not finite."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from foretell.config import TrainingConfig
from foretell.data.batch import Batch
from foretell.errors import TrainingError
from foretell.training import step as step_module
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import iter_micro_batches, training_step

MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]


def weights_of(objective: Objective) -> dict[str, Tensor]:
    return {path: weight.clone() for path, weight in objective.decoder.state_dict().items()}


def gradient_of_step(
    objective: Objective, batch: Batch, config: TrainingConfig, step: int = 4
) -> tuple[float, dict[str, Tensor]]:
    """The loss of a step, and the gradient with which the optimizer was called."""
    optimizer = make_optimizer(objective, config)
    found: dict[str, Tensor] = {}

    def note(*_: object) -> None:
        parameters = objective.decoder.named_parameters()
        found.update((path, one.grad.clone()) for path, one in parameters if one.grad is not None)

    optimizer.register_step_pre_hook(note)
    return training_step(objective, optimizer, batch, step, config).loss, found


# --- accumulation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_accumulated_gradients_equal_those_of_one_big_batch(
    accumulation: int, make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    loss, whole = gradient_of_step(make_objective(dropout=0.2), batch, settings(clip_norm=None))
    found, parts = gradient_of_step(
        make_objective(dropout=0.2), batch, settings(clip_norm=None, gradient_accumulation_steps=accumulation)
    )
    assert found == pytest.approx(loss, rel=1e-6)
    for path, gradient in parts.items():
        torch.testing.assert_close(gradient, whole[path], rtol=0, atol=1e-6)


def test_accumulated_steps_reach_the_weights_of_big_steps(
    make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    ends = []
    for accumulation in (1, 4):
        config = settings(
            gradient_accumulation_steps=accumulation, epsilon=1e-4
        )  # larger, since Adam enlarges tiny differences
        objective = make_objective(dropout=0.2)
        optimizer = make_optimizer(objective, config)
        for step in range(5):
            training_step(objective, optimizer, batch, step, config)
        ends.append(weights_of(objective))
    for path, weight in ends[0].items():
        torch.testing.assert_close(ends[1][path], weight, rtol=0, atol=1e-6)


def micro_batches_without_their_first_row(batch: Batch, accumulation: int) -> Iterator[tuple[int, Batch]]:
    return ((0, part) for _, part in iter_micro_batches(batch, accumulation))


def test_micro_batches_without_their_first_row_give_other_gradients(
    make_objective: MakeObjective, settings: Settings, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = gradient_of_step(make_objective(dropout=0.2), batch, settings())
    monkeypatch.setattr(step_module, "iter_micro_batches", micro_batches_without_their_first_row)
    _, parts = gradient_of_step(make_objective(dropout=0.2), batch, settings(gradient_accumulation_steps=4))
    assert any(not torch.allclose(parts[path], gradient, rtol=0, atol=1e-4) for path, gradient in whole.items())


@pytest.mark.parametrize(("step", "seed"), [(5, 1), (4, 2)])
def test_another_step_or_seed_drops_other_elements(
    step: int, seed: int, make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    losses = [
        gradient_of_step(make_objective(dropout=0.2), batch, settings(seed=one_seed), one_step)[0]
        for one_step, one_seed in ((4, 1), (4, 1), (step, seed))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_micro_batches_are_the_rows_in_order_with_their_first_row(batch: Batch) -> None:
    parts = list(iter_micro_batches(batch, 4))
    assert [first for first, _ in parts] == [0, 2, 4, 6]
    assert torch.equal(torch.cat([part.ids for _, part in parts]), batch.ids)


# --- clipping --------------------------------------------------------------------------------------------------------


def norm(gradient: dict[str, Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in gradient.values()]).norm())


def test_a_long_gradient_is_clipped_in_its_direction(
    make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    _, free = gradient_of_step(make_objective(), batch, settings(clip_norm=None))
    _, clipped = gradient_of_step(make_objective(), batch, settings(clip_norm=norm(free) / 2))
    for path, part in clipped.items():
        torch.testing.assert_close(part, free[path] / 2, rtol=1e-4, atol=1e-7)


def test_a_short_gradient_is_not_clipped_and_its_norm_is_reported(
    make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    _, free = gradient_of_step(make_objective(), batch, settings(clip_norm=None))
    config, objective = settings(clip_norm=norm(free) * 2), make_objective()
    result = training_step(objective, make_optimizer(objective, config), batch, 4, config)
    assert result.gradient_norm == pytest.approx(norm(free), rel=1e-5)
    assert result.count == batch.count


# --- numbers that are not finite -------------------------------------------------------------------------------------


def spoil_loss(objective: Objective) -> None:
    objective.decoder.head.register_forward_hook(lambda module, inputs, logits: logits * torch.inf)


def spoil_gradient(objective: Objective) -> None:
    objective.decoder.embed.token.weight.register_hook(lambda gradient: gradient * torch.nan)


@pytest.mark.parametrize(
    ("spoil", "message"), [(spoil_loss, "step 3: the loss is nan"), (spoil_gradient, "step 3: the gradient is nan")]
)
def test_a_non_finite_step_changes_no_weight_and_no_moment(
    spoil: Callable[[Objective], None],
    message: str,
    make_objective: MakeObjective,
    settings: Settings,
    batch: Batch,
) -> None:
    config, objective = settings(gradient_accumulation_steps=2), make_objective()
    optimizer = make_optimizer(objective, config)
    for step in range(2):
        training_step(objective, optimizer, batch, step, config)
    weights, moments = weights_of(objective), copy.deepcopy(optimizer.state_dict()["state"])
    spoil(objective)
    with pytest.raises(TrainingError, match=message) as raised:
        training_step(objective, optimizer, batch, 2, config)
    assert "\n" not in str(raised.value)
    assert all(torch.equal(weight, weights[path]) for path, weight in objective.decoder.state_dict().items())
    for key, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, moments[key][name]) for name, value in state.items())
