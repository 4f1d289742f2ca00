"""`Sequence`: a prompt and its continuation as ids, with its rules; and the conditions that end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from foretell.errors import ContextLengthError, UsageError, counted
from foretell.generation.block_table import BlockTable
from foretell.generation.filters import Prefix
from foretell.generation.logprobs import TokenLogprob
from foretell.generation.sampling import TokenChooser
from foretell.model.decoder import Decoder

FinishReason = Literal["length", "stop", "end", "context", "cancelled", "error"]


@dataclass(frozen=True)
class Rules:
    """Sampling settings and limits of a sequence. Sequences with the same sampler are sampled together.

    max_tokens: None means until the context is full; 0 means that the prompt is read and nothing generated. end_ids:
    tokens that end a sequence; they are added to it. slide: a sequence that fills the context continues from its last
    half, which is read again (a context shift). top_logprobs: the number of most likely tokens to report with the
    log-probability of each generated token; 0: report only the token's; None: no log-probabilities. prompt_logprobs:
    the same for the prompt's tokens.
    """

    sampler: TokenChooser
    max_tokens: int | None = None
    end_ids: frozenset[int] = frozenset()
    slide: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens generated after it.

    sample: index of the stream of random numbers. stop: called with every generated token; a true result ends the
    sequence. decoder: another form of the model for this sequence only, such as one with a replaced module. row: the
    row of its source in a model with an encoder. key: the user; waiting users take turns. Sequences share cached blocks
    only if key and cache_salt are equal. first_logprob: the index of the first prompt token with a log-probability, 1
    or more.
    prompt_logprobs: one per prompt token, if its rules want them; None before first_logprob.
    finish_reason is set once: length (max_tokens reached), end (an end token was sampled), context (the context is
    full), stop (`stop` returned true, the constraint of its sampler is complete, or set by the caller), cancelled, or
    error (its sampler, its stop rule or its form of the model raised `error`).
    """

    prompt: list[int]
    sample: int = 0
    generated: list[int] = field(default_factory=list)
    rules: Rules | None = None
    stop: Callable[[int], bool] | None = None
    decoder: Decoder | None = None
    row: int | None = None
    key: str = ""
    cache_salt: str = ""
    first_logprob: int = 1
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    num_passed: int = 0  # later sequences that started before it
    window_start: int = 0  # the first token that the model still sees; changes only with slide
    num_cached: int = 0  # visible tokens that are in the cache
    table: BlockTable | None = None  # its blocks of the cache, while it runs

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.generated

    @property
    def visible(self) -> list[int]:
        """The ids that the model sees: all, or the tail after a context shift."""
        return self.ids[self.window_start :]

    @property
    def num_visible(self) -> int:
        return len(self.prompt) + len(self.generated) - self.window_start

    @property
    def num_unread(self) -> int:
        """The number of visible tokens that are not in the cache: 1 for a sequence that grows token by token."""
        return self.num_visible - self.num_cached

    @property
    def num_unscored(self) -> int:
        """The number of prompt tokens whose log-probability is wanted but not yet known."""
        return 0 if rules_of(self).prompt_logprobs is None else len(self.prompt) - len(self.prompt_logprobs)

    @property
    def num_cacheable(self) -> int:
        """The number of visible tokens whose logits are not needed, so they can come from the cache."""
        return self.num_visible - 1 - self.num_unscored

    @property
    def num_to_read(self) -> int:
        """The number of visible tokens to read before the next token is sampled or, with max_tokens 0, before the end.

        A last token after which nothing is sampled is not read.
        """
        return self.num_unread - int(rules_of(self).max_tokens == 0)

    @property
    def is_growing(self) -> bool:
        """True if only the newest token is unread: the prompt is read and no context shift is pending."""
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
    """The rules of a sequence. Raises UsageError if it has none."""
    if sequence.rules is None:
        raise UsageError("the sequence has no rules: make it with rules=foretell.Rules(sampler)")
    return sequence.rules


def table_of(sequence: Sequence) -> BlockTable:
    assert sequence.table is not None, "the scheduler assigns blocks before a sequence is read"
    return sequence.table


class NoRoomError(ContextLengthError):
    """A prompt and its new tokens do not fit the context.

    room: the number of tokens that can follow the prompt; the last one is predicted, but not read. max_tokens: None if
    the prompt itself is too long.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int | None, context_length: int):
        self.prompt_tokens, self.max_tokens, self.context_length = prompt_tokens, max_tokens, context_length
        self.room = context_length + 1 - prompt_tokens
        super().__init__(self.message("--max-tokens", "--slide"))

    def message(self, max_tokens: str, slide: str | None) -> str:
        """The message, with the names of the setting and of the option to continue from the prompt's tail."""
        prompt = counted(self.prompt_tokens, "token")
        if self.room < 1 or self.max_tokens is None:
            tail = "" if slide is None else f", or use {slide} to continue from its tail"
            size = f"the prompt has {prompt} and the model's context is {self.context_length:,}"
            return f"{size}; shorten it{tail}"
        size = f"a prompt of {prompt} and {self.max_tokens:,} new ones do not fit the model's"
        advice = f"ask for at most {max_tokens} {self.room}" + ("" if slide is None else f", or use {slide}")
        return f"{size} context of {self.context_length:,}; {advice}"


# --- the conditions that end a sequence, decided only in this file ----------------------------------------------------


def reason_to_end(sequence: Sequence, token: int, context_length: int) -> FinishReason | None:
    """The reason to end after this new token; None if the sequence continues."""
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
    """Refuse invalid limits, and a prompt and length that do not fit; returns the rules of the sequence."""
    limit, length, rules = context_length, len(sequence.prompt), rules_of(sequence)
    if rules.max_tokens is not None and not (isinstance(rules.max_tokens, int) and rules.max_tokens >= 0):
        raise UsageError(f"max_tokens must be a whole number, 0 or more, not {rules.max_tokens}")
    if min(rules.top_logprobs or 0, rules.prompt_logprobs or 0) < 0:
        raise UsageError("top_logprobs and prompt_logprobs must be 0 or more")
    if length == 0:
        raise UsageError("the prompt is empty; give at least one token to continue from")
    if rules.slide and rules.prompt_logprobs is not None and length > limit:
        raise ContextLengthError(f"log-probabilities of a prompt need all {length} tokens in the context of {limit}")
    if rules.slide:
        sequence.window_start = 0 if length <= limit else first_kept(sequence, limit)
    elif length > limit + (rules.max_tokens == 0):
        raise NoRoomError(length, None, limit)
    elif length + (rules.max_tokens or 0) > limit + 1:  # the last token is predicted, but not read
        raise NoRoomError(length, rules.max_tokens, limit)
    return rules


def check_ids(sequence: Sequence, vocab_size: int) -> None:
    wrong = next((token for token in sequence.prompt if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UsageError(f"the prompt has the id {wrong}, but the model's ids are 0 to {vocab_size - 1}")


def first_kept(sequence: Sequence, context_length: int) -> int:
    """The index of the first id that a context shift keeps; it keeps half a context."""
    return len(sequence.prompt) + len(sequence.generated) - max(1, context_length // 2)
