"""A reporter for TensorBoard: a copy of metrics and samples in the run's folder `tensorboard`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Self

from foretell.errors import UsageError
from foretell.session.reporter import Reporter

FOLDER = "tensorboard"


class TensorBoardReporter(Reporter):
    """Writes event files while it is open. Without the package tensorboard it raises a `UsageError` at once."""

    def __init__(self, run: Path):
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError("--report tensorboard needs tensorboard: pip install 'foretell[track]'")
        self.folder = run / FOLDER
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def writer(self, step: int) -> Any:
        """The event files, opened with the first event: before that, the run's folder has to be empty."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # an optional dependency, and slow to import

            # purge_step: events that a resumed run wrote after its checkpoint no longer hold
            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        return self._writer

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        step = metrics["step"]
        for name, value in metrics.items():
            if name != "step" and value is not None:
                self.writer(step).add_scalar(name, value, step)
        self.writer(step).flush()

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        indented = "\n".join(f"    {line}" for line in (prompt + continuation).splitlines())  # shown verbatim
        self.writer(step).add_text(f"sample/{prompt}", indented, step)
