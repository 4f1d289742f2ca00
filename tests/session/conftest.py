"""Shared by the tests of sessions: a task without text, which fits a linear layer to random vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.model.dropout import Dropout, DropoutHost
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.session.task import Task
from foretell.training.objective import Loss

INPUTS = 6


@dataclass(frozen=True)
class VectorBatch:
    """Rows of inputs (B, INPUTS) and what they should give (B, 1)."""

    inputs: Tensor
    outputs: Tensor

    @property
    def count(self) -> float:
        return float(len(self.inputs))

    @property
    def tokens(self) -> int:
        return self.inputs.numel()

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, first: int, last: int, stride: int = 1) -> VectorBatch:
        return VectorBatch(self.inputs[first:last:stride], self.outputs[first:last:stride])

    def to(self, device: torch.device | str) -> VectorBatch:
        return VectorBatch(self.inputs.to(device), self.outputs.to(device))


class LinearModel(DropoutHost):
    """Two linear layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.trunk, self.dropout, self.second = nn.Linear(INPUTS, 8), Dropout(0.1), nn.Linear(8, 1)
        for weight in self.parameters():
            weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
        self.bind_dropout()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(self.dropout(self.trunk(inputs)))


class SquaredError(nn.Module):
    """The sum of squared errors of a batch."""

    def __init__(self, model: LinearModel):
        super().__init__()
        self.model = model

    def forward(self, batch: VectorBatch) -> Loss:
        total = (self.model(batch.inputs) - batch.outputs).square().sum()
        return Loss(total, torch.tensor(batch.count))


class Regression(Task):
    """Predicts the sum of a random vector."""

    def __init__(self, training: TrainingConfig, model: LinearModel | None = None):
        self.training = training
        self.model = self.linear = model or LinearModel()
        self.objective = SquaredError(self.linear)
        self.checked: list[int] = []
        self.record = RunRecord(
            config={"training": training.model_dump(mode="json")},
            verb="train",
            data=["random vectors"],
            size="linear",
            device="cpu",
            dtype="float32",
        )

    def batch(self, step: int) -> VectorBatch:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(self.training.batch_size, INPUTS, generator=generator)
        return VectorBatch(inputs, inputs.sum(1, keepdim=True))

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        self.objective.eval()
        batch = self.batch(10**6)
        with torch.no_grad():
            errors = (self.linear(batch.inputs) - batch.outputs).abs()
        self.objective.train()
        return {"absolute_error": float(errors.mean()), "largest_error": float(errors.max())}

    def save_model(self, directory: Path) -> None:
        save_file({path: weight.detach() for path, weight in self.linear.named_parameters()}, directory / "linear.bin")

    def fingerprints(self) -> dict[str, str]:
        return {"inputs": str(INPUTS)}

    def check(self, batch: VectorBatch, dtype: torch.dtype) -> None:
        self.checked.append(len(batch))


class Sessions:
    """Makes sessions of the regression in one run directory."""

    def __init__(self, directory: Path):
        self.directory = directory

    def settings(self, **changes: Any) -> TrainingConfig:
        """Eight steps with accumulation, and a checkpoint every two of them."""
        defaults = {"steps": 8, "batch_size": 8, "gradient_accumulation_steps": 2, "learning_rate": 0.02}
        pace = {"warmup_steps": 1, "evaluate_every": 2, "log_every": 1, "checkpoint_every": 2, "keep_checkpoints": 9}
        return make_section(TrainingConfig, {**defaults, **pace, **changes})

    def session(self, run: Run, task: Regression) -> Session[Regression]:
        return Session(run, task, task.training, torch.device("cpu"), torch.float32, Reporter())

    def start(self, name: str = "run", **changes: Any) -> Session[Regression]:
        """A new run."""
        run = Run.create(self.directory / name)
        session = self.session(run, Regression(self.settings(**changes)))
        session.start()
        return session

    def resume(self, name: str = "run", **changes: Any) -> Session[Regression]:
        """A session that continues a run from its last intact checkpoint."""
        run = Run.open(self.directory / name)
        checkpoint = run.last_intact()
        model = LinearModel()
        model.load_state_dict(load_file(checkpoint.directory / "linear.bin"))
        session = self.session(run, Regression(self.settings(**changes), model))
        session.restore(checkpoint)
        return session


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    monkeypatch.setattr("foretell.session.session.draw_curve", lambda run: None)
    return Sessions(tmp_path)
