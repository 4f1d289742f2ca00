"""`Sequence`: a prompt and its continuation as ids, the rules for continuing it, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from foretell.errors import ContextLengthError, UsageError
from foretell.generation.block_table import BlockTable
from foretell.generation.filters import Prefix
from foretell.generation.sampling import TokenChooser
from foretell.model.decoder import Decoder

FinishReason = Literal["length", "stop", "end", "context", "cancelled"]


@dataclass(frozen=True)
class Rules:
    """How a sequence is continued, and for how long. Sequences with the same sampler are sampled together.

    max_tokens: None means until the context is full. end_ids: tokens that end a sequence; they are added to it.
    slide: a sequence that fills the context continues from its last half, which is read again (a context shift).
    """

    sampler: TokenChooser
    max_tokens: int | None = None
    end_ids: frozenset[int] = frozenset()
    slide: bool = False


@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens generated after it.

    sample: index of the stream of random numbers. stop: called with every generated token, true for the token that ends
    the sequence. decoder: another form of the model for this sequence alone, such as one with a replaced module.
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
    window_start: int = 0  # the first token that the model still sees; moves only with slide
    num_cached: int = 0  # visible tokens that are in the cache
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
        """The number of visible tokens that are not in the cache: 1 for a sequence that grows token by token."""
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
        """The prefix for the sampler: the ids so far, and guessed ids after them."""
        return Prefix(self.ids + guess, len(self.prompt), rules_of(self).end_ids)


def rules_of(sequence: Sequence) -> Rules:
    """The rules of a sequence, which it has when it is added."""
    assert sequence.rules is not None, "a sequence is added with its rules"
    return sequence.rules


def table_of(sequence: Sequence) -> BlockTable:
    """The blocks of a running sequence."""
    assert sequence.table is not None, "the scheduler gives a sequence its blocks before it is read"
    return sequence.table


# --- the end: no other file decides when a sequence ends --------------------------------------------------------------


def reason_to_end(sequence: Sequence, token: int, context_length: int) -> FinishReason | None:
    """The reason to end after this new token; None if the sequence goes on."""
    rules = rules_of(sequence)
    if token in rules.end_ids:
        return "end"
    if sequence.stop is not None and sequence.stop(token):
        return "stop"
    if rules.sampler.completes(sequence.generated):
        return "stop"
    if rules.max_tokens is not None and len(sequence.generated) >= rules.max_tokens:
        return "length"
    is_full = sequence.num_visible > context_length
    return "context" if is_full and not rules.slide else None


def check_length(sequence: Sequence, context_length: int) -> Rules:
    """Refuse a prompt and a length that do not fit; returns the rules of the sequence."""
    limit, length, rules = context_length, len(sequence.prompt), rules_of(sequence)
    if rules.max_tokens is not None and rules.max_tokens < 0:
        raise UsageError(f"max-tokens must be 0 or more, not {rules.max_tokens}")
    if length == 0:
        raise UsageError("the prompt is empty; give at least one token to continue from")
    if rules.slide:
        sequence.window_start = 0 if length <= limit else first_kept(sequence, limit)
    elif length > limit:
        raise ContextLengthError(
            f"the prompt has {length} tokens and the model's context is {limit}; shorten it, or use --slide to "
            "continue from its tail"
        )
    elif length + (rules.max_tokens or 0) > limit + 1:  # the last token is predicted, and not read
        raise ContextLengthError(
            f"a prompt of {length} tokens and {rules.max_tokens} new ones do not fit the model's context of {limit}; "
            f"ask for at most --max-tokens {limit + 1 - length}, or use --slide"
        )
    return rules


def check_ids(sequence: Sequence, vocab_size: int) -> None:
    """Refuse ids outside the model's vocabulary."""
    wrong = next((token for token in sequence.prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UsageError(f"the prompt has the id {wrong}; the model's ids are 0 to {vocab_size - 1}")


def first_kept(sequence: Sequence, context_length: int) -> int:
    """The index of the first id that a context shift keeps: the last half of the context."""
    return len(sequence.prompt) + len(sequence.generated) - max(1, context_length // 2)
