"""Steps that are not finite are skipped on the device, and the host reads nothing until it is asked for the loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from foretell.config import TrainingConfig
from foretell.data.batch import Batch
from foretell.data.loader import Loader
from foretell.errors import DivergedError
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import Objective
from foretell.training.optimizer import OPTIMIZERS, make_optimizer
from foretell.training.skipping import SkippingOptimizer
from foretell.training.step import training_step

MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]


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
    with pytest.raises(DivergedError, match="step 2: the gradient is nan, and no weight was changed by it"):
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
def test_a_step_reads_one_value_the_count_of_its_batch_before_it_is_copied(
    name: str, make_objective: MakeObjective, settings: Settings, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, objective = settings(optimizer=name, gradient_accumulation_steps=4), make_objective(dropout=0.2)
    optimizer = skipping_optimizer(objective, config)
    monkeypatch.setattr(Tensor, "tolist", None)
    with ValuesRead() as values:
        result = training_step(objective, optimizer, batch, 0, config)
    assert values.count == 1
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
