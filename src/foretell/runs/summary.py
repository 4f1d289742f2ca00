"""Summaries of runs, and the settings in which runs differ, without reading any weights."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

from rich.cells import cell_len, chop_cells

from foretell.config.section import Section, make_section
from foretell.config.training import Config, TrainingConfig
from foretell.errors import CheckpointError
from foretell.runs.checkpoint import Checkpoint, is_complete, list_checkpoints, validation_loss
from foretell.runs.record import RUN, MetricsDigest, RunRecord
from foretell.runs.run import METRICS, REPORT, Run
from foretell.storage.files import read_json
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table
from foretell.typesetting.html import Shown
from foretell.typesetting.text import shorten

# If these differ, the runs have different tokens
MEASURES = ("data", "model.vocab_size", "tokenizer.kind", "tokenizer.vocab_size", "tokenizer.split")
INCOMPARABLE = "these losses cannot be compared: the runs differ in their data or their tokens"
DONE, STOPPED_EARLY, UNFINISHED = "done", "stopped early", "unfinished"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HEADER = ("size", "weights", "steps", "tokens", "loss", "bits", "state", "changed")
LEFT_OUT = ("weights", "tokens", "changed")  # dropped in this order for long names
WIDTH, GAP, SETTING = 80, 2, 36  # characters: of the display, between two columns, of a setting's name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunReport(Shown):
    """The report.json of a run; each task that writes one has a subclass that shows it."""

    values: dict[str, Any]

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(read_json(run.directory / REPORT))

    def to_json(self) -> dict[str, Any]:
        return self.values


@dataclass(frozen=True)
class Summary:
    """One run. Losses of texts are in nats per token; `changed` is the time of its last write, in seconds since 1970.

    `best_validation_loss` belongs to the best checkpoint, to which the run's name resolves; `bits_per_byte` is the same
    loss per byte of the held-out text; both are None without such a text. Runs with the same `held_out` have the same
    held-out tokens or examples, and their losses compare. `parameters` is None if run.json lacks it. A run that is
    training now looks unfinished, like one that was interrupted: `changed` tells them apart.
    """

    name: str
    directory: str
    size: str
    parameters: int | None
    data: list[str]
    step: int
    steps: int
    tokens: int
    best_step: int | None
    best_validation_loss: float | None
    bits_per_byte: float | None
    held_out: str | None
    state: str
    changed: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(run: Run) -> Summary:
    """Read a run's record, metrics and the training state of its checkpoints; damage is a `CheckpointError`."""
    record, metrics, checkpoints = run.record(), run.metrics.records(), list_checkpoints(run.checkpoints)
    training = training_of(record, run)
    warn_of_changed_metrics(run, metrics, checkpoints)
    step = max(
        [line["step"] for line in metrics[-1:]] + [checkpoint.step for checkpoint in checkpoints[-1:]], default=0
    )
    best = min(checkpoints, key=validation_loss, default=None)
    loss = float("inf") if best is None else validation_loss(best)
    held_out = read_held_out(run)
    written = [run.directory / METRICS, run.checkpoints, run.directory / RUN]
    return Summary(
        name=run.name,
        directory=str(run.directory),
        size=record.size,
        parameters=record.parameters,
        data=record.data,
        step=step,
        steps=training.steps,
        tokens=int(metrics[-1].get("tokens", 0)) if metrics else 0,
        best_step=best.step if best and loss != float("inf") else None,
        best_validation_loss=None if loss == float("inf") else loss,
        bits_per_byte=bits_per_byte(loss, held_out),
        held_out=task_digest(record, checkpoints) if held_out is None else held_out.digest,
        state=state_of(checkpoints, training, record.minutes),
        changed=max(path.stat().st_mtime for path in written if path.exists()),
    )


def bits_per_byte(loss: float, held_out: HeldOut | None) -> float | None:
    """A loss in nats per token as bits per byte of the held-out text; None without such a text."""
    if loss == float("inf") or held_out is None or held_out.tokens_per_byte is None:
        return None
    return loss / math.log(2) * held_out.tokens_per_byte


def is_text_run(config: Mapping[str, Any]) -> bool:
    """True for the sections of pretraining; other tasks have other sections."""
    return config.keys() <= Config.model_fields.keys()


def training_of(record: RunRecord, run: Run) -> TrainingConfig:
    """The training section of a run of any task; the whole configuration of a text run is checked."""
    config, where = record.config, str(run.directory / RUN)
    if is_text_run(config):
        return make_section(Config, config, where).training
    return make_section(TrainingConfig, record.section("training"), where)


class HeldOut(NamedTuple):
    """The held-out tokens of a run: how many there are per byte of text, and a hash of them and of the tokenizer.

    A loss on rows has no bits per byte, because not every token is predicted; nor has one on words, which lose bytes.
    """

    tokens_per_byte: float | None
    digest: str


def read_held_out(run: Run) -> HeldOut | None:
    """The entry of the validation text in tokens/index.json; None without one. `foretell train` checks it in full."""
    path = run.tokens / "index.json"
    if not path.is_file():
        return None
    index = read_json(path)
    try:
        split = index["splits"]["validation"]
        if not split["bytes"] or not split["tokens"]:
            return None
        has_bits = "rows" not in index["extra"] and index["extra"].get("bits_per_byte", True)
        return HeldOut(split["tokens"] / split["bytes"] if has_bits else None, split_digest(index, "validation"))
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is damaged: it does not describe the held-out text") from None


def training_digest(run: Run) -> str | None:
    """A hash of the training tokens and of the tokenizer; None for a run without token shards."""
    path = run.tokens / "index.json"
    return split_digest(read_json(path), "train") if path.is_file() else None


def split_digest(index: dict[str, Any], split: str) -> str:
    """A hash of the tokens of a split, from the index of its shards, and of the tokenizer."""
    rows = index["extra"].get("rows")
    shards = [shard["sha256"] for shard in index["splits"][split]["shards"]]
    content = [index["tokenizer"], *shards, *([rows] if rows else [])]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def task_digest(record: RunRecord, checkpoints: Sequence[Checkpoint]) -> str | None:
    """For tasks other than text: a hash of the task and of the held-out data or examples of its loss."""
    if is_text_run(record.config) or not checkpoints:
        return None
    config, state = record.config, checkpoints[-1].training()
    tuning = config.get("finetuning")
    if tuning is not None:  # losses per example
        measured = [tuning.get("task"), tuning.get("best_by")]
    else:
        measured = [
            state.get("tokenizer"),
            {name: config[name] for name in config if name not in ("model", "training")},
        ]
    data = [state.get(name) for name in ("examples", "conversations", "pairs", "series")]
    content = [record.verb, measured, data]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def warn_of_changed_metrics(run: Run, metrics: list[dict[str, Any]], checkpoints: list[Checkpoint]) -> None:
    """Log a warning if the lines up to the last checkpoint were changed after training wrote them."""
    if not checkpoints:
        return
    last = checkpoints[-1]
    lines = [line for line in metrics if line["step"] <= last.step]
    if MetricsDigest(lines).value != last.training().get("metrics"):
        logger.warning(f"{run.directory / METRICS} was changed or damaged: its curves may be wrong")


def state_of(checkpoints: list[Checkpoint], training: TrainingConfig, minutes: float | None) -> str:
    """The state of a run: done if the last checkpoint has all steps, stopped early if patience ran out."""
    if not checkpoints:
        return UNFINISHED
    if is_complete(checkpoints[-1], training.steps, minutes):
        return DONE
    progress = checkpoints[-1].training().get("progress", {})
    patience = training.patience
    has_stopped = patience is not None and progress.get("evaluations_since_best", 0) >= patience
    return STOPPED_EARLY if has_stopped else UNFINISHED


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """`section.field` -> its value in each run, for every setting that differs between the runs.

    Settings that a run of an older version lacks have their defaults. Data, device and precision count as settings.
    """
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)  # runs of other tasks have other settings
    by_name = {name: [each.get(name) for each in settings] for name in names}
    return {name: values for name, values in by_name.items() if any(value != values[0] for value in values)}


def warning_about(summaries: Sequence[Summary], differences: Mapping[str, Any]) -> str:
    """The line for runs whose losses cannot be compared; empty for others.

    If a run has no held-out data, the settings that differ decide.
    """
    held_out = {summary.held_out for summary in summaries}
    if None not in held_out:
        return INCOMPARABLE if len(held_out) > 1 else ""
    return INCOMPARABLE if any(name in differences for name in MEASURES) else ""


def settings_of(run: Run) -> dict[str, Any]:
    """All settings of a run by their paths, as JSON values."""
    record = run.record()
    common, config = {key: getattr(record, key) for key in ("data", "device", "dtype")}, record.current_config
    if is_text_run(config):
        return common | flattened(make_section(Config, config, str(run.directory / RUN)))
    others = values_by_path({name: section for name, section in config.items() if name != "training"})
    return common | others | flattened(training_of(record, run), "training.")


def values_by_path(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `a.b` -> 1; an unused section, such as lora, has no values."""
    paths: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            paths |= values_by_path(value, f"{prefix}{key}.")
        elif prefix or value is not None:
            paths[prefix + key] = value
    return paths


def flattened(section: Section, prefix: str = "") -> dict[str, Any]:
    """The fields of a section and of the sections in it, as `a.b.c` -> value."""
    fields: dict[str, Any] = {}
    for key, value in section.model_dump(mode="json").items():
        inner = getattr(section, key)
        fields |= flattened(inner, f"{prefix}{key}.") if isinstance(inner, Section) else {prefix + key: value}
    return fields


@dataclass(frozen=True)
class RunTable(Shown):
    """Runs in a table, and the settings in which they differ.

    `labels` are their names as given; `marks` are marks of curves, one for each run. Without marks the runs are a
    list and not compared.
    """

    summaries: Sequence[Summary]
    labels: Sequence[str]
    marks: str = ""
    differences: Mapping[str, list[Any]] = field(default_factory=dict)
    warning: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"runs": [summary.to_json() for summary in self.summaries], "differences": dict(self.differences)}

    def document(self) -> DocumentSection:
        """A row for each run, with its best validation loss; in a list, losses that compare have the same letter."""
        letters = [""] * len(self.summaries) if self.warning else letters_of(self.summaries)
        cells = [cells_of(summary, letter) for summary, letter in zip(self.summaries, letters, strict=True)]
        marks = [f"{mark} " for mark in self.marks[: len(cells)]] or [""] * len(cells)
        names = map("".join, zip(marks, self.labels, strict=True))
        lines = [("run", *HEADER), *((name, *line) for name, line in zip(names, cells, strict=True))]
        columns = zip(*lines, strict=True)
        columns = [column for column in columns if column[0] in ("run", "loss") or set(column[1:]) != {"-"}]
        for left_out in LEFT_OUT:
            if sum(max(map(cell_len, column)) + GAP for column in columns) > WIDTH + GAP:
                columns = [column for column in columns if column[0] != left_out]
        room = WIDTH - sum(max(map(cell_len, column)) + GAP for column in columns[1:])
        header, *whole = zip(*columns, strict=True)
        rows: list[Sequence[str]] = []
        for name, *values in whole:  # names are never cut, because they address the runs; they continue below
            first, *others = chop_cells(name, room)
            rows += [(first, *values), *((other, *[""] * len(values)) for other in others)]
        parts: list[Part] = [Table(header, rows)]
        if any(letters):
            parts.append(Paragraph("losses with different letters do not compare: other tasks or held-out data"))
        if self.warning:
            parts.append(Paragraph(self.warning))
        return DocumentSection("", [*parts, *self.settings()] if self.marks and len(cells) > 1 else parts)

    def settings(self) -> list[Part]:
        """The differing settings as a table, those with long values below it."""
        if not self.differences:
            return [Paragraph("all settings are the same")]
        marks = self.marks[: len(self.summaries)]
        rows = {name: list(map(format_setting, values)) for name, values in self.differences.items()}
        longest = (WIDTH - SETTING) // len(marks) - GAP
        short = [(name, *values) for name, values in rows.items() if max(map(cell_len, values)) <= longest]
        long = [name for name, values in rows.items() if max(map(cell_len, values)) > longest]
        lines = [
            f"{name}  " + "  ".join(f"{mark} {value}" for mark, value in zip(marks, rows[name], strict=True))
            for name in long
        ]
        return [*([Table(("what differs", *marks), short)] if short else []), *map(Paragraph, lines)]


def letters_of(summaries: Sequence[Summary]) -> list[str]:
    """A letter for each run, the same for the same held-out data; empty letters if all losses can be compared."""
    digests = [summary.held_out for summary in summaries if summary.best_validation_loss is not None]
    groups = {digest: LETTERS[index % len(LETTERS)] for index, digest in enumerate(dict.fromkeys(digests))}
    if len(groups) < 2:
        return [""] * len(summaries)
    return [groups[summary.held_out] if summary.best_validation_loss is not None else "" for summary in summaries]


def cells_of(summary: Summary, letter: str) -> tuple[str, ...]:
    """The cells of a run after its name; a dash for an unknown value."""
    changed, now = time.localtime(summary.changed), time.localtime()
    return (
        shorten(summary.size, 8, from_end=True),
        "-" if summary.parameters is None else short_number(summary.parameters),
        f"{summary.step}" if summary.state == DONE else f"{summary.step}/{summary.steps}",
        short_number(summary.tokens),
        "-" if summary.best_validation_loss is None else f"{summary.best_validation_loss:.3f}{letter}",
        "-" if summary.bits_per_byte is None else f"{summary.bits_per_byte:.3f}",
        "early stop" if summary.state == STOPPED_EARLY else summary.state,
        time.strftime("%H:%M:%S" if changed[:3] == now[:3] else "%y-%m-%d", changed),
    )


def short_number(number: float) -> str:
    """1,234,567 as 1.2M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * limit:
            value = number / limit
            return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return f"{number:.0f}"


def format_setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == {} else str(value)
