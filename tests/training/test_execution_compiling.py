"""Compiled blocks and losses: the same training, one compiled form for all blocks, and a fallback that says why."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.config import TrainingConfig
from foretell.data.batch import Batch
from foretell.data.loader import Loader
from foretell.evaluation.perplexity import evaluate
from foretell.training.execution import compile_units
from foretell.training.loop import Action, Progress, train
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

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
