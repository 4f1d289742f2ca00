"""Summaries of runs, and the settings in which runs differ, without reading any weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretell.config import Config, Section, make_section
from foretell.errors import CheckpointError
from foretell.model.cost import count_parameters
from foretell.runs.checkpoint import Checkpoint, list_checkpoints, validation_loss
from foretell.runs.run import METRICS, RUN, MetricsDigest, Run, is_run

# If these differ, the tokens of the runs are not the same
MEASURES = ("data", "model.vocab_size", "tokenizer.kind", "tokenizer.vocab_size", "tokenizer.split")
INCOMPARABLE = "these losses cannot be compared: the runs differ in their data or their tokens"
DONE, STOPPED_EARLY, UNFINISHED = "done", "stopped early", "unfinished"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Summary:
    """One run. Losses are in nats per token; `changed` is the time of its last write, in seconds since 1970.

    `best_validation_loss` is that of the best checkpoint, which the run's name stands for. A run that is training now
    is unfinished like one that was interrupted: `changed` tells them apart.
    """

    name: str
    directory: str
    size: str
    parameters: int
    data: list[str]
    step: int
    steps: int
    tokens: int
    best_step: int | None
    best_validation_loss: float | None
    state: str
    changed: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(run: Run) -> Summary:
    """Read a run's record, metrics and the training state of its checkpoints; damage is a `CheckpointError`."""
    record, metrics, checkpoints = run.record(), run.metrics(), list_checkpoints(run.checkpoints)
    config = make_section(Config, record["config"], str(run.directory / RUN))
    warn_of_changed_metrics(run, metrics, checkpoints)
    step = max(
        [line["step"] for line in metrics[-1:]] + [checkpoint.step for checkpoint in checkpoints[-1:]], default=0
    )
    best = min(checkpoints, key=validation_loss, default=None)
    loss = float("inf") if best is None else validation_loss(best)
    return Summary(
        name=run.name,
        directory=str(run.directory),
        size=str(record["size"]),
        parameters=count_parameters(config.model),
        data=list(record["data"]),
        step=step,
        steps=config.training.steps,
        tokens=int(metrics[-1].get("tokens", 0)) if metrics else 0,
        best_step=best.step if best and loss != float("inf") else None,
        best_validation_loss=None if loss == float("inf") else loss,
        state=state_of(checkpoints, config),
        changed=last_change(run),
    )


def warn_of_changed_metrics(run: Run, metrics: list[dict[str, Any]], checkpoints: list[Checkpoint]) -> None:
    """Log a warning where the lines up to the last checkpoint are not those that training wrote."""
    if not checkpoints:
        return
    last = checkpoints[-1]
    written = last.training().get("metrics")  # the first version has none
    lines = [line for line in metrics if line["step"] <= last.step]
    if written is not None and MetricsDigest(lines).value != written:
        logger.warning(f"{run.directory / METRICS} is not as it was written: its curves may be wrong")


def state_of(checkpoints: list[Checkpoint], config: Config) -> str:
    """Done if the last checkpoint has all steps, stopped early if it has used up the patience."""
    if not checkpoints:
        return UNFINISHED
    if checkpoints[-1].step >= config.training.steps:
        return DONE
    progress = checkpoints[-1].training().get("progress", {})
    patience = config.training.patience
    has_stopped = patience is not None and progress.get("evaluations_since_best", 0) >= patience
    return STOPPED_EARLY if has_stopped else UNFINISHED


def last_change(run: Run) -> float:
    """The time of the last metric or checkpoint, or of the record if there is neither."""
    paths = [run.directory / METRICS, run.checkpoints, run.directory / RUN]
    return max(path.stat().st_mtime for path in paths if path.exists())


def find_runs(folder: Path) -> list[Run]:
    """The runs in a folder, by name."""
    try:
        return [Run(path) for path in sorted(folder.iterdir()) if is_run(path)]
    except OSError as error:
        raise CheckpointError(f"cannot list {folder}: {error.strerror}") from None


# --- settings -------------------------------------------------------------------------------------------------------


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """`section.field` -> its value in each run, for every setting that is not the same in all.

    Settings that a run of an older version lacks have their defaults. Data, device and precision count as settings.
    """
    settings = [settings_of(run) for run in runs]
    by_name = {name: [each[name] for each in settings] for name in settings[0]}
    return {name: values for name, values in by_name.items() if any(value != values[0] for value in values)}


def warning_about(differences: Mapping[str, Any]) -> str:
    """The line for runs whose losses cannot be compared, given the settings in which they differ; empty for others."""
    return INCOMPARABLE if any(name in differences for name in MEASURES) else ""


def settings_of(run: Run) -> dict[str, Any]:
    """All settings of a run by their paths, as JSON values."""
    record = run.record()
    config = make_section(Config, record["config"], str(run.directory / RUN))
    return {key: record[key] for key in ("data", "device", "dtype")} | flattened(config)


def flattened(section: Section, prefix: str = "") -> dict[str, Any]:
    """A section's fields, and those of the sections in it, as `a.b.c` -> value."""
    fields: dict[str, Any] = {}
    for key, value in section.model_dump(mode="json").items():
        inner = getattr(section, key)
        fields |= flattened(inner, f"{prefix}{key}.") if isinstance(inner, Section) else {prefix + key: value}
    return fields
