"""What a run tells while it works. The command line shows it; a program that calls `train` may listen or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretell.pretraining.session import Session


class Reporter:
    """Hears everything and says nothing; the base of those that do."""

    def note(self, text: str) -> None:
        """A decision, a fact or a warning, one line."""

    def ready(self, session: Session) -> None:
        """Text, model and run directory are there; training begins."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """The metrics after a step, of so many in all (the fields of metrics.jsonl)."""

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """What the model writes after a step."""
