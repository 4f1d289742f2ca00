"""The records of a run: run.json, with its own SHA-256, and the files with a line per step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, Field
from pydantic_core import to_jsonable_python

from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.errors import CheckpointError, ConfigError, OutputError, shell_words
from foretell.runs.checkpoint import list_checkpoints
from foretell.saved_model.retired import without_retired_fields
from foretell.storage.files import (
    TEXT_LIMIT,
    check_not_removed,
    read_bytes,
    read_json,
    sync,
    to_json,
    write_json,
    write_text,
)

RUN = "run.json"
# Training settings that a resumed run may change
RESUMABLE = {"gradient_accumulation_steps", "parallel", "checkpoint_activations"}
# Checkpoints have digests of configurations in which this field had its first name
DIGEST_NAMES = {"final_learning_rate_share": "min_learning_rate"}

FORMAT = 2  # run.json names it and its own SHA-256


class StartRecord(Section):
    """The model that a training started from."""

    model: str  # the argument that named it
    weights_sha256: str


class StepSettings(Section):
    """The settings that may change when a run resumes, from an update on."""

    step: int  # updates taken before
    device: str = Field(pattern="^(cpu|cuda|mps)$")
    dtype: str = Field(pattern="^(float32|bfloat16)$")
    training: dict[str, Any]  # the fields in RESUMABLE


class RunRecord(Section):
    """The content of run.json, in the order of the file. Fields that earlier versions did not write are optional.

    `task` has what the kind of training adds (`TrainingRequest.choices`, `ChosenConfig.record`), in the file as entries
    among the others.
    """

    model_config = ConfigDict(populate_by_name=True)

    config: dict[str, dict[str, Any] | None]  # sections as JSON, as they were written
    verb: str | None = None  # resumes the run on the command line
    data: list[str]
    size: str
    reasons: list[str] = Field(default_factory=list)
    data_changed: dict[str, int] = Field(default_factory=dict)  # name of the data -> a number that changes with it
    start: StartRecord | None = Field(None, alias="from")
    epochs: int | float | None = None
    minutes: int | float | None = None
    task: dict[str, Any] = Field(default_factory=dict)
    fewest_steps: int | None = None  # of a training with a time budget, as the next
    most_steps: int | None = None
    parameters: int | None = None
    split: str | None = None  # the rule that chose the held-out data
    device: str = Field(pattern="^(cpu|cuda|mps)$")
    dtype: str = Field(pattern="^(float32|bfloat16)$")
    files_in_tokens: list[str] | None = None
    changes: list[StepSettings] | None = None  # if settings changed on resuming: the first ones, and each change

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunRecord:
        """Raises `ConfigError` for values that are missing or of another type."""
        names = {field.alias or name for name, field in cls.model_fields.items()}
        own = {name: value for name, value in values.items() if name in names}
        return make_section(cls, own | {"task": {name: values[name] for name in values if name not in names}})

    def to_json(self) -> dict[str, Any]:
        """The entries of run.json; those without a value are left out, except `most_steps` with a time budget."""
        entries: dict[str, Any] = {}
        for name, value in self.model_dump(mode="json", by_alias=True).items():
            if name == "task":
                entries |= value
            elif value is not None or (name == "most_steps" and self.minutes):
                entries[name] = value
        return entries

    def section(self, name: str) -> dict[str, Any]:
        """The fields of a section; empty if it is missing or unused."""
        return self.config.get(name) or {}

    @property
    def current_config(self) -> dict[str, Any]:
        """The configuration without fields that are not read any more."""
        return without_retired_fields(self.config)

    @property
    def configuration_digest(self) -> str:
        """A hash of the configuration, to compare with a checkpoint's.

        It leaves out settings that may change on resuming, and settings at their defaults, so that a later version may
        add one whose default is the earlier behaviour.
        """
        fields = TrainingConfig.model_fields.items()
        defaults = to_jsonable_python({key: field.default for key, field in fields if not field.is_required()})
        training = {
            DIGEST_NAMES.get(key, key): value
            for key, value in self.section("training").items()
            if key not in RESUMABLE and not (key in defaults and value == defaults[key])
        }
        canonical = json.dumps({**self.config, "training": training}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def own_settings(self) -> StepSettings:
        training = {key: value for key, value in self.section("training").items() if key in RESUMABLE}
        return StepSettings(step=0, device=self.device, dtype=self.dtype, training=training)

    def resumed(self, step: int, training: TrainingConfig, device: str, dtype: str) -> RunRecord:
        """The record of a run that goes on after `step` updates with these settings."""
        changed = self.model_copy(update={"config": self.config | {"training": training.model_dump(mode="json")}})
        now = changed.own_settings.model_copy(update={"step": step, "device": device, "dtype": dtype})
        changes = [each for each in self.changes or [self.own_settings] if each.step < step]
        if not changes or now.model_copy(update={"step": changes[-1].step}) != changes[-1]:
            changes.append(now)
        is_as_started = changes == [changed.own_settings]
        return changed.model_copy(update={"changes": None if is_as_started else changes})

    def settings_at(self, step: int) -> StepSettings:
        """The settings of the update that is taken after `step` others."""
        return next((each for each in reversed(self.changes or ()) if each.step <= step), self.own_settings)

    def at(self, step: int) -> RunRecord:
        """The record with the settings of the update that is taken after `step` others."""
        settings = self.settings_at(step)
        config = self.config | {"training": self.section("training") | settings.training}
        return self.model_copy(update={"config": config, "device": settings.device, "dtype": settings.dtype})


def write_record(directory: Path, record: RunRecord) -> None:
    """Store the record of a run, with its SHA-256."""
    write_json(directory / RUN, sealed(record.to_json()))


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """The entries of run.json with its format and SHA-256."""
    values = {**values, "format": FORMAT}
    return {**values, "sha256": digest_of(values)}


def read_record(directory: Path) -> RunRecord:
    """The record that `write_record` stored; damage is a `CheckpointError`."""
    path = directory / RUN
    values = read_json(path)
    digest = values.pop("sha256", None)
    if values.get("format") != FORMAT or digest != digest_of(values):
        advice = and_advice(directory).replace("is lost", "is damaged")
        raise CheckpointError(
            f"{path} is damaged, was changed, or is of the first version: it does not match its own SHA-256; restore "
            f"it{advice}"
        )
    del values["format"]
    try:
        return RunRecord.from_json(values)
    except ConfigError as error:
        raise CheckpointError(f"{path} is damaged or of another version: {error}") from None


def digest_of(record: dict[str, Any]) -> str:
    return hashlib.sha256(to_json(record).encode()).hexdigest()


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
