"""A text in the making, as ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["length", "stop", "end", "context"]


@dataclass
class Sequence:
    """A prompt and what has been generated after it.

    sample names the stream of random numbers. finish_reason is set once: length (max_tokens reached), end (the end
    token was drawn), context (no position is left), or stop (by whoever reads along, in the loop over `generate`).
    """

    prompt: list[int]
    sample: int = 0
    generated: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    window_start: int = 0  # the first token that the model still sees; moves only when sliding

    @property
    def ids(self) -> list[int]:
        """Prompt and continuation."""
        return self.prompt + self.generated

    @property
    def visible(self) -> list[int]:
        """What the model sees: everything, or the tail where the context was too short."""
        return self.ids[self.window_start :]
