"""The likelihood of given continuations, read through the scheduler: what several begin with is read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.evaluation.texts import Progress, silent
from foretell.generation.filters import Prefixes
from foretell.generation.scheduler import Scheduler, run
from foretell.generation.sequence import Rules, Sequence
from foretell.language_model import LanguageModel
from foretell.model.logits import rows_at_once
from foretell.model.paged_cache import POSITIONS_PER_BLOCK

GROUPS_AT_ONCE = 32  # texts with different beginnings that are read together


@dataclass(frozen=True)
class ContinuationRow:
    """Tokens to read; those from index `first` on are the continuation. cut: number of tokens left out before them."""

    ids: list[int]
    first: int
    cut: int = 0

    @property
    def text(self) -> tuple[int, ...]:
        """The tokens before the continuation."""
        return tuple(self.ids[: self.first])


@dataclass(frozen=True)
class Likelihood:
    """The log-probability of a continuation in nats, and whether each of its tokens is the most likely one."""

    logprob: float
    tokens: int
    is_greedy: bool


class GivenTokens:
    """Continues sequences with given tokens and adds up their log-probabilities; sequence i continues as rows[i] does.

    It is both what samples tokens and what proposes them, so that those of a continuation are read in one pass.
    """

    def __init__(self, model: LanguageModel, rows: list[ContinuationRow]):
        self.model, self.rows = model, rows
        self.num_tokens = rows_at_once(model.decoder)
        self.logprobs = [0.0] * len(rows)
        self.are_greedy = [True] * len(rows)

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        """The given token of each row of the logits (B, V), whose log-probability is noted."""
        pairs = zip(prefixes, samples, strict=True)
        tokens = [self.rows[sample].ids[len(prefix.ids)] for prefix, sample in pairs]
        logprobs = self.model.log_probabilities(logits)  # (B, V)
        targets = torch.tensor(tokens, device=logits.device)  # (B,)
        chosen, best = logprobs.gather(1, targets[:, None])[:, 0], logprobs.argmax(-1)
        for sample, logprob, is_best in zip(samples, chosen.tolist(), (best == targets).tolist(), strict=True):
            self.logprobs[sample] += logprob
            self.are_greedy[sample] &= is_best
        return tokens

    def completes(self, generated: list[int]) -> bool:
        """Never: a sequence ends after the number of tokens that it is allowed."""
        return False

    def propose(self, sequences: list[Sequence], rooms: list[int]) -> list[list[int]]:
        """The next given tokens of each sequence, so many that the logits of all are not too many at once."""
        most = self.num_tokens // len(sequences) - 1
        pairs = zip(sequences, rooms, strict=True)
        return [
            self.rows[each.sample].ids[len(each.ids) : len(each.ids) + max(0, min(room, most))] for each, room in pairs
        ]

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept for a sequence."""

    def sequence(self, index: int) -> Sequence:
        """A row's text, to be continued by its continuation; a decoder with a source reads the first one."""
        row = self.rows[index]
        return Sequence(list(row.text), sample=index, row=0, rules=Rules(self, len(row.ids) - row.first))

    def likelihood(self, index: int) -> Likelihood:
        """What was noted of a row whose sequence has ended."""
        row = self.rows[index]
        return Likelihood(self.logprobs[index], len(row.ids) - row.first, self.are_greedy[index])


def score_rows(model: LanguageModel, rows: list[ContinuationRow], progress: Progress = silent) -> list[Likelihood]:
    """The likelihood of each row's continuation. The text before it is read once for all rows that have the same."""
    given, batches = GivenTokens(model, rows), list(in_reading_order(rows))
    max_rows = max(1, min(GROUPS_AT_ONCE, given.num_tokens, len(rows)))
    num_blocks = max((blocks_needed([rows[index] for index in members], max_rows) for members in batches), default=1)
    scheduler = Scheduler(model.decoder, num_blocks=num_blocks, max_rows=max_rows, expected_tokens=1, proposer=given)
    ended = set[int]()
    for members in batches:
        for sequence, _ in run(scheduler, [given.sequence(index) for index in members]):
            if sequence.finish_reason is not None and sequence.sample not in ended:
                ended.add(sequence.sample)
                progress(len(ended), len(rows))
    return [given.likelihood(index) for index in range(len(rows))]


def blocks_needed(rows: list[ContinuationRow], max_rows: int) -> int:
    """Blocks of the cache for the texts of rows that are read together, and for the continuations that run at once."""
    texts: dict[tuple[int, ...], int] = {}
    for row in rows:
        texts[row.text] = max(len(row.ids), texts.get(row.text, 0))
    continuation = max(len(row.ids) - row.first for row in rows)
    kept = sum(-(-length // POSITIONS_PER_BLOCK) for length in texts.values())
    return kept + max_rows * (-(-continuation // POSITIONS_PER_BLOCK) + 1)  # and a block that is begun


def in_reading_order(rows: list[ContinuationRow]) -> Iterator[list[int]]:
    """The indices of rows that are read together: the first ones of several texts, then the second ones, and so on.

    Texts of similar length are together. A continuation waits while another one's text is read that is equal to its
    own, and all that come after it wait too; so those of one text do not follow each other.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.text, []).append(index)
    texts = sorted(groups, key=len)
    for start in range(0, len(texts), GROUPS_AT_ONCE):
        members = [groups[text] for text in texts[start : start + GROUPS_AT_ONCE]]
        turns = range(max(map(len, members)))
        yield [group[turn] for turn in turns for group in members if turn < len(group)]
