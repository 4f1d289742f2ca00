"""What the tests of runs share: a tiny model, checkpoints of it, a disk that fails, a process that dies."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import make_batch
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.training_state import CheckpointParts, save_checkpoint
from foretell.saved_model.parts_on_disk import save_model
from foretell.storage import safetensors_files
from foretell.text import Tokenizer, train_tokenizer
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

Save = Callable[..., Checkpoint]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer("characters", ["abcdefg"])


@pytest.fixture(scope="session")
def config(tokenizer: Tokenizer) -> ModelConfig:
    shape = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 6, "dropout": {"residual": 0.1}}
    return make_section(ModelConfig, {**shape, "vocab_size": tokenizer.vocab_size})


@pytest.fixture
def decoder(config: ModelConfig) -> Decoder:
    return make_decoder(config, seed=1)


@pytest.fixture
def optimizer(decoder: Decoder) -> torch.optim.Optimizer:
    """With moments, as after one step."""
    settings = TrainingConfig(steps=1)
    optimizer = make_optimizer(decoder, settings)
    tokens = torch.arange(decoder.config.vocab_size)[None, : decoder.config.context_length]
    training_step(Objective(decoder), optimizer, make_batch(tokens.numpy()), 0, settings)
    return optimizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a run keeps its checkpoints."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def save(folder: Path, decoder: Decoder, tokenizer: Tokenizer, optimizer: torch.optim.Optimizer) -> Save:
    """`save(3, validation_loss=1.5)` writes the checkpoint of step 3."""

    def save(step: int, **training: Any) -> Checkpoint:
        write_model = partial(save_model, decoder=decoder, tokenizer=tokenizer)
        return save_checkpoint(
            folder, step, CheckpointParts(write_model, decoder, optimizer, {"step": step, **training})
        )

    return save


class Killed(BaseException):
    """The process was killed: its later file operations have no effect."""


class Faults:
    """Lets the file operations of a block through until one fails; with Killed, all after it fail as well."""

    Killed = Killed

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.monkeypatch = monkeypatch
        self.left = 0
        self.happened = False

    @contextlib.contextmanager
    def after(self, operations: int, kind: type[BaseException]) -> Iterator[None]:
        """Fail with `kind` after so many file operations."""
        self.left, self.happened = operations, False
        with self.monkeypatch.context() as patch:
            for owner, name in [*WRITES, *REMOVALS] if kind is Killed else WRITES:
                patch.setattr(owner, name, self._counted(getattr(owner, name), kind))
            yield

    def _counted(self, operation: Callable, kind: type[BaseException]) -> Callable:
        def counted(*arguments: Any, **options: Any) -> Any:
            fails = self.left == 0 or (self.happened and kind is Killed)
            self.left -= 1
            if fails:
                self.happened = True
                raise kind(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return operation(*arguments, **options)

        return counted


WRITES = [(os, name) for name in ("mkdir", "fsync", "rename", "replace")] + [
    (io, "open"),
    (safetensors_files, "save_file"),
]
REMOVALS = [(os, name) for name in ("unlink", "rmdir")]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)
