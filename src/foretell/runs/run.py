"""A run directory: the configuration, the metrics, the samples and the checkpoints of one training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretell.errors import CheckpointError, OutputError
from foretell.runs.checkpoint import Checkpoint, best_checkpoint, list_checkpoints
from foretell.runs.files import read_json, write_json, write_text

RUN, METRICS, ENVIRONMENT, CURVE = "run.json", "metrics.jsonl", "environment.json", "loss.png"


class Run:
    """Paths and records of one run."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.samples = directory / "samples"
        self.tokens = directory / "tokens"

    @property
    def name(self) -> str:
        return self.directory.name

    @classmethod
    def create(cls, directory: Path) -> Run:
        """Make the directories of a new run; one that exists is refused."""
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            advice = "go on with it by --resume auto" if is_run(directory) else "it is no run: remove it"
            raise OutputError(f"{directory} exists; {advice}, or give another --out")
        run = cls(directory)
        try:
            for path in (run.checkpoints, run.samples, run.tokens):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot create {directory}: {error.strerror}; give another --out") from None
        return run

    @classmethod
    def open(cls, directory: Path) -> Run:
        """An existing run."""
        if not (directory / RUN).is_file():
            raise CheckpointError(f"{directory} is no run: it has no {RUN}")
        return cls(directory)

    def write_record(self, record: dict[str, Any], environment: dict[str, Any]) -> None:
        """Store what the run was made of: the resolved configuration, data and reasons; and where it ran."""
        write_json(self.directory / RUN, record)
        write_json(self.directory / ENVIRONMENT, environment)

    def record(self) -> dict[str, Any]:
        """What `write_record` stored."""
        record = read_json(self.directory / RUN)
        for key in ("config", "data", "size", "device", "dtype"):
            if key not in record:
                raise CheckpointError(f"{self.directory / RUN} has no '{key}'; it is damaged or of another version")
        return record

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        try:
            with (self.directory / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics) + "\n")
        except OSError as error:
            raise OutputError(f"could not write {self.directory / METRICS}: {error.strerror}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are complete, oldest first."""
        path = self.directory / METRICS
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            found = [json.loads(line) for line in lines if line.endswith("\n")]  # a crash may cut the last one
            return [{"step": int(metrics["step"]), **metrics} for metrics in found]
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); remove the line, or start again with another --out"
            ) from None

    def forget_metrics_after(self, step: int) -> None:
        """Drop what a run wrote after the checkpoint that it now goes on from."""
        kept = [metrics for metrics in self.metrics() if metrics["step"] <= step]
        write_text(self.directory / METRICS, "".join(json.dumps(metrics) + "\n" for metrics in kept))

    def write_sample(self, step: int, text: str) -> None:
        """Keep a text that the model wrote at a step."""
        self.samples.mkdir(exist_ok=True)
        write_text(self.samples / f"step-{step:06d}.txt", text)

    def best(self) -> Checkpoint:
        """The checkpoint with the lowest validation loss."""
        return best_checkpoint(self._existing())

    def at(self, which: str) -> Checkpoint:
        """The checkpoint named `best`, `last` or `step-000123`."""
        checkpoints = self._existing()
        if which in ("best", "last"):
            return self.best() if which == "best" else checkpoints[-1]
        for checkpoint in checkpoints:
            if checkpoint.directory.name == which:
                return checkpoint
        there = ", ".join(checkpoint.directory.name for checkpoint in checkpoints)
        raise CheckpointError(f"{self.directory} has no checkpoint '{which}'; it has best, last, {there}")

    def last_intact(self, say: Callable[[str], None]) -> Checkpoint:
        """The newest checkpoint whose files are what was saved; each damaged one is named on the way."""
        for checkpoint in reversed(self._existing()):
            try:
                checkpoint.verify()
            except CheckpointError as error:
                say(f"{error}; going back to the checkpoint before")
                continue
            return checkpoint
        raise CheckpointError(f"no checkpoint of {self.directory} is intact; start again with another --out")

    def _existing(self) -> list[Checkpoint]:
        checkpoints = list_checkpoints(self.checkpoints)
        if not checkpoints:
            raise CheckpointError(f"{self.directory} has no checkpoint yet")
        return checkpoints


def is_run(path: Path) -> bool:
    """Does a run live in this directory?"""
    return os.path.isfile(path / RUN)  # noqa: PTH113 - is_file raises on names that are too long, this says no
