"""A run directory: the configuration, the metrics, the samples and the checkpoints of one training."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from foretell.config import TrainingConfig
from foretell.errors import CheckpointError, OutputError, did_you_mean
from foretell.files import (
    TEMPORARY,
    TEXT_LIMIT,
    is_temporary,
    read_bytes,
    read_json,
    remove_directory,
    remove_leftovers,
    sync,
    to_json,
    write_json,
    write_text,
)
from foretell.runs.checkpoint import Checkpoint, best_checkpoint, list_checkpoints

RUNS = Path("runs")
FOLDS = "folds"  # trainings of a cross-validation, until the report has their figures
RUN, METRICS, ENVIRONMENT, CURVE = "run.json", "metrics.jsonl", "environment.json", "loss.png"
PACE = "pace.txt"  # of a training of a given time: a line per step, with the share and the seconds that were spent
PREPARING = "preparing.json"  # exists until run.json does; names the data that the run is being made from
# Everything that training writes in a run, and what it leaves when it is killed
WRITTEN = (
    RUN,
    METRICS,
    PACE,
    ENVIRONMENT,
    CURVE,
    PREPARING,
    "report.json",
    "report.png",
    "tensorboard",
    "tokens",
    FOLDS,
)
WRITTEN += ("checkpoints/step-*", "samples/step-*.txt", *(f"{folder}{TEMPORARY}*" for folder in ("", "*/")))
# Metrics that depend on the machine and not on the training
MEASURED = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")
# Settings of the training that a resumed run may change
RESUMABLE = {"gradient_accumulation_steps", "parallel", "checkpoint_activations"}
# Digests of configurations use the names of the first version, so that its checkpoints keep their digests
FIRST_NAMES = {"gradient_accumulation_steps": "accumulation", "final_learning_rate_share": "min_learning_rate"}

# run.json names its format and its own SHA-256; the first version's has neither, so that one of them alone is damage
FORMAT = 2
SEAL = ("format", "sha256")
# The kind of every part of run.json; `from` is missing or null in a run that was not started from a model
JSON_NAMES = {dict: "object", list: "array", str: "string"}
KINDS: dict[str, type] = {"config": dict, "data": list, "size": str, "device": str, "dtype": str}

Line = TypeVar("Line")

logger = logging.getLogger(__name__)


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
        """Make the directories of a new run, which is one once its record is written; an existing run is refused."""
        if directory.exists() and (not directory.is_dir() or not all(map(is_temporary, directory.iterdir()))):
            raise OutputError(f"{directory} exists; {cls._advice(directory)}")
        run = cls(directory)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(directory)
            # First, so that the leftovers of a killed process are recognised
            write_json(directory / PREPARING, {"data": data or []})
            for path in (run.checkpoints, run.samples, run.tokens):
                path.mkdir(exist_ok=True)
            sync(directory.parent)
        except OSError as error:
            raise OutputError(f"cannot create {directory}: {error.strerror}; give another --out") from None
        return run

    @staticmethod
    def _advice(directory: Path) -> str:
        """Advice for a directory that exists."""
        if is_run(directory):
            return "resume it with --resume auto, or give another --out"
        if is_unfinished(directory):
            return "it was interrupted before its first step: start it again with --resume auto, or give another --out"
        return advice_without_record(directory) or "it is not a run, so give another --out"

    @classmethod
    def clear_unfinished(cls, directory: Path, data: list[str]) -> None:
        """Empty a directory that was killed before it became a run, so that it can be made again from the same data."""
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
            discard(directory / name)

    @classmethod
    def open(cls, directory: Path) -> Run:
        """An existing run."""
        if not (directory / RUN).is_file():
            raise CheckpointError(f"{directory} is not a run: {RUN} is missing{and_advice(directory)}")
        return cls(directory)

    def write_record(self, record: dict[str, Any], environment: dict[str, Any]) -> None:
        """Store what the run was made from (configuration, data, reasons) and the machine that it runs on."""
        write_json(self.directory / ENVIRONMENT, environment)
        self.replace_record(record)
        discard(self.directory / PREPARING)

    def replace_record(self, record: dict[str, Any]) -> None:
        """Store a record, with its SHA-256."""
        sealed = {**record, "format": FORMAT}
        write_json(self.directory / RUN, {**sealed, "sha256": digest_of(sealed)})

    def environment(self) -> dict[str, Any]:
        """The machine that the run was started on; empty if the file is lost, or damaged, which is a warning."""
        path = self.directory / ENVIRONMENT
        try:
            return read_json(path) if path.is_file() else {}
        except CheckpointError as error:
            logger.warning(f"{error}; it describes the machine that the run was started on, and is not needed")
            return {}

    def configuration_digest(self) -> str:
        """A hash of the configuration, with which a checkpoint is compared.

        It leaves out settings that may change on resuming, and settings at their defaults, so that a later version may
        add one whose default is the earlier behaviour.
        """
        config = self.record()["config"]
        fields = TrainingConfig.model_fields.items()
        defaults = with_first_names(
            to_jsonable_python({key: field.default for key, field in fields if not field.is_required()})
        )
        left_out = with_first_names(dict.fromkeys(RESUMABLE))
        training = {
            key: value
            for key, value in with_first_names(config.get("training", {})).items()
            if key not in left_out and not (key in defaults and value == defaults[key])
        }
        canonical = json.dumps({**config, "training": training}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def check_present(self) -> None:
        """Refuse to write into a run that was removed meanwhile: that would make a directory that is not a run."""
        if not self.directory.is_dir():
            raise OutputError(f"{self.directory} is gone: it was removed, or its disk is not mounted")

    def clear_leftovers(self) -> None:
        """Delete what a killed process left: files under temporary names, the mark of a run being made, a cut line."""
        discard(self.directory / PREPARING)
        if lines := self.pace():
            write_text(self.directory / PACE, "".join(map(pace_line, lines)))
        for folder in (self.directory, self.samples, self.checkpoints):
            remove_leftovers(folder)

    def record(self) -> dict[str, Any]:
        """The record that `write_record` stored; damage is a `CheckpointError`."""
        path = self.directory / RUN
        record = read_json(path)
        if any(key in record for key in SEAL):
            seal = record.pop("sha256", None)
            if record.get("format") != FORMAT or seal != digest_of(record):
                advice = and_advice(self.directory).replace("is lost", "is damaged")
                raise CheckpointError(
                    f"{path} is damaged or was changed: it does not match its own SHA-256; restore it{advice}"
                )
            del record["format"]
        self._check_kinds(record)
        return record

    def _check_kinds(self, record: dict[str, Any]) -> None:
        """Refuse a record whose parts are missing or of another kind."""
        path = self.directory / RUN
        for key, kind in KINDS.items():
            if key not in record:
                raise CheckpointError(f"{path} has no '{key}'; it is damaged or of another version")
            if not isinstance(record[key], kind):
                raise CheckpointError(f"{path} is damaged: its '{key}' is not a JSON {JSON_NAMES[kind]}")
        start = record.get("from") or {"model": "", "weights_sha256": ""}
        are_right = {
            "data": all(isinstance(name, str) for name in record["data"]),
            "device": record["device"] in ("cpu", "cuda", "mps"),
            "dtype": record["dtype"] in ("float32", "bfloat16"),
            "config": all(isinstance(section, dict | NoneType) for section in record["config"].values()),
            "from": isinstance(start, dict)
            and all(isinstance(start.get(key), str) for key in ("model", "weights_sha256")),
        }
        for key, is_right in are_right.items():
            if not is_right:
                raise CheckpointError(f"{path} is damaged: its '{key}' is not as training writes it")

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        self._append(METRICS, json.dumps(metrics) + "\n")

    def append_pace(self, step: int, share: float, seconds: float) -> None:
        """Add one line to pace.txt: the share of the training and the seconds that are spent when a step begins."""
        self._append(PACE, pace_line((step, share, seconds)))

    def sync_pace(self) -> None:
        """Write pace.txt to the disk, if there is one: a checkpoint must not be newer than it."""
        if (self.directory / PACE).exists():
            sync(self.directory / PACE)

    def _append(self, name: str, line: str) -> None:
        self.check_present()
        try:
            with (self.directory / name).open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise OutputError(f"could not write {self.directory / name}: {error.strerror}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are complete, oldest first."""
        return self._lines(METRICS, parse_metrics)

    def pace(self) -> list[tuple[int, float, float]]:
        """All lines of pace.txt that are complete, in the order of their steps."""
        return self._lines(PACE, parse_pace)

    def _lines(self, name: str, parse: Callable[[str], Line]) -> list[Line]:
        path = self.directory / name
        try:
            lines = read_bytes(path, TEXT_LIMIT).decode("utf-8").splitlines(keepends=True) if path.exists() else []
            return [parse(line) for line in lines if line.endswith("\n")]  # a crash may cut the last one
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); remove the line, or start again with another --out"
            ) from None

    def forget_metrics_after(self, step: int) -> None:
        """Drop the metrics after the step of the checkpoint that the run resumes from."""
        kept = [metrics for metrics in self.metrics() if metrics["step"] <= step]
        write_text(self.directory / METRICS, "".join(json.dumps(metrics) + "\n" for metrics in kept))

    def keep_file(self, path: Path, part: str) -> None:
        """Copy a file that the run is made from to tokens/PART/, so that resuming does not need the original."""
        folder = self.tokens / part
        make_folder(folder)
        try:
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise OutputError(f"could not copy {path} into {folder}: {error.strerror or error}") from error
        sync(folder / path.name)
        sync(folder)

    def kept_file(self, part: str) -> Path | None:
        """The file that `keep_file` copied; None if there is none."""
        folder = self.tokens / part
        return next(iter(folder.iterdir()), None) if folder.is_dir() else None

    def write_sample(self, step: int, text: str) -> None:
        """Keep the samples of a step."""
        self.check_present()
        make_folder(self.samples)
        write_text(self.samples / f"step-{step:06d}.txt", text)

    def remove(self) -> list[Path]:
        """Delete what training writes, and the directory if nothing else is in it; returns what else is in it."""
        self.record()  # a file called run.json alone does not make a folder a run
        written = {path for pattern in WRITTEN for path in self.directory.glob(pattern)}
        folders = [path for path in (self.checkpoints, self.samples) if path.is_dir() and not path.is_symlink()]
        found = [path for folder in (self.directory, *folders) for path in folder.iterdir()]
        others = sorted(set(found) - written - set(folders))
        if not others:
            remove_directory(self.directory)
            return []
        for path in [self.directory / RUN, *(written - {self.directory / RUN})]:  # the record first: no run is partial
            if path.parent not in (self.directory, *folders):  # a link leads there
                continue
            if path.is_dir() and not path.is_symlink():
                remove_directory(path)
            else:
                discard(path)
        for folder in folders:
            if not any(folder.iterdir()):
                folder.rmdir()
        return others

    def best(self) -> Checkpoint:
        """The checkpoint with the lowest validation loss."""
        best = best_checkpoint(self._existing())
        best.manifest()
        return best

    def at(self, which: str) -> Checkpoint:
        """The checkpoint named `best`, `last` or `step-000123`."""
        checkpoints = self._existing()
        if which in ("best", "last"):
            return self.best() if which == "best" else checkpoints[-1]
        for checkpoint in checkpoints:
            if checkpoint.directory.name == which:
                return checkpoint
        names = ", ".join(checkpoint.directory.name for checkpoint in checkpoints)
        raise CheckpointError(f"{self.directory} has no checkpoint '{which}'; it has best, last, {names}")

    def last_intact(self) -> Checkpoint:
        """The newest checkpoint that matches its manifest; each damaged one is a warning in the log."""
        for checkpoint in reversed(self._existing()):
            try:
                checkpoint.verify()
            except CheckpointError as error:
                logger.warning(f"{error}; going back to the checkpoint before")
                continue
            return checkpoint
        raise CheckpointError(f"no checkpoint of {self.directory} is intact; start again with another --out")

    def _existing(self) -> list[Checkpoint]:
        checkpoints = list_checkpoints(self.checkpoints)
        if not checkpoints:
            raise CheckpointError(f"{self.directory} has no checkpoint yet")
        return checkpoints


class FollowedRun(Run):
    """A run as all processes but the first one see it: they read what that one writes."""

    def replace_record(self, record: dict[str, Any]) -> None:
        """The first process writes it."""

    def write_record(self, record: dict[str, Any], environment: dict[str, Any]) -> None:
        """The first process writes it."""

    def clear_leftovers(self) -> None:
        """The first process does it."""

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """The first process writes them."""

    def append_pace(self, step: int, share: float, seconds: float) -> None:
        """The first process writes it."""

    def forget_metrics_after(self, step: int) -> None:
        """The first process does it."""

    def write_sample(self, step: int, text: str) -> None:
        """The first process writes it."""


class MetricsDigest:
    """A running hash of lines of metrics, without what depends on the machine; checkpoints keep it."""

    def __init__(self, lines: Iterable[dict[str, Any]] = ()):
        self._hash = hashlib.sha256()
        for metrics in lines:
            self.add(metrics)

    def add(self, metrics: dict[str, Any]) -> None:
        """The next line."""
        kept = {key: value for key, value in metrics.items() if key not in MEASURED}
        self._hash.update((json.dumps(kept) + "\n").encode())

    @property
    def value(self) -> str:
        """In hex, as training.json has it."""
        return self._hash.hexdigest()


def parse_metrics(text: str) -> dict[str, Any]:
    """A line of metrics.jsonl; ValueError if it is not an object of numbers with a step."""
    line = json.loads(text)
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        raise ValueError("a line is not an object with a step")
    for key, value in line.items():
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"step {line['step']}: '{key}' is not a number")
    return line


def pace_line(mark: tuple[int, float, float]) -> str:
    """A line of pace.txt: step, share and seconds."""
    step, share, seconds = mark
    return f"{step} {share!r} {seconds!r}\n"


def parse_pace(text: str) -> tuple[int, float, float]:
    """A line of pace.txt: step, share and seconds; ValueError if it is anything else."""
    step, share, seconds = text.split()
    if not (0 <= float(share) <= 1 and float(seconds) >= 0):
        raise ValueError(f"step {step}: a share of {share} after {seconds} seconds")
    return int(step), float(share), float(seconds)


def digest_of(record: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(record).encode()).hexdigest()


def discard(path: Path) -> None:
    """Delete a file that is not needed any more; where the system refuses, as with EBUSY, it stays, with a warning."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning(f"could not remove {path}: {error.strerror or error}; it does no harm")


def advice_without_record(directory: Path) -> str:
    """Advice for a directory whose run.json is lost; empty without checkpoints."""
    checkpoints = list_checkpoints(directory / "checkpoints")
    if not checkpoints:
        return ""
    path = shlex.quote(str(checkpoints[-1].directory))
    return f"its {RUN} is lost, but each checkpoint is a model, as in foretell train DATA --start-from {path}"


def and_advice(directory: Path) -> str:
    """The advice as the end of a message."""
    advice = advice_without_record(directory)
    return f"; {advice}" if advice else ""


def with_first_names(training: dict[str, Any]) -> dict[str, Any]:
    """The same settings under the names of the first version, with which configurations are hashed."""
    return {FIRST_NAMES.get(key, key): value for key, value in training.items()}


def make_folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"could not create {path}: {error.strerror or error}") from error


def is_unfinished(path: Path) -> bool:
    """True if the process was killed while it made a run in this directory."""
    return os.path.isfile(path / PREPARING) and not is_run(path)  # noqa: PTH113 - as in is_run


def is_run(path: Path) -> bool:
    return os.path.isfile(path / RUN)  # noqa: PTH113 - is_file raises on names that are too long, this returns False


# --- find runs -------------------------------------------------------------------------------------------------------


def find_run(argument: str) -> Run:
    """The run with this path, or with this name in ./runs."""
    for path in (Path(argument), RUNS / argument):
        if is_run(path):
            return Run(path)
    names = [run.name for run in find_runs(RUNS)] if RUNS.is_dir() else []
    near = did_you_mean(argument.removeprefix("runs/"), names)
    known = near or f"; there is {', '.join(names) or 'none in ./runs'}"
    raise CheckpointError(f"no run '{argument}': no such path, no run of that name{known}")


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder, by name."""
    try:
        return [Run(path) for path in sorted(folder.iterdir()) if is_run(path)]
    except OSError as error:
        raise CheckpointError(f"cannot list {folder}: {error.strerror}") from None
