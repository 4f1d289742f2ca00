"""A run directory: the configuration, the metrics, the samples and the checkpoints of one training."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from foretell.config import TrainingConfig
from foretell.errors import CheckpointError, OutputError
from foretell.files import is_temporary, read_json, remove_leftovers, sync, write_json, write_text
from foretell.runs.checkpoint import Checkpoint, best_checkpoint, list_checkpoints

RUN, METRICS, ENVIRONMENT, CURVE = "run.json", "metrics.jsonl", "environment.json", "loss.png"
PREPARING = "preparing.json"  # there until the run is one; says from what it is being made
# What of the metrics depends on the machine and not on the training
MEASURED = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")
RESUMABLE = {"accumulation"}  # what of the training's settings a resumed run may change


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
    def create(cls, directory: Path, data: list[str] | None = None) -> Run:
        """Make the directories of a new run; one that exists is refused. It is a run once its record is written."""
        if directory.exists() and (not directory.is_dir() or not all(map(is_temporary, directory.iterdir()))):
            raise OutputError(f"{directory} exists; {cls._advice(directory)}, or give another --out")
        run = cls(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(directory)
            write_json(directory / PREPARING, {"data": data or []})  # first, so that a killed process leaves no riddle
            for path in (run.checkpoints, run.samples, run.tokens):
                path.mkdir(exist_ok=True)
            sync(directory.parent)
        except OSError as error:
            raise OutputError(f"cannot create {directory}: {error.strerror}; give another --out") from None
        return run

    @staticmethod
    def _advice(directory: Path) -> str:
        """What to do about a directory that is there already."""
        if is_run(directory):
            return "go on with it by --resume auto"
        if is_unfinished(directory):
            return "it was interrupted before its first step: start it again by --resume auto"
        return "it is no run: remove it"

    @classmethod
    def clear_unfinished(cls, directory: Path, data: list[str]) -> None:
        """Empty a directory whose run was killed before it was one, so that it can be made again from the same data."""
        before = read_json(directory / PREPARING).get("data")
        if before != data:
            named = ", ".join(map(str, before)) if isinstance(before, list) else str(before)
            raise OutputError(
                f"{directory} was interrupted while it was made from {named}; give the same data again, or another "
                "--out"
            )
        run = cls(directory)
        for path in (run.checkpoints, run.samples, run.tokens):
            shutil.rmtree(path, ignore_errors=True)
        remove_leftovers(directory)
        for name in (ENVIRONMENT, PREPARING):  # the marker last
            (directory / name).unlink(missing_ok=True)

    @classmethod
    def open(cls, directory: Path) -> Run:
        """An existing run."""
        if not (directory / RUN).is_file():
            raise CheckpointError(f"{directory} is no run: it has no {RUN}")
        return cls(directory)

    def write_record(self, record: dict[str, Any], environment: dict[str, Any]) -> None:
        """Store what the run was made of: the resolved configuration, data and reasons; and where it ran."""
        write_json(self.directory / ENVIRONMENT, environment)
        write_json(self.directory / RUN, record)
        (self.directory / PREPARING).unlink(missing_ok=True)

    def replace_record(self, record: dict[str, Any]) -> None:
        """Store a changed record of a run that goes on."""
        write_json(self.directory / RUN, record)

    def environment(self) -> dict[str, Any]:
        """Where the run was started; empty where that is not known any more."""
        path = self.directory / ENVIRONMENT
        return read_json(path) if path.is_file() else {}

    def configuration_digest(self) -> str:
        """A hash of the configuration, so that a checkpoint can tell whether it is the one it was trained with.

        Without what may change while the result stays the same but for rounding, and without settings at their
        defaults: those that came with a later version are what was the rule before.
        """
        config = self.record()["config"]
        fields = TrainingConfig.model_fields.items()
        defaults = to_jsonable_python({key: field.default for key, field in fields if not field.is_required()})
        training = {
            key: value
            for key, value in config.get("training", {}).items()
            if key not in RESUMABLE and not (key in defaults and value == defaults[key])
        }
        canonical = json.dumps({**config, "training": training}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def check_present(self) -> None:
        """Refuse to go on where the directory was removed meanwhile: writing would make one that is no run."""
        if not self.directory.is_dir():
            raise OutputError(f"{self.directory} is gone: it was removed, or its disk is no longer there")

    def clear_leftovers(self) -> None:
        """Delete what a killed process left: files under temporary names, and the mark of a run that was being made."""
        (self.directory / PREPARING).unlink(missing_ok=True)
        for folder in (self.directory, self.samples, self.checkpoints):
            remove_leftovers(folder)

    def record(self) -> dict[str, Any]:
        """What `write_record` stored."""
        record = read_json(self.directory / RUN)
        for key in ("config", "data", "size", "device", "dtype"):
            if key not in record:
                raise CheckpointError(f"{self.directory / RUN} has no '{key}'; it is damaged or of another version")
        return record

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        self.check_present()
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
        self.check_present()
        make_folder(self.samples)
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


def make_folder(path: Path) -> None:
    """Make a folder where it is missing."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"could not create {path}: {error.strerror or error}") from error


def is_unfinished(path: Path) -> bool:
    """Was a run being made in this directory when its process was killed?"""
    return os.path.isfile(path / PREPARING) and not is_run(path)  # noqa: PTH113 - as in is_run


def is_run(path: Path) -> bool:
    """Does a run live in this directory?"""
    return os.path.isfile(path / RUN)  # noqa: PTH113 - is_file raises on names that are too long, this says no
