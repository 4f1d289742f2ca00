"""What a run tells while it works. The command line shows it; a program that calls `train` may listen or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foretell.text import Tokenizer


class Reporter:
    """Hears everything and says nothing; the base of those that do."""

    def note(self, text: str) -> None:
        """A decision, a fact or a warning, one line."""

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        """So many bytes of the text are tokenised, of so many in all, in so many seconds."""

    def ready(self, tokenizer: Tokenizer, train_tokens: int, bits_per_byte: Callable[[float], float]) -> None:
        """Training begins, on so many tokens; `bits_per_byte` converts a validation loss in nats a token."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        """The metrics after a step, of so many in all (the fields of metrics.jsonl)."""

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        """What the model writes after a step."""


class Reporters(Reporter):
    """Several at once; each hears everything."""

    def __init__(self, reporters: Sequence[Reporter]):
        self.reporters = reporters

    def note(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.note(text)

    def ready(self, tokenizer: Tokenizer, train_tokens: int, bits_per_byte: Callable[[float], float]) -> None:
        for reporter in self.reporters:
            reporter.ready(tokenizer, train_tokens, bits_per_byte)

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        for reporter in self.reporters:
            reporter.metrics(metrics, steps)

    def sample(self, step: int, prompt: str, continuation: str) -> None:
        for reporter in self.reporters:
            reporter.sample(step, prompt, continuation)
