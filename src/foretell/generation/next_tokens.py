"""From the logits of one pass to the next token of each sequence; a failure stays with its own sequence."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

from foretell.errors import Interrupted
from foretell.generation.logit_digests import logits_digest
from foretell.generation.logprobs import TokenLogprob, token_logprobs
from foretell.generation.sequence import Sequence, rules_of

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Part:
    """The tokens of a sequence that one pass reads.

    num_sampled: tokens are sampled after the last tokens, one after each of them. num_given: log-probabilities of this
    number of the prompt's tokens are wanted, from the logits before these.
    """

    sequence: Sequence
    tokens: list[int]
    num_sampled: int
    num_given: int = 0

    @property
    def num_logits(self) -> int:
        return self.num_given + self.num_sampled

    @property
    def guess(self) -> list[int]:
        """The guessed tokens, at the end of `tokens`."""
        return self.tokens[len(self.tokens) - self.num_sampled + 1 :] if self.num_sampled > 1 else []

    def rows(self) -> list[LogitsRow]:
        """The rows of logits that the pass computes for this part, in order."""
        first = len(self.sequence.prompt_logprobs)
        given = [LogitsRow(self.sequence, [], token) for token in self.sequence.prompt[first : first + self.num_given]]
        return given + [LogitsRow(self.sequence, self.guess[:count]) for count in range(self.num_sampled)]


@dataclass(frozen=True)
class LogitsRow:
    """The logits of one token: of `given`, a token of the prompt, or of the one to sample after the guess."""

    sequence: Sequence
    guess: list[int]
    given: int | None = None

    @property
    def num_top(self) -> int | None:
        """The number of likeliest tokens to report with the log-probability; None for no log-probability."""
        rules = rules_of(self.sequence)
        return rules.top_logprobs if self.given is None else rules.prompt_logprobs


class ChosenToken(NamedTuple):
    """The next token of a row, or the given one; if wanted, its log-probability and the digest of its logits."""

    token: int
    logprob: TokenLogprob | None
    digest: bytes | None = None


def choose(rows: list[LogitsRow], logits: Tensor) -> list[ChosenToken | Exception]:
    """The next token of each row, from its logits (R, V); for a row that has none, the exception that was raised."""
    choices: dict[int, ChosenToken | Exception] = {}
    for members in grouped(range(len(rows)), lambda index: rules_of(rows[index].sequence).sampler.group):
        chosen = separately(lambda each: choose_together([rows[index] for index in each], taken(logits, each)), members)
        choices.update(zip(members, chosen, strict=True))
    return [choices[index] for index in range(len(rows))]


def choose_together(rows: list[LogitsRow], logits: Tensor) -> list[ChosenToken]:
    """The next token of each row, from its logits (R, V). All rows have samplers of one group."""
    sampler = rules_of(rows[0].sequence).sampler
    free = [index for index, row in enumerate(rows) if row.given is None]
    prefixes = [rows[index].sequence.prefix(rows[index].guess) for index in free]
    samples = [rows[index].sequence.sample for index in free]
    sampled = iter(sampler(taken(logits, free), prefixes, samples) if free else [])
    tokens = [next(sampled) if row.given is None else row.given for row in rows]
    counts = {index: row.num_top for index, row in enumerate(rows) if row.num_top is not None}
    logprobs: dict[int, TokenLogprob] = {}
    if counts:
        wanted = taken(logits, list(counts))[:, : sampler.vocab_size]
        measured = token_logprobs(wanted, [tokens[index] for index in counts], list(counts.values()))
        logprobs = dict(zip(counts, measured, strict=True))
    digests = {index: logits_digest(logits[index]) for index in free if rules_of(rows[index].sequence).digests}
    return [ChosenToken(token, logprobs.get(index), digests.get(index)) for index, token in enumerate(tokens)]


def taken(logits: Tensor, rows: list[int]) -> Tensor:
    """Some rows of logits (R, V), in ascending order."""
    return logits if len(rows) == len(logits) else logits[rows]


def separately(call: Callable[[list[Item]], list[Result]], items: list[Item]) -> list[Result | Exception]:
    """The results of all items together; if that raises, of each alone, with its exception in the result's place."""
    try:
        return [*call(items)]
    except Interrupted:
        raise
    except Exception as error:
        return [error] if len(items) == 1 else [each for item in items for each in separately(call, [item])]


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Items with equal keys together, in the order in which the keys first occur."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
