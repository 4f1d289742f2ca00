"""Shares of a batch in several threads: the gradient of one pass, the same bits each time, and when it is shared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch
from foretell.model.cache import KVView
from foretell.model.dropout import DropoutRNG
from foretell.training import side_by_side
from foretell.training.execution import Recomputing
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.side_by_side import add_gradients, thread_pool, workers_for
from foretell.training.step import training_step

CPU = torch.device("cpu")
MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch has two threads, and every pass is large enough to be shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(side_by_side, "LEAST_WORK", 0)
    yield
    torch.set_num_threads(before)


def gradients(
    objective: Objective, batch: Batch, config: TrainingConfig, dtype: torch.dtype = torch.float32
) -> tuple[float, dict[str, Tensor], list[int]]:
    """The loss and the gradients of a step, and the number of rows of each of its passes."""
    optimizer, found, rows = make_optimizer(objective, config), dict[str, Tensor](), list[int]()
    make_view = objective.make_view

    def note_rows(batch: Batch) -> KVView:
        rows.append(len(batch))
        return make_view(batch)

    def note_gradients(*_: object) -> None:
        weights = objective.decoder.named_parameters()
        found.update((path, weight.grad.clone()) for path, weight in weights if weight.grad is not None)

    objective.make_view = note_rows
    optimizer.register_step_pre_hook(note_gradients)
    return training_step(objective, optimizer, batch, 3, config, dtype).loss, found, sorted(rows)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_shares_have_the_gradient_of_one_pass(
    dropout: float,
    accumulation: int,
    make_objective: MakeObjective,
    settings: Settings,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings(clip_norm=None, gradient_accumulation_steps=accumulation)
    shared = gradients(make_objective(dropout=dropout, logits_at_once=70), batch, config)
    monkeypatch.setattr(side_by_side, "LEAST_WORK", 10**9)
    alone = gradients(make_objective(dropout=dropout, logits_at_once=70), batch, config)
    assert (shared[2], alone[2]) == ([4 // accumulation] * 2 * accumulation, [8 // accumulation] * accumulation)
    assert shared[0] == pytest.approx(alone[0], rel=1e-6)
    assert shared[1].keys() == alone[1].keys()
    for path, gradient in shared[1].items():
        torch.testing.assert_close(gradient, alone[1][path], rtol=0, atol=1e-6)


def test_shares_give_the_same_bits_each_time(make_objective: MakeObjective, settings: Settings, batch: Batch) -> None:
    config = settings()
    runs = [gradients(make_objective(tie_embeddings=True), batch, config, torch.bfloat16) for _ in range(20)]
    for loss, found, _ in runs[1:]:
        assert loss == runs[0][0]
        assert all(torch.equal(found[path], gradient) for path, gradient in runs[0][1].items())


def test_activations_that_are_computed_again_have_the_masks_of_their_thread(
    make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    kept, again = make_objective(dropout=0.2), make_objective(dropout=0.2)
    Recomputing(again.decoder, ("trunk.blocks.*",), again.decoder.dropout_rng)
    expected, found = (gradients(objective, batch, settings()) for objective in (kept, again))
    assert found[0] == expected[0]
    assert all(torch.equal(found[1][path], gradient) for path, gradient in expected[1].items())


def test_frozen_weights_get_no_gradient(make_objective: MakeObjective, settings: Settings, batch: Batch) -> None:
    objective = make_objective()
    objective.decoder.embed.requires_grad_(False)
    _, found, rows = gradients(objective, batch, settings(frozen=("embed.**",)))
    assert rows == [4, 4]
    assert found
    assert not any(path.startswith("embed.") for path in found)


def test_weights_with_one_gradient_tensor_get_a_gradient_each() -> None:
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    add_gradients(nn.ParameterList([first, second]), [lambda: (first + second).sum()] * 2, count=1)
    assert first.grad is not None
    assert second.grad is not None
    first.grad.mul_(5)
    assert (first.grad.tolist(), second.grad.tolist()) == ([10, 10], [2, 2])


def test_a_gradient_has_the_layout_of_its_weight() -> None:
    """Fused optimizers read both in the order of memory."""
    weight, rows = nn.Parameter(torch.ones(4, 3)), torch.arange(8.0).view(2, 4)
    (other,) = torch.autograd.grad(torch.einsum("bi,io->ob", rows, weight).sum(), weight)
    assert other.stride() != weight.stride()
    add_gradients(
        nn.ParameterList([weight]), [lambda: torch.einsum("bi,io->ob", rows, weight).sum() for _ in range(2)], count=1
    )
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, 2 * other)


def test_an_error_of_one_share_ends_the_step_after_all_of_them(
    make_objective: MakeObjective, settings: Settings, batch: Batch
) -> None:
    objective, config, finished = make_objective(), settings(), list[int]()
    optimizer, before = make_optimizer(objective, config), copy.deepcopy(objective.decoder.state_dict())
    weighted_loss = objective.weighted_loss

    def fail_in_the_first(hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        if objective.decoder.dropout_rng.first_row == 0:
            raise RuntimeError("out of memory")
        loss = weighted_loss(hidden, targets, weights)
        finished.append(1)
        return loss

    objective.weighted_loss = fail_in_the_first
    with pytest.raises(RuntimeError, match="out of memory"):
        training_step(objective, optimizer, batch, 0, config)
    assert finished
    assert all(torch.equal(weight, before[path]) for path, weight in objective.decoder.state_dict().items())


def test_small_watched_and_other_passes_are_not_shared(
    make_objective: MakeObjective, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = make_objective()
    assert workers_for(objective, 8, 48, CPU) == 2
    assert workers_for(objective, 1, 48, CPU) == 1
    assert workers_for(objective, 8, 48, torch.device("meta")) == 1
    with monkeypatch.context() as context:
        context.setattr(side_by_side, "MOST_MEMORY", 0)
        assert workers_for(objective, 8, 48, CPU) == 1
    weight = next(objective.parameters())
    for watch in (
        lambda: objective.decoder.trunk.register_forward_hook(lambda *_: None),
        lambda: objective.decoder.trunk.register_full_backward_hook(lambda *_: None),
        lambda: weight.register_post_accumulate_grad_hook(lambda _: None),
        lambda: nn.modules.module.register_module_forward_hook(lambda *_: None),
    ):
        handle = watch()
        assert workers_for(objective, 8, 48, CPU) == 1
        handle.remove()
    assert workers_for(objective, 8, 48, CPU) == 2
    torch.set_num_threads(6)
    assert workers_for(objective, 8, 48, CPU) == 3
    torch.set_num_threads(2)
    monkeypatch.setattr(side_by_side, "LEAST_WORK", 10**9)
    assert workers_for(objective, 8, 48, CPU) == 1


def test_threads_have_their_own_counters_and_their_part_of_the_cores() -> None:
    torch.set_num_threads(4)
    rng, pool = DropoutRNG(), thread_pool(2, 2)
    rng.step = 5
    assert copy.deepcopy(rng) == rng
    state = pool.submit(lambda: (rng.step, torch.get_num_threads(), torch.is_autocast_cache_enabled())).result()
    assert state == (0, 2, False)
    assert (rng.step, torch.get_num_threads(), torch.is_autocast_cache_enabled()) == (5, 4, True)
