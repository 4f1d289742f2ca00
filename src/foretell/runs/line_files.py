"""metrics.jsonl and pace.txt: the files to which a training adds a line per step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

from foretell.errors import CheckpointError, OutputError
from foretell.files import TEXT_LIMIT, check_not_removed, read_bytes, sync, write_text

# Metrics that depend on the machine and not on the training
MEASURED = ("seconds", "tokens_per_second", "mfu", "peak_memory_bytes")

Line = TypeVar("Line")


class LineFile(Generic[Line]):
    """A text file with one record per line. A crash may cut the last line, which then does not count.

    parse: a line's record; it raises ValueError for a damaged line. form: the line of a record, with its newline.
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
        """The records of all lines that are complete, oldest first; none without the file."""
        try:
            text = read_bytes(self.path, TEXT_LIMIT).decode("utf-8") if self.path.exists() else ""
            return [self.parse(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{self.path} is damaged ({error}); remove the line, or start again with another --out"
            ) from None

    def keep(self, wanted: Callable[[Line], bool] = lambda record: True) -> None:
        """Drop the lines of other records, and a cut line."""
        if self.path.exists():
            write_text(self.path, "".join(self.form(record) for record in self.records() if wanted(record)))

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


# --- metrics.jsonl ---------------------------------------------------------------------------------------------------


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
    """A running hash of lines of metrics, without what depends on the machine; checkpoints keep it."""

    def __init__(self, lines: Iterable[dict[str, Any]] = ()):
        self._hash = hashlib.sha256()
        for metrics in lines:
            self.add(metrics)

    def add(self, metrics: dict[str, Any]) -> None:
        """The next line."""
        self._hash.update(metrics_line({key: metrics[key] for key in metrics if key not in MEASURED}).encode())

    @property
    def value(self) -> str:
        """In hex, as training.json has it."""
        return self._hash.hexdigest()


# --- pace.txt: the step, the share of the training and the seconds that are spent when the step begins ----------------


def pace_line(mark: tuple[int, float, float]) -> str:
    step, share, seconds = mark
    return f"{step} {share!r} {seconds!r}\n"


def parse_pace(text: str) -> tuple[int, float, float]:
    """A line of pace.txt: step, share and seconds; ValueError if it is anything else."""
    step, share, seconds = text.split()
    if not (0 <= float(share) <= 1 and float(seconds) >= 0):
        raise ValueError(f"step {step}: a share of {share} after {seconds} seconds")
    return int(step), float(share), float(seconds)
