"""From logits to a token: filters, and a draw that depends only on (seed, sample, position).

A filter takes logits (B, V) in float64 and the ids so far of each row, and returns logits (B, V); tokens that it rules
out become -infinity.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from foretell.config import SamplingConfig
from foretell.model.logits import check_logits
from foretell.randomness import stream_key, uniform

History = list[list[int]]  # the ids so far, of each row
Filter = Callable[[Tensor, History], Tensor]


def repetition_penalty(penalty: float) -> Filter:
    """Divide positive and multiply negative logits of tokens that occurred by the penalty (Keskar et al. 2019, 4.1)."""

    def apply(logits: Tensor, history: History) -> Tensor:
        logits = logits.clone()
        for row, ids in zip(logits, history, strict=True):
            seen = torch.tensor(sorted(set(ids)), device=logits.device, dtype=torch.long)
            row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        return logits

    return apply


def temperature(value: float) -> Filter:
    """Divide by the temperature: below 1 likely tokens become more likely. 0 keeps only the most likely token."""

    def apply(logits: Tensor, history: History) -> Tensor:
        if value == 0:
            return keep_largest(logits)
        return (logits - logits.max(-1, keepdim=True).values) / value  # the largest stays 0 for any value

    return apply


def keep_largest(logits: Tensor) -> Tensor:
    """Keep only the largest logit; of equal ones the first."""
    only = torch.full_like(logits, -torch.inf)
    return only.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)


def top_k(count: int) -> Filter:
    """Keep the `count` most likely tokens and any tied with the last of them (Fan et al. 2018, section 5.4)."""

    def apply(logits: Tensor, history: History) -> Tensor:
        smallest = logits.topk(min(count, logits.shape[-1])).values[:, -1:]
        return logits.masked_fill(logits < smallest, -torch.inf)

    return apply


def top_p(mass: float) -> Filter:
    """Keep the most likely tokens until their probabilities reach `mass` (Holtzman et al. 2020, section 3.1)."""

    def apply(logits: Tensor, history: History) -> Tensor:
        ordered, order = logits.softmax(-1).sort(descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered  # the probability of all more likely tokens
        dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= mass)
        return logits.masked_fill(dropped, -torch.inf)

    return apply


def min_p(share: float) -> Filter:
    """Drop tokens less likely than `share` times the most likely (Nguyen et al. 2024)."""

    def apply(logits: Tensor, history: History) -> Tensor:
        floor = logits.max(-1, keepdim=True).values + math.log(share)
        return logits.masked_fill(logits < floor, -torch.inf)

    return apply


def make_filters(config: SamplingConfig) -> dict[str, Filter]:
    """The filters of a configuration by name, in the order in which they run; neutral values have none."""
    filters: dict[str, Filter] = {}
    if config.repetition_penalty != 1:
        filters["repetition_penalty"] = repetition_penalty(config.repetition_penalty)
    if config.temperature != 1:
        filters["temperature"] = temperature(config.temperature)
    if config.top_k is not None:
        filters["top_k"] = top_k(config.top_k)
    if config.top_p < 1:
        filters["top_p"] = top_p(config.top_p)
    if config.min_p > 0:
        filters["min_p"] = min_p(config.min_p)
    return filters


class Sampler:
    """Samples the next token of each row; the draw of sample i at position t depends only on (seed, i, t)."""

    def __init__(self, config: SamplingConfig, vocab_size: int | None = None):
        """vocab_size: sample only ids below it, since a model may have more rows than its tokenizer has tokens."""
        self.config, self.seed, self.vocab_size = config, config.seed, vocab_size
        self.filters = make_filters(config)

    def __call__(self, logits: Tensor, history: History, samples: list[int]) -> list[int]:
        """One id per row, from logits (B, V), the ids so far and the sample index of each row."""
        _, filtered = deque(self.stages(logits, history), maxlen=1).pop()  # the last, without keeping all
        draws = [self.draw(sample, len(ids)) for sample, ids in zip(samples, history, strict=True)]
        return pick(filtered.softmax(-1), draws)

    def stages(self, logits: Tensor, history: History) -> Iterator[tuple[str, Tensor]]:
        """Logits (B, V) in float64 of the ids that may be sampled, as `logits`; then after each filter, by its name.

        Raises CheckpointError for logits that are not finite.
        """
        logits = check_logits(logits[:, : self.vocab_size]).double()
        yield "logits", logits
        for name, apply in self.filters.items():
            logits = apply(logits, history)
            yield name, logits

    def draw(self, sample: int, position: int) -> float:
        """The random number in [0, 1) for one token."""
        return uniform(stream_key("sample", self.seed, sample), position)


def pick(probabilities: Tensor, draws: list[float]) -> list[int]:
    """The id at which the cumulative probabilities (B, V), in the order of ids, first exceed each row's draw."""
    cumulative = probabilities.cumsum(-1)
    targets = torch.tensor(draws, dtype=cumulative.dtype, device=cumulative.device)[:, None] * cumulative[:, -1:]
    # Rounding can leave the last sum below the target; then the answer is the last id with a probability
    last = (probabilities > 0).cumsum(-1).argmax(-1, keepdim=True)
    return torch.searchsorted(cumulative, targets, right=True).minimum(last)[:, 0].tolist()
