"""One optimizer step: the same for any number of micro-batches, and no update if a number is not finite."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch
from foretell.data.loader import Loader
from foretell.errors import DivergedError, TrainingError
from foretell.training import step as step_module
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import Objective
from foretell.training.optimizer import OPTIMIZERS, make_optimizer
from foretell.training.step import SkippingOptimizer, iter_micro_batches, training_step

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
    spoil: Callable[[Objective], None], message: str, make_objective: MakeObjective, settings: Settings, batch: Batch
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


def skipping_optimizer(objective: Objective, config: TrainingConfig) -> SkippingOptimizer:
    """The optimizer as it is on a GPU."""
    optimizer = make_optimizer(objective.decoder, config)
    optimizer.skip = torch.zeros(())
    return optimizer


def state_of(objective: Objective, optimizer: SkippingOptimizer) -> list[Tensor]:
    """Weights and moments."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return copy.deepcopy([*objective.state_dict().values(), *moments])


def spoil(objective: Objective) -> Any:
    return objective.decoder.embed.token.weight.register_hook(lambda gradient: gradient * torch.nan)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_changes_from_the_first_step_that_is_not_finite_on(
    name: str, make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    config, objective = settings(optimizer=name), make_objective()
    optimizer = skipping_optimizer(objective, config)
    assert training_step(objective, optimizer, batch, 0, config).loss > 0
    before = state_of(objective, optimizer)
    hook = spoil(objective)
    bad = training_step(objective, optimizer, batch, 1, config)
    hook.remove()
    after_bad = training_step(objective, optimizer, batch, 2, config)
    assert all(torch.equal(*pair) for pair in zip(state_of(objective, optimizer), before, strict=True))
    assert after_bad.loss > 0
    with pytest.raises(DivergedError, match="step 2: the gradient is nan, so no weight was changed"):
        _ = bad.loss


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_finite_steps_have_the_same_bits(
    name: str, make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    config, states = settings(optimizer=name, gradient_accumulation_steps=2), []
    for make in (skipping_optimizer, lambda objective, config: make_optimizer(objective.decoder, config)):
        objective = make_objective()
        optimizer = make(objective, config)
        for step in range(3):
            training_step(objective, optimizer, batch, step, config)
        states.append(state_of(objective, optimizer))
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


class ValuesRead(TorchDispatchMode):
    """Counts the operations that make the host wait for a value of a device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        self.count += func in (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_reads_only_the_numbers_of_targets_and_tokens_of_its_batch_before_it_is_copied(
    name: str, make_objective: MakeObjective, settings: Settings, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, objective = settings(optimizer=name, gradient_accumulation_steps=4), make_objective(dropout=0.2)
    optimizer = skipping_optimizer(objective, config)
    monkeypatch.setattr(Tensor, "tolist", None)
    with ValuesRead() as values:
        result = training_step(objective, optimizer, batch, 0, config)
    assert values.count == 2
    monkeypatch.undo()
    assert result.gradient_norm > 0


def test_the_loop_reports_the_first_bad_step_when_an_action_is_due(
    make_objective: MakeObjective, settings: Settings, loader: Loader
) -> None:
    config, objective, logged = settings(steps=6), make_objective(), []
    optimizer, progress = skipping_optimizer(objective, config), Progress()

    def log(progress: Progress) -> None:
        logged.append((progress.step, progress.loss))
        spoil(objective)

    with pytest.raises(DivergedError, match="step 4: the gradient is nan"):
        train(objective, optimizer, loader, config, progress, [Action(3, log)])
    assert [step for step, _ in logged] == [3]
    assert progress.step == 6


def test_the_loss_is_read_after_the_last_step_although_no_action_is_due(
    make_objective: MakeObjective, settings: Settings, loader: Loader
) -> None:
    config, objective, progress = settings(steps=2), make_objective(), Progress()
    train(objective, skipping_optimizer(objective, config), loader, config, progress, [])
    assert progress.loss is not None
