"""A prompt and its continuation, as ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["length", "stop", "end", "context"]


@dataclass
class Sequence:
    """A prompt and the tokens generated after it.

    sample: index of the stream of random numbers. finish_reason is set once: length (max_tokens reached), end (the end
    token was sampled), context (the context is full), or stop (set by the caller, in the loop over `generate`).
    """

    prompt: list[int]
    sample: int = 0
    generated: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    window_start: int = 0  # the first token that the model still sees; moves only with context_shift

    @property
    def ids(self) -> list[int]:
        """Prompt and continuation."""
        return self.prompt + self.generated

    @property
    def visible(self) -> list[int]:
        """The ids that the model sees: all, or the tail after a context shift."""
        return self.ids[self.window_start :]
