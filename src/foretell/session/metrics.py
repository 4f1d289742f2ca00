"""The metrics of a run: the lines of metrics.jsonl, with the figures of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.runs.record import LineFile, MetricsDigest
from foretell.session.machine import Meter
from foretell.training.loop import Progress


class RunMetrics:
    """Writes a line for each logged step, with the figures of its evaluation if there was one."""

    def __init__(self, file: LineFile[dict[str, Any]], meter: Meter, world_size: int):
        self.file, self.meter, self.world_size = file, meter, world_size
        self.figures: Mapping[str, float] = {}  # of the last evaluation
        self.evaluated_step: int | None = None
        self.line: dict[str, Any] = {}  # the last one
        self.tokens, self.seconds = 0, 0.0  # at the last line
        self.digest = MetricsDigest()

    def restore(self, progress: Progress) -> None:
        """Continue after a step; later lines are dropped."""
        self.tokens, self.seconds = progress.tokens, progress.seconds
        self.file.keep(lambda line: line["step"] <= progress.step)
        self.digest = MetricsDigest(line for line in self.file.records() if line["step"] <= progress.step)

    def log(self, progress: Progress) -> bool:
        """Append a line, once per step; True if there is a new one.

        If a step is evaluated after it was logged (for a checkpoint after a signal), its line is replaced.
        """
        if self.tokens != progress.tokens:
            self.line = self.measure(progress)
        elif self.line and self.line["validation_loss"] != self.figures_at(progress)["validation_loss"]:
            self.line |= self.figures_at(progress)
            self.file.keep(lambda line: line["step"] < progress.step)
            self.digest.remove_last()
        else:
            return False
        self.tokens, self.seconds = progress.tokens, progress.seconds
        self.file.append(self.line)
        self.digest.add(self.line)
        return True

    def figures_at(self, progress: Progress) -> dict[str, Any]:
        """The fields of a line from the evaluation of this step, if there was one."""
        figures = self.figures if self.evaluated_step == progress.step else {}
        (_, loss), *others = figures.items() or [("", None)]
        return {"validation_loss": loss, **dict(others)}

    def measure(self, progress: Progress) -> dict[str, Any]:
        """The fields of a line; the speed is the mean since the last line."""
        elapsed = progress.seconds - self.seconds
        speed = (progress.tokens - self.tokens) / elapsed if elapsed > 0 else None
        own = {
            "step": progress.step,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "validation_loss": None,
            "learning_rate": progress.learning_rate,
            "gradient_norm": progress.gradient_norm,
            "tokens_per_second": None if speed is None else round(speed, 1),
            "seconds": round(progress.seconds, 3),
            "mfu": self.meter.mfu(speed and speed / self.world_size, progress.seconds),
            "peak_memory_bytes": self.meter.peak_memory_bytes(),
        }
        figures = self.figures_at(progress)
        assert own.keys() & figures.keys() == {"validation_loss"}, f"figures of a task cannot be called {[*own]}"
        return own | figures
