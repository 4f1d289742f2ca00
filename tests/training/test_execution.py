"""Compiled blocks and losses, and values that are computed again: the same training."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch, make_batch
from foretell.data.loader import Loader
from foretell.errors import ConfigError
from foretell.evaluation.loss import evaluate
from foretell.model.init import make_decoder
from foretell.model.surgery import copy_with
from foretell.training.execution import Recomputing, compile_units
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import seed_dropout, training_step

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler has warnings about itself

MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]
Graphs = list[Any]

CASES: dict[str, tuple[dict[str, Any], int]] = {  # a model, and how many graphs its blocks and loss are
    "gpt2": ({}, 2),
    "dropout": ({"dropout": {"embedding": 0.1, "attention": 0.2, "residual": 0.3}}, 3),
    "windows": ({"window": (None, 3, None, 3)}, 5),
    "modern": ({"position": "rotary", "norm": "rmsnorm", "qk_norm": True, "feedforward": "gated"}, 2),
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """Compiling only records what would be compiled, and refuses code that does not become one graph."""
    graphs: Graphs = []

    def record(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(compile_module, backend=record))
    return graphs


def compile_module(module: nn.Module, *, backend: Any, dynamic: bool) -> None:
    module._compiled_call_impl = torch.compile(module._call_impl, backend=backend, dynamic=dynamic, fullgraph=True)


def weights_after(objective: Objective, batch: Batch, config: TrainingConfig) -> dict[str, Tensor]:
    optimizer = make_optimizer(objective.decoder, config)
    for step in range(2):
        training_step(objective, optimizer, batch, step, config)
    return copy.deepcopy(objective.decoder.state_dict())


@pytest.mark.parametrize(
    "documents", [pytest.param(False, id="rows", marks=pytest.mark.long), pytest.param(True, id="documents")]
)
@pytest.mark.parametrize(("changes", "count"), CASES.values(), ids=CASES)
def test_compiled_training_is_the_same_training(
    documents: bool,
    changes: dict[str, Any],
    count: int,
    graphs: Graphs,
    make_objective: MakeObjective,
    settings: Settings,
    batch: Batch,
) -> None:
    if not documents:
        batch = Batch(batch.ids, batch.targets, batch.loss_weights)
    config, objective = settings(gradient_accumulation_steps=2), make_objective(**changes, num_layers=4)
    assert compile_units(objective, batch.rows(0, 4), torch.float32)
    compiled = weights_after(objective, batch, config)
    plain = weights_after(make_objective(**changes, num_layers=4), batch, config)
    assert all(torch.equal(weight, plain[path]) for path, weight in compiled.items())
    assert len(graphs) <= count + documents, "blocks do not share their compiled form"
    assert compiled.keys() == plain.keys()


def test_what_runs_between_steps_is_not_compiled(
    graphs: Graphs, make_objective: MakeObjective, settings: Settings, loader: Loader
) -> None:
    config, objective, losses = settings(steps=2), make_objective(), []
    assert compile_units(objective, loader.batch(0), torch.float32)
    before = len(graphs)
    action = Action(1, lambda progress: losses.append(evaluate(objective, [loader.batch(0).rows(0, 3)]).loss))
    train(objective, make_optimizer(objective.decoder, config), loader, config, Progress(), [action])
    assert len(losses) == 2
    assert len(graphs) == before


def test_without_a_compiler_training_goes_on_and_the_log_says_why(
    make_objective: MakeObjective, settings: Settings, batch: Batch, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(graph: Any, inputs: list[Tensor]) -> Any:
        raise RuntimeError("no compiler here\nand a second line")

    torch.compiler.reset()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(compile_module, backend=fail))
    config, objective = settings(), make_objective(dropout=0.1)
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert not compile_units(objective, batch, torch.float32)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("not compiled: ")
    assert "no compiler here" in message
    assert "\n" not in message
    assert weights_after(objective, batch, config).keys() == weights_after(make_objective(), batch, config).keys()
    assert all(parameter.grad is None for parameter in objective.parameters())


# --- values that are computed again ----------------------------------------------------------------------------------


SHAPE = ModelConfig(num_layers=3, num_heads=2, width=16, context_length=12, vocab_size=29, dropout=0.2)
BATCH = make_batch(torch.randint(29, (4, 13), generator=torch.Generator().manual_seed(1)).numpy())


def gradients(*globs: str, move: bool = False) -> tuple[dict[str, Tensor], int]:
    """The gradients, and how many elements the graph keeps. move: the counters change before the backward pass."""
    decoder = make_decoder(SHAPE, seed=2)
    if globs:
        Recomputing(decoder, globs, decoder.dropout_rng)
    objective = Objective(decoder).train()
    seed_dropout(objective, 1, 5, 0, 4)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective(BATCH).sum
    if move:
        decoder.dropout_rng.step = 6
    loss.backward()
    return {path: weight.grad for path, weight in decoder.named_parameters() if weight.grad is not None}, sum(
        kept.values()
    )


@pytest.mark.parametrize("glob", ["trunk.blocks.*", "**.feedforward", "trunk.blocks.1"])
@pytest.mark.parametrize("move", [False, True])
def test_gradients_are_bit_identical_from_less_memory(glob: str, move: bool) -> None:
    expected, kept = gradients()
    actual, less = gradients(glob, move=move)
    assert all(torch.equal(expected[path], actual[path]) for path in expected)
    assert less < kept


def test_paths_classes_and_evaluation_stay() -> None:
    plain, changed = make_decoder(SHAPE, seed=2).eval(), make_decoder(SHAPE, seed=2).eval()
    recomputing = Recomputing(changed, ("trunk.blocks.*",), changed.dropout_rng)
    assert list(recomputing.modules) == [f"trunk.blocks.{i}" for i in range(3)]
    assert [(path, type(module)) for path, module in plain.named_modules()] == [
        (path, type(module)) for path, module in changed.named_modules()
    ]
    with torch.no_grad():
        assert torch.equal(plain(BATCH.ids), changed(BATCH.ids))


def test_copies_run_their_own_modules_while_it_is_suspended() -> None:
    decoder = make_decoder(SHAPE, seed=2).eval()
    recomputing = Recomputing(decoder, ("trunk.blocks.*",), decoder.dropout_rng)
    other = nn.Identity()
    with recomputing.suspended():
        changed = copy_with(decoder, {"trunk.blocks.0.feedforward": other})
        assert not torch.equal(changed(BATCH.ids), decoder(BATCH.ids))
    assert "forward" in vars(decoder.trunk.blocks[0])


def test_hooks_see_one_pass() -> None:
    decoder, seen = make_decoder(SHAPE, seed=2), list[nn.Module]()
    Recomputing(decoder, ("trunk.blocks.*",), decoder.dropout_rng)
    decoder.trunk.blocks[0].register_forward_hook(lambda module, inputs, output: seen.append(module))
    Objective(decoder).train()(BATCH).sum.backward()
    assert len(seen) == 1


def test_a_glob_without_a_match_is_refused() -> None:
    decoder = make_decoder(SHAPE, seed=2)
    with pytest.raises(ConfigError, match=r"checkpoint_activations: no module is named 'trunk.layers.\*'"):
        Recomputing(decoder, ("trunk.layers.*",), decoder.dropout_rng)
