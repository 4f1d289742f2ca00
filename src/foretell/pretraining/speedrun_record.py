"""The record of a speedrun: its settings, the machine and the curves; and the comparison with a repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from foretell.config.model import ModelConfig
from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.errors import DataError
from foretell.inference.answer_receipt import MachineRecord, SealedRecord, Sha256, this_machine
from foretell.training.pace import Mark
from foretell.typesetting.document import DocumentSection, Table

FORMAT = "foretell.speedrun/1"
CPU = torch.device("cpu")

Positive = Annotated[float, Field(gt=0)]


class Point(Section):
    """The loss after a step, in nats per character. seconds: time on the clock."""

    step: int
    tokens: int
    seconds: float
    loss: float


class SeedRun(Section):
    """The training of one seed. marks: for a time budget, the share done and the seconds before each step."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    curve: Annotated[tuple[Point, ...], Field(min_length=1)]
    marks: tuple[Mark, ...] = ()
    weights_sha256: Sha256 | None = None  # None while it runs

    @property
    def best(self) -> float:
        return min(point.loss for point in self.curve)

    def reached(self, target: float) -> Point | None:
        """The first point at or below the target; None if there is none."""
        return next((point for point in self.curve if point.loss <= target), None)


class Settings(Section):
    """Everything that decides the curve of a seed on a given machine. minutes: the limit of a time budget."""

    text_sha256: Sha256
    target: Positive | None
    minutes: Positive | None
    model: ModelConfig
    training: TrainingConfig
    dtype: Literal["float32", "bfloat16"]
    threads: Annotated[int, Field(gt=0, le=1024)]


class SpeedrunRecord(SealedRecord):
    """A speedrun. sha256: the digest of all other fields, so that changes are detected."""

    format: Literal["foretell.speedrun/1"] = FORMAT
    settings: Settings
    machine: MachineRecord
    runs: Annotated[tuple[SeedRun, ...], Field(min_length=1)]
    sha256: Sha256

    @classmethod
    def of(cls, settings: Settings, runs: Sequence[SeedRun]) -> SpeedrunRecord:
        values = {"format": FORMAT, "settings": settings, "machine": this_machine(CPU), "runs": runs}
        return make_section(cls, {**values, "sha256": "0" * 64}).sealed()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SpeedrunRecord:
        """Read a record. Raises `ConfigError` if it is malformed, `DataError` if it was changed."""
        record = make_section(cls, values, "record")
        if record.sha256 != record.expected_sha256():
            raise DataError("the record was changed after it was written: its sha256 differs")
        return record

    def document(self, bits_per_byte: Callable[[float], float]) -> DocumentSection:
        """A line per seed. bits_per_byte: converts a loss in nats per character."""
        target = self.settings.target
        columns = ("seed", *(() if target is None else (f"minutes to {target}", "tokens to it")))
        rows = []
        for run in self.runs:
            point = None if target is None else run.reached(target)
            reached = ("-", "-") if point is None else (f"{point.seconds / 60:.1f}", f"{point.tokens:,}")
            last = run.curve[-1]
            rest = (f"{last.seconds / 60:.1f}", f"{last.tokens:,}", f"{run.best:.4f}")
            rows.append((str(run.seed), *reached[: len(columns) - 1], *rest, f"{bits_per_byte(run.best):.4f}"))
        return DocumentSection("", [Table((*columns, "minutes", "tokens", "best loss", "bits per byte"), rows)])


@dataclass(frozen=True)
class Repetition:
    """A run of a record and its repetition."""

    recorded: SeedRun
    repeated: SeedRun

    @property
    def is_identical(self) -> bool:
        """True if curve and weights have the same bits."""
        return self.recorded.weights_sha256 == self.repeated.weights_sha256 and self.largest_difference == 0

    @property
    def largest_difference(self) -> float:
        """The largest difference in nats between points of the curves; infinity for other steps or counts of tokens."""
        pairs = list(zip_longest(self.recorded.curve, self.repeated.curve))
        if any(old is None or new is None or (old.step, old.tokens) != (new.step, new.tokens) for old, new in pairs):
            return math.inf
        return max(abs(old.loss - new.loss) for old, new in pairs)

    def __str__(self) -> str:
        if self.is_identical:
            return f"seed {self.recorded.seed}: curve and weights are bit-identical"
        return (
            f"seed {self.recorded.seed}: losses differ by at most {self.largest_difference:.2g} nats; best "
            f"{self.recorded.best:.4f} recorded, {self.repeated.best:.4f} here"
        )


def other_machine(record: SpeedrunRecord) -> list[str]:
    """Differences between this machine and the record's that may change the last bits."""
    here = this_machine(CPU)
    names = ("torch", "numba", "processor", "features", "instructions", "limits")
    return [name for name in names if getattr(here, name) != getattr(record.machine, name)]
