"""The records of a run: run.json, with its own SHA-256, and the files with a line per step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar

from pydantic_core import to_jsonable_python

from foretell.config.training import TrainingConfig
from foretell.errors import CheckpointError, OutputError, shell_words
from foretell.files import TEXT_LIMIT, check_not_removed, read_bytes, read_json, sync, to_json, write_json, write_text
from foretell.runs.checkpoint import list_checkpoints

RUN = "run.json"
# Training settings that a resumed run may change
RESUMABLE = {"gradient_accumulation_steps", "parallel", "checkpoint_activations"}
# Checkpoints have digests of configurations in which this field had its first name
DIGEST_NAMES = {"final_learning_rate_share": "min_learning_rate"}

FORMAT = 2  # run.json names it and its own SHA-256
# The kind of every part of run.json; `from` is missing or null in a run that was not started from a model
JSON_NAMES = {dict: "object", list: "array", str: "string"}
KINDS: dict[str, type] = {"config": dict, "data": list, "size": str, "device": str, "dtype": str}


def write_record(directory: Path, record: dict[str, Any]) -> None:
    """Store the record of a run, with its SHA-256."""
    sealed = {**record, "format": FORMAT}
    write_json(directory / RUN, {**sealed, "sha256": digest_of(sealed)})


def read_record(directory: Path) -> dict[str, Any]:
    """The record that `write_record` stored; damage is a `CheckpointError`."""
    path = directory / RUN
    record = read_json(path)
    seal = record.pop("sha256", None)
    if record.get("format") != FORMAT or seal != digest_of(record):
        advice = and_advice(directory).replace("is lost", "is damaged")
        raise CheckpointError(
            f"{path} is damaged, was changed, or is of the first version: it does not match its own SHA-256; restore "
            f"it{advice}"
        )
    del record["format"]
    check_kinds(path, record)
    return record


def check_kinds(path: Path, record: dict[str, Any]) -> None:
    """Refuse a record whose parts are missing or of another kind."""
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
        "from": isinstance(start, dict) and all(isinstance(start.get(key), str) for key in ("model", "weights_sha256")),
    }
    for key, is_right in are_right.items():
        if not is_right:
            raise CheckpointError(f"{path} is damaged: its '{key}' is not as training writes it")


def digest_of(record: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(record).encode()).hexdigest()


def configuration_digest(config: dict[str, Any]) -> str:
    """A hash of the configuration in a record, to compare with a checkpoint's.

    It leaves out settings that may change on resuming, and settings at their defaults, so that a later version may add
    one whose default is the earlier behaviour.
    """
    fields = TrainingConfig.model_fields.items()
    defaults = to_jsonable_python({key: field.default for key, field in fields if not field.is_required()})
    training = {
        DIGEST_NAMES.get(key, key): value
        for key, value in config.get("training", {}).items()
        if key not in RESUMABLE and not (key in defaults and value == defaults[key])
    }
    canonical = json.dumps({**config, "training": training}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def advice_without_record(directory: Path) -> str:
    """Advice for a directory whose run.json is lost; empty without checkpoints."""
    checkpoints = list_checkpoints(directory / "checkpoints")
    if not checkpoints:
        return ""
    path = shell_words(checkpoints[-1].directory)
    return f"its {RUN} is lost, but each checkpoint is a model, as in foretell train DATA --start-from {path}"


def and_advice(directory: Path) -> str:
    """The advice to append to a message."""
    advice = advice_without_record(directory)
    return f"; {advice}" if advice else ""


# Metrics that depend on the machine, not on the training
MEASURED = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")

Line = TypeVar("Line")


class LineFile(Generic[Line]):
    """A text file with one record per line. A last line that a crash has cut is ignored.

    parse: line to record; raises ValueError for a damaged line. form: record to line, with its newline.
    """

    def __init__(self, path: Path, parse: Callable[[str], Line], form: Callable[[Line], str]):
        self.path, self.parse, self.form = path, parse, form

    def append(self, record: Line) -> None:
        check_not_removed(self.path.parent)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(self.form(record))
        except OSError as error:
            raise OutputError(f"could not write {self.path}: {error.strerror}") from error

    def records(self) -> list[Line]:
        """The records of all complete lines, oldest first; empty if the file is missing."""
        try:
            text = read_bytes(self.path, TEXT_LIMIT).decode("utf-8") if self.path.exists() else ""
            return [self.parse(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path} is damaged ({error}); remove the line, or start again with another --out"
            ) from None

    def keep(self, wanted: Callable[[Line], bool] = lambda record: True) -> None:
        """Keep only the lines of wanted records; drop a cut line too."""
        kept = "".join(self.form(record) for record in self.records() if wanted(record))
        if self.path.exists() and read_bytes(self.path, TEXT_LIMIT) != kept.encode():  # else it has not changed
            write_text(self.path, kept)

    def sync(self) -> None:
        """Write the file to the disk, if there is one."""
        if self.path.exists():
            sync(self.path)


class FollowedLineFile(LineFile[Line]):
    """A file that another process writes."""

    def append(self, record: Line) -> None:
        """The first process does it."""

    def keep(self, wanted: Callable[[Line], bool] = lambda record: True) -> None:
        """The first process does it."""


def metrics_line(metrics: dict[str, Any]) -> str:
    return json.dumps(metrics) + "\n"


def parse_metrics(text: str) -> dict[str, Any]:
    """A line of metrics.jsonl; ValueError if it is not an object of numbers with a step."""
    line = json.loads(text)
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        raise ValueError("a line is not an object with a step")
    for key, value in line.items():
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"step {line['step']}: '{key}' is not a number")
    return line


class MetricsDigest:
    """A running hash of lines of metrics, without machine-dependent values; checkpoints store it."""

    def __init__(self, lines: Iterable[dict[str, Any]] = ()):
        self._hash = hashlib.sha256()
        for metrics in lines:
            self.add(metrics)

    def add(self, metrics: dict[str, Any]) -> None:
        """Add the next line."""
        self._before = self._hash.copy()
        self._hash.update(metrics_line({key: metrics[key] for key in metrics if key not in MEASURED}).encode())

    def remove_last(self) -> None:
        """Forget the line that was added last."""
        self._hash = self._before

    @property
    def value(self) -> str:
        """The hash in hex, for training.json."""
        return self._hash.hexdigest()


def pace_line(mark: tuple[int, float, float]) -> str:
    """A line of pace.txt: the step, and the share of the training and the seconds before it."""
    step, share, seconds = mark
    return f"{step} {share!r} {seconds!r}\n"


def parse_pace(text: str) -> tuple[int, float, float]:
    """A line of pace.txt: step, share and seconds; ValueError if it is anything else."""
    step, share, seconds = text.split()
    if not (0 <= float(share) <= 1 and float(seconds) >= 0):
        raise ValueError(f"step {step}: a share of {share} after {seconds} seconds")
    return int(step), float(share), float(seconds)
