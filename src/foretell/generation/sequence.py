"""A prompt and its continuation, as ids, and the rules by which it is continued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from foretell.generation.block_table import BlockTable
from foretell.generation.filters import Prefix
from foretell.generation.sampling import TokenChooser
from foretell.model.decoder import Decoder

FinishReason = Literal["length", "stop", "end", "context", "cancelled"]


@dataclass(frozen=True)
class Rules:
    """How a sequence is continued, and for how long. Sequences with the same sampler are sampled together.

    max_tokens: None means until the context is full. end_ids: tokens that end a sequence; they are added to it.
    context_shift: a sequence that fills the context continues from its last half, which is read again.
    """

    sampler: TokenChooser
    max_tokens: int | None = None
    end_ids: frozenset[int] = frozenset()
    context_shift: bool = False


@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens generated after it.

    sample: index of the stream of random numbers. stop: told every token that is generated, and true for the one that
    ends the sequence. decoder: another form of the model for this sequence alone, such as one with a replaced module.
    row: for a model with an encoder, the row of its source.
    finish_reason is set once: length (max_tokens reached), end (an end token was sampled), context (the context is
    full), stop (`stop` was true, the constraint of its sampler is complete, or set by the caller), or cancelled.
    """

    prompt: list[int]
    sample: int = 0
    generated: list[int] = field(default_factory=list)
    rules: Rules | None = None
    stop: Callable[[int], bool] | None = None
    decoder: Decoder | None = None
    row: int | None = None
    finish_reason: FinishReason | None = None
    window_start: int = 0  # the first token that the model still sees; moves only with context_shift
    num_cached: int = 0  # how many of the visible tokens are in the cache
    table: BlockTable | None = None  # its blocks of the cache, while it runs

    @property
    def ids(self) -> list[int]:
        """Prompt and continuation."""
        return self.prompt + self.generated

    @property
    def visible(self) -> list[int]:
        """The ids that the model sees: all, or the tail after a context shift."""
        return self.ids[self.window_start :]

    @property
    def num_visible(self) -> int:
        """The number of ids that the model sees."""
        return len(self.prompt) + len(self.generated) - self.window_start

    @property
    def num_unread(self) -> int:
        """How many of the visible tokens are not in the cache: 1 for a sequence that grows token by token."""
        return self.num_visible - self.num_cached

    @property
    def is_growing(self) -> bool:
        """True if all but the newest token has been read: the prompt has, and no context shift is pending."""
        return bool(self.generated) and self.num_unread == 1

    def unread(self, count: int) -> list[int]:
        """The first `count` visible tokens that are not in the cache."""
        if count == self.num_unread == 1 and self.generated:
            return self.generated[-1:]
        first = self.window_start + self.num_cached
        return self.ids[first : first + count]

    def prefix(self, guess: list[int]) -> Prefix:
        """What a sampler is told of the ids so far, and of ids that are guessed to follow."""
        return Prefix(self.ids + guess, len(self.prompt), rules_of(self).end_ids)


def rules_of(sequence: Sequence) -> Rules:
    """The rules of a sequence that was added."""
    assert sequence.rules is not None, "a sequence is added with its rules"
    return sequence.rules


def table_of(sequence: Sequence) -> BlockTable:
    """The blocks of a sequence that runs."""
    assert sequence.table is not None, "the scheduler gives a sequence its blocks before it is read"
    return sequence.table
