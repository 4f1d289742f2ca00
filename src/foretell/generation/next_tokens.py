"""From the logits of one pass to the next token of each sequence; an error affects only its own sequence."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

from foretell.errors import Interrupted
from foretell.generation.logprobs import TokenLogprob, token_logprobs
from foretell.generation.sequence import Sequence, rules_of

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Part:
    """The part of a sequence that one pass reads.

    num_sampled: tokens are sampled after the last num_sampled tokens, one after each. num_scored: the number of prompt
    tokens whose log-probabilities are wanted; they come from the logits before these tokens.
    """

    sequence: Sequence
    tokens: list[int]
    num_sampled: int
    num_scored: int = 0

    @property
    def num_logits(self) -> int:
        return self.num_scored + self.num_sampled

    @property
    def guess(self) -> list[int]:
        """The guessed tokens, at the end of `tokens`."""
        return self.tokens[len(self.tokens) - self.num_sampled + 1 :] if self.num_sampled > 1 else []

    def rows(self) -> list[LogitsRow]:
        """The rows of logits that the pass computes for this part, in order."""
        first = len(self.sequence.prompt_logprobs)
        prompt = self.sequence.prompt[first : first + self.num_scored]
        scored = [LogitsRow(self.sequence, [], token) for token in prompt]
        return scored + [LogitsRow(self.sequence, self.guess[:count]) for count in range(self.num_sampled)]


@dataclass(frozen=True)
class LogitsRow:
    """The logits for one token: `scored`, a token of the prompt, or the token to sample after the guess."""

    sequence: Sequence
    guess: list[int]
    scored: int | None = None

    @property
    def num_top(self) -> int | None:
        """The number of most likely tokens to report with the log-probability; None for no log-probability."""
        rules = rules_of(self.sequence)
        return rules.top_logprobs if self.scored is None else rules.prompt_logprobs


class ChosenToken(NamedTuple):
    """The sampled or given token of a row; if wanted, its log-probability and the digest of its logits."""

    token: int
    logprob: TokenLogprob | None


def choose(rows: list[LogitsRow], logits: Tensor) -> list[ChosenToken | Exception]:
    """The next token of each row, from logits (R, V), or the exception that its choice raised."""
    choices: dict[int, ChosenToken | Exception] = {}
    for members in grouped(range(len(rows)), lambda index: rules_of(rows[index].sequence).sampler.group):
        chosen = separately(lambda each: choose_together([rows[index] for index in each], taken(logits, each)), members)
        choices.update(zip(members, chosen, strict=True))
    return [choices[index] for index in range(len(rows))]


def choose_together(rows: list[LogitsRow], logits: Tensor) -> list[ChosenToken]:
    """The next token of each row, from logits (R, V). The samplers of all rows are in one group."""
    sampler = rules_of(rows[0].sequence).sampler
    free = [index for index, row in enumerate(rows) if row.scored is None]
    prefixes = [rows[index].sequence.prefix(rows[index].guess) for index in free]
    samples = [rows[index].sequence.sample for index in free]
    sampled = iter(sampler(taken(logits, free), prefixes, samples) if free else [])
    tokens = [next(sampled) if row.scored is None else row.scored for row in rows]
    counts = {index: row.num_top for index, row in enumerate(rows) if row.num_top is not None}
    logprobs: dict[int, TokenLogprob] = {}
    if counts:
        wanted = taken(logits, list(counts))[:, : sampler.vocab_size]
        measured = token_logprobs(wanted, [tokens[index] for index in counts], list(counts.values()))
        logprobs = dict(zip(counts, measured, strict=True))
    return [ChosenToken(token, logprobs.get(index)) for index, token in enumerate(tokens)]


def taken(logits: Tensor, rows: list[int]) -> Tensor:
    """Some rows of logits (R, V), in ascending order."""
    return logits if len(rows) == len(logits) else logits[rows]


def separately(call: Callable[[list[Item]], list[Result]], items: list[Item]) -> list[Result | Exception]:
    """The results of one call for all items; if it raises, of one call per item, with exceptions as results."""
    try:
        return [*call(items)]
    except Interrupted:
        raise
    except Exception as error:
        return [error] if len(items) == 1 else [each for item in items for each in separately(call, [item])]


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Group items by key, in the order in which the keys first occur."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
