"""Beam search: the most likely continuations of several rows at once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from foretell.generation.sequence import FinishReason
from foretell.model.cache import KVCache
from foretell.model.decoder import Decoder, log_probabilities


@dataclass(frozen=True)
class Hypothesis:
    """A continuation: its ids without the end token, the sum of its log-probabilities, and that sum normalised."""

    ids: list[int]
    logprob: float
    score: float
    finish_reason: FinishReason


@dataclass
class Beam:
    """The search for one row: the open continuations, best first, and the ended ones."""

    limit: int  # maximum number of tokens
    ids: list[list[int]] = field(default_factory=lambda: [[]])
    logprobs: list[float] = field(default_factory=lambda: [0.0])
    ended: list[Hypothesis] = field(default_factory=list)


def length_penalty(length: int, alpha: float) -> float:
    """The divisor of a continuation's log-probability (Wu et al. 2016, equation 14); alpha = 0 favours short ones.

    length: in tokens, including the end token.
    """
    return ((5 + length) / 6) ** alpha


@torch.inference_mode()
def beam_search(
    model: CachedSteps,
    limits: Sequence[int],
    end_id: int,
    beam_size: int,
    alpha: float = 0.6,
    vocab_size: int | None = None,
) -> Generator[None, None, list[list[Hypothesis]]]:
    """The hypotheses for each row, best score first; a row's result does not depend on the others.

    It can be interrupted after each token, see `result_of`.

    A row ends when `beam_size` of its continuations have ended, or after limits[b] tokens. With one beam this is greedy
    decoding. `vocab_size`: use only ids below it, because a model may have more rows than its tokenizer has tokens.
    """
    beams = [Beam(limit) for limit in limits]
    logits, active = model.start(), list(range(len(beams)))
    while True:
        rows, tokens = advance(beams, active, logits[:, :vocab_size], end_id, beam_size, alpha)
        if not rows:
            return [sorted(beam.ended, key=lambda hypothesis: -hypothesis.score)[:beam_size] for beam in beams]
        active = [index for index in active if beams[index].ids]
        yield
        logits = model.step(rows, tokens)


def advance(
    beams: list[Beam], active: list[int], logits: Tensor, end_id: int, beam_size: int, alpha: float
) -> tuple[list[int], list[int]]:
    """Extend every active beam by a token; returns the parent row and the new token of each open continuation."""
    logprobs = log_probabilities(logits)
    best, tokens = logprobs.topk(min(2 * beam_size, logprobs.shape[-1]))  # (R, 2K): at most K of these are end tokens
    rows: list[int] = []
    read: list[int] = []
    first = 0
    for beam in (beams[index] for index in active):
        own = slice(first, first + len(beam.ids))
        kept = extend(beam, best[own].tolist(), tokens[own].tolist(), end_id, beam_size, alpha)
        rows += [first + parent for parent, _ in kept]
        read += [token for _, token in kept]
        first = own.stop
    return rows, read


def extend(
    beam: Beam, logprobs: list[list[float]], tokens: list[list[int]], end_id: int, beam_size: int, alpha: float
) -> list[tuple[int, int]]:
    """Replace a beam's continuations by the best that are one token longer; returns (parent, token) of each."""
    candidates = sorted(
        (-(beam.logprobs[parent] + logprob), parent, rank, token)
        for parent, row in enumerate(zip(logprobs, tokens, strict=True))
        for rank, (logprob, token) in enumerate(zip(*row, strict=True))
    )
    kept: list[tuple[int, int]] = []
    ids, sums = beam.ids, []
    is_last = len(ids[0]) + 1 >= beam.limit
    for rank, (negative, parent, _, token) in enumerate(candidates):
        if len(kept) == beam_size or len(beam.ended) >= beam_size:
            break
        if token == end_id:
            if rank < beam_size:
                beam.ended.append(hypothesis(ids[parent], -negative, len(ids[parent]) + 1, alpha, "end"))
        elif is_last:
            beam.ended.append(hypothesis([*ids[parent], token], -negative, len(ids[parent]) + 1, alpha, "length"))
        else:
            kept.append((parent, token))
            sums.append(-negative)
    if len(beam.ended) >= beam_size:
        kept, sums = [], []
    beam.ids, beam.logprobs = [[*ids[parent], token] for parent, token in kept], sums
    return kept


def hypothesis(ids: list[int], logprob: float, length: int, alpha: float, reason: FinishReason) -> Hypothesis:
    """A continuation that has ended."""
    return Hypothesis(ids, logprob, logprob / length_penalty(length, alpha), reason)


class CachedSteps:
    """A decoder with a KV cache that reads prompts of equal length, then one token at a time."""

    def __init__(self, decoder: Decoder, prompts: list[list[int]], max_tokens: int):
        self.decoder, self.prompts = decoder, prompts
        self.cache: KVCache = decoder.make_cache(len(prompts), len(prompts[0]) + max_tokens)

    def start(self) -> Tensor:
        """The logits (B, V) for the first token of each row."""
        return self._read(torch.tensor(self.prompts, device=self.cache.keys.device))

    def step(self, rows: list[int], tokens: list[int]) -> Tensor:
        """Copy row rows[r] to row r, append tokens[r], and return the logits (R, V)."""
        if rows != list(range(len(self.cache.lengths))):
            self.cache.keep_rows(rows)
        return self._read(torch.tensor(tokens, device=self.cache.keys.device)[:, None])

    def _read(self, ids: Tensor) -> Tensor:
        view = self.cache.make_room([ids.shape[1]] * len(ids))
        return self.decoder.head(self.decoder.hidden(ids, view)[:, -1])  # (R, V)
