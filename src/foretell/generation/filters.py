"""Filters: what is done to the logits before a token is drawn.

A filter takes logits (B, V) in float64 and the prefix of each row, and returns logits (B, V); tokens that it excludes
become -infinity. The filters of one configuration run in the order of `make_filters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretell.config import SamplingConfig
from foretell.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prefix:
    """The ids before the token to be sampled: those of the prompt, then those generated.

    end_ids: the tokens that end this sequence.
    """

    ids: list[int]
    prompt_length: int = 0
    end_ids: frozenset[int] = frozenset()

    @property
    def generated(self) -> list[int]:
        """The ids after the prompt."""
        return self.ids[self.prompt_length :]


Prefixes = Sequence[Prefix]  # of the rows of a batch
Filter = Callable[[Tensor, Prefixes], Tensor]
SHAPING = frozenset({"temperature", "top_k", "top_p", "min_p"})  # these always leave a token, and see logits alone


def odds(logits: Tensor) -> Tensor:
    """Probabilities up to a factor, (..., V): the largest is 1.

    They are not divided by their sum, so that leaving out excluded tokens changes no bit of the others.
    """
    if logits.is_cuda:
        return (logits - logits.amax(-1, keepdim=True)).exp_()
    values = logits.numpy(force=True)  # as in `shortlist.py`
    return torch.from_numpy(np.exp(values - values.max(-1, keepdims=True)))


# --- filters that know tokens ----------------------------------------------------------------------------------------


def repetition_penalty(penalty: float) -> Filter:
    """Divide positive and multiply negative logits of tokens that occurred by the penalty (Keskar et al. 2019, 4.1)."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        logits = logits.clone()
        for row, prefix in zip(logits, prefixes, strict=True):
            seen = torch.tensor(sorted(set(prefix.ids)), device=logits.device, dtype=torch.long)
            row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        return logits

    return apply


def logit_bias(biases: Mapping[int, float]) -> Filter:
    """Add a number to the logits of some tokens."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        check_ids(biases, logits, "logit_bias")
        ids = torch.tensor(list(biases), device=logits.device, dtype=torch.long)
        logits = logits.clone()
        logits[:, ids] += torch.tensor(list(biases.values()), device=logits.device, dtype=logits.dtype)
        return logits

    return apply


def min_tokens(count: int) -> Filter:
    """Exclude the end tokens until `count` tokens have been generated."""

    def excluded(prefix: Prefix) -> Collection[int]:
        return prefix.end_ids if len(prefix.ids) - prefix.prompt_length < count else ()

    return excluding(excluded, "min_tokens")


def ban(words: Sequence[Sequence[int]]) -> Filter:
    """Exclude the last token of a word whose other tokens are the last ids."""

    def excluded(prefix: Prefix) -> Collection[int]:
        return {word[-1] for word in words if ends_with(prefix.ids, word[:-1])}

    return excluding(excluded, "ban")


def no_repeat_ngram(size: int) -> Filter:
    """Exclude tokens that would make the last `size` ids equal to earlier ones (Paulus et al. 2018, section 2.5)."""

    def excluded(prefix: Prefix) -> Collection[int]:
        ids = prefix.ids
        start = ids[len(ids) - size + 1 :]
        last = range(size - 1, len(ids))  # where an earlier n-gram can end
        return {ids[index] for index in last if ids[index - size + 1 : index] == start}

    return excluding(excluded, "no_repeat_ngram")


def ends_with(ids: Sequence[int], end: Sequence[int]) -> bool:
    """True if the last ids are these."""
    return len(end) <= len(ids) and list(ids[len(ids) - len(end) :]) == list(end)


def excluding(excluded: Callable[[Prefix], Collection[int]], name: str) -> Filter:
    """A filter that excludes the ids that a function of the prefix returns."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        logits = logits.clone()
        for row, prefix in zip(logits, prefixes, strict=True):
            ids = excluded(prefix)
            check_ids(ids, logits, name)
            row[list(ids)] = -torch.inf
        return logits

    return apply


def check_ids(ids: Collection[int], logits: Tensor, name: str) -> None:
    """Refuse ids outside the vocabulary of logits (B, V)."""
    count = logits.shape[-1]
    if unknown := [token for token in ids if not 0 <= token < count]:
        raise ConfigError(f"{name} names token {unknown[0]}, and the ids of this model are 0 to {count - 1}")


# --- filters that know logits alone ----------------------------------------------------------------------------------


def temperature(value: float) -> Filter:
    """Divide by the temperature: below 1 likely tokens become more likely. 0 keeps only the most likely token."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        if value == 0:
            return keep_largest(logits)
        return (logits - logits.amax(-1, keepdim=True)).div_(value)  # the largest stays 0 for any value

    return apply


def keep_largest(logits: Tensor) -> Tensor:
    """Keep only the largest logit; of equal ones the first."""
    only = torch.full_like(logits, -torch.inf)
    return only.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)


def top_k(count: int) -> Filter:
    """Keep the `count` most likely tokens and any tied with the last of them (Fan et al. 2018, section 5.4)."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        smallest = logits.topk(min(count, logits.shape[-1])).values[:, -1:]
        return logits.masked_fill(logits < smallest, -torch.inf)

    return apply


def top_p(mass: float) -> Filter:
    """Keep the most likely tokens until their probabilities reach `mass` (Holtzman et al. 2020, section 3.1)."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        weights = odds(logits)
        ordered, order = weights.sort(descending=True, stable=True)
        reached = ordered.cumsum(-1) >= mass * weights.cumsum(-1)[:, -1:]
        is_after = reached.roll(1, -1)  # the token that reaches the mass is kept
        is_after[:, 0] = False
        return logits.masked_fill(torch.zeros_like(is_after).scatter(-1, order, is_after), -torch.inf)

    return apply


def min_p(share: float) -> Filter:
    """Drop tokens less likely than `share` times the most likely (Nguyen et al. 2024)."""

    def apply(logits: Tensor, prefixes: Prefixes) -> Tensor:
        floor = logits.amax(-1, keepdim=True) + math.log(share)
        return logits.masked_fill(logits < floor, -torch.inf)

    return apply


def make_filters(config: SamplingConfig, constraint: Filter | None = None) -> dict[str, Filter]:
    """The filters of a configuration by name, in the order in which they run; neutral values have none.

    constraint: the filter for its regex or JSON schema.
    """
    filters: dict[str, Filter] = {}
    if config.repetition_penalty != 1:
        filters["repetition_penalty"] = repetition_penalty(config.repetition_penalty)
    if config.logit_bias:
        filters["logit_bias"] = logit_bias(config.logit_bias)
    if config.min_tokens:
        filters["min_tokens"] = min_tokens(config.min_tokens)
    if config.ban:
        filters["ban"] = ban(config.ban)
    if config.no_repeat_ngram is not None:
        filters["no_repeat_ngram"] = no_repeat_ngram(config.no_repeat_ngram)
    if constraint is not None:
        filters["json_schema" if config.regex is None else "regex"] = constraint
    if config.temperature != 1:
        filters["temperature"] = temperature(config.temperature)
    if config.top_k is not None:
        filters["top_k"] = top_k(config.top_k)
    if config.top_p < 1:
        filters["top_p"] = top_p(config.top_p)
    if config.min_p > 0:
        filters["min_p"] = min_p(config.min_p)
    return filters
