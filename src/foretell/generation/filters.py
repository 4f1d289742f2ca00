"""Filters, which change the logits before a token is sampled.

A filter takes logits (B, V) in float64 and the prefix of each row, and returns logits (B, V); excluded tokens become
-infinity. `FILTERS` has all of them. Filters that depend only on logits have a second form for one row on a CPU, which
keeps the same tokens without sorting the vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prefix:
    """The ids before the token to be sampled: first the prompt, then the generated ids.

    end_ids: the tokens that end this sequence.
    """

    ids: list[int]
    prompt_length: int = 0
    end_ids: frozenset[int] = frozenset()

    @property
    def generated(self) -> list[int]:
        return self.ids[self.prompt_length :]


Prefixes = Sequence[Prefix]  # one for each row of a batch
Filter = Callable[[Tensor, Prefixes], Tensor]


def odds(logits: Tensor) -> Tensor:
    """Unnormalised probabilities (..., V), of which the largest is 1.

    They are not divided by their sum, so that leaving out excluded tokens does not change the bits of the others.
    """
    if logits.is_cuda:
        return (logits - logits.amax(-1, keepdim=True)).exp_()
    values = logits.numpy(force=True)  # `narrow` has the reason for NumPy
    return torch.from_numpy(np.exp(values - values.max(-1, keepdims=True)))


# The decorators below turn a function into one that takes only the setting (its last parameter) and returns the filter


def with_setting(apply: Callable[[Tensor, Prefixes, Any], Tensor]) -> Callable[[Any], Filter]:
    """Make a filter of the whole batch."""
    return lambda setting: lambda logits, prefixes: apply(logits, prefixes, setting)


def for_each_row(change: Callable[[Tensor, Prefix, Any], None]) -> Callable[[Any], Filter]:
    """Make a filter from a function that changes a row of logits (V,) in place; it gets a copy."""

    def apply(logits: Tensor, prefixes: Prefixes, setting: Any) -> Tensor:
        logits = logits.clone()
        for row, prefix in zip(logits, prefixes, strict=True):
            change(row, prefix, setting)
        return logits

    return with_setting(apply)


def excluding(excluded: Callable[[Prefix, Any], Collection[int]]) -> Callable[[Any], Filter]:
    """Make a filter from a function that returns the ids to exclude."""

    def change(row: Tensor, prefix: Prefix, setting: Any) -> None:
        ids = excluded(prefix, setting)
        check_ids(ids, row, excluded.__name__)
        row[list(ids)] = -torch.inf

    return for_each_row(change)


def check_ids(ids: Collection[int], logits: Tensor, name: str) -> None:
    """Refuse ids outside the vocabulary of logits (..., V)."""
    count = logits.shape[-1]
    if unknown := [token for token in ids if not 0 <= token < count]:
        raise ConfigError(f"{name} names token {unknown[0]}, but the ids of this model are 0 to {count - 1}")


# --- filters that see the prefix -------------------------------------------------------------------------------------


@for_each_row
def repetition_penalty(row: Tensor, prefix: Prefix, penalty: float) -> None:
    """Divide positive logits of earlier tokens by the penalty, multiply negative ones (Keskar et al. 2019, 4.1)."""
    seen = torch.tensor(sorted(set(prefix.ids)), device=row.device, dtype=torch.long)
    row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)


@for_each_row
def frequency_penalty(row: Tensor, prefix: Prefix, penalty: float) -> None:
    """Subtract the penalty times the count of each generated token; the prompt does not count.

    The formula of OpenAI's API reference: logit - count * frequency_penalty - (count > 0) * presence_penalty.
    """
    counts = Counter(prefix.generated)
    numbers = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
    row[torch.tensor(list(counts), device=row.device, dtype=torch.long)] -= penalty * numbers


@for_each_row
def presence_penalty(row: Tensor, prefix: Prefix, penalty: float) -> None:
    """Subtract the penalty from the logit of each generated token, independent of its count."""
    row[torch.tensor(list(set(prefix.generated)), device=row.device, dtype=torch.long)] -= penalty


@with_setting
def logit_bias(logits: Tensor, prefixes: Prefixes, biases: Mapping[int, float]) -> Tensor:
    """Add a number to the logits of some tokens."""
    check_ids(biases, logits, "logit_bias")
    ids = torch.tensor(list(biases), device=logits.device, dtype=torch.long)
    logits = logits.clone()
    logits[:, ids] += torch.tensor(list(biases.values()), device=logits.device, dtype=logits.dtype)
    return logits


@excluding
def min_tokens(prefix: Prefix, count: int) -> Collection[int]:
    """Exclude the end tokens until `count` tokens have been generated."""
    return prefix.end_ids if len(prefix.ids) - prefix.prompt_length < count else ()


@excluding
def ban(prefix: Prefix, words: Sequence[Sequence[int]]) -> Collection[int]:
    """Exclude the token that would complete a banned word."""
    return {word[-1] for word in words if ends_with(prefix.ids, word[:-1])}


def ends_with(ids: Sequence[int], end: Sequence[int]) -> bool:
    return len(end) <= len(ids) and list(ids[len(ids) - len(end) :]) == list(end)


@excluding
def no_repeat_ngram(prefix: Prefix, size: int) -> Collection[int]:
    """Exclude tokens that would make the last `size` ids equal to earlier ones (Paulus et al. 2018, section 2.5)."""
    ids = prefix.ids
    start = ids[len(ids) - size + 1 :]
    last = range(size - 1, len(ids))  # positions at which an earlier n-gram can end
    return {ids[index] for index in last if ids[index - size + 1 : index] == start}


# --- filters that see only logits ------------------------------------------------------------------------------------


@with_setting
def temperature(logits: Tensor, _: Prefixes, value: float) -> Tensor:
    """Divide by the temperature: below 1, likely tokens become more likely; 0 keeps only the most likely token."""
    if value == 0:
        only = torch.full_like(logits, -torch.inf)
        return only.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)  # the first of tied tokens
    return (logits - logits.amax(-1, keepdim=True)).div_(value)  # the largest stays 0 for any value


@with_setting
def top_k(logits: Tensor, _: Prefixes, count: int) -> Tensor:
    """Keep the `count` most likely tokens and any tied with the least of these (Fan et al. 2018, section 5.4)."""
    smallest = logits.topk(min(count, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


@with_setting
def top_p(logits: Tensor, _: Prefixes, mass: float) -> Tensor:
    """Keep the most likely tokens until their probabilities reach `mass` (Holtzman et al. 2020, section 3.1)."""
    weights = odds(logits)
    ordered, order = weights.sort(descending=True, stable=True)
    reached = ordered.cumsum(-1) >= mass * weights.cumsum(-1)[:, -1:]
    is_after = reached.roll(1, -1)  # the token that reaches the mass is kept
    is_after[:, 0] = False
    return logits.masked_fill(torch.zeros_like(is_after).scatter(-1, order, is_after), -torch.inf)


@with_setting
def min_p(logits: Tensor, _: Prefixes, share: float) -> Tensor:
    """Drop tokens less likely than `share` times the most likely (Nguyen et al. 2024)."""
    floor = logits.amax(-1, keepdim=True) + math.log(share)
    return logits.masked_fill(logits < floor, -torch.inf)


# --- the same for one row on a CPU -----------------------------------------------------------------------------------

Vector: TypeAlias = np.ndarray  # (V,) or a part of it, float64; ids are int64 and ascending
DISTANCES = (4.0, 8.0, 12.0)  # the lower limits of shortlists, as distances from the largest logit


def narrow(logits: Vector, settings: Mapping[str, float]) -> tuple[np.ndarray | None, Vector]:
    """The ids that the filters keep (None for all) and their logits, from logits (V,); settings by name, in order.

    Bit-identical to the plain filters. Top-k and top-p first examine only the most likely tokens, and more only if
    these are not enough. For a vocabulary of 50,257 on one core, sorting takes 4.2 ms, and finding the tokens above a
    limit 0.02 ms. NumPy uses one thread: torch divides arrays of this size between threads, which is slower, and a
    hundred times as slow if other programs keep a core busy.
    """
    ids = None
    for name, setting in settings.items():
        if name == "temperature":
            with np.errstate(over="ignore"):  # the smallest temperatures give minus infinity
                logits = (logits - logits.max()) / setting
        else:
            kept = KEEP[name](logits, setting)
            ids, logits = kept if ids is None else ids[kept], logits[kept]
    return ids, logits


def keep_top_k(logits: Vector, count: float) -> np.ndarray:
    """The ids that `top_k` keeps of logits (V,)."""
    count = min(int(count), len(logits))
    for ids in shortlists(logits, logits.max() - np.array(DISTANCES)):
        if len(ids) >= count:
            short = logits[ids]
            return ids[short >= np.partition(short, len(ids) - count)[len(ids) - count]]
    raise AssertionError("the last shortlist has all ids")


def keep_top_p(logits: Vector, mass: float) -> np.ndarray:
    """The ids that `top_p` keeps of logits (V,)."""
    weights = np.exp(logits - logits.max())
    target = mass * cumulated(weights)[-1]  # `sum` adds in another order
    for ids in shortlists(weights, np.exp(-np.array(DISTANCES))):
        short, is_last = weights[ids], len(ids) == len(weights)
        if not is_last and short.sum() < target:
            continue
        ordered = np.sort(short)[::-1].copy()
        count = int(np.searchsorted(cumulated(ordered), target)) + 1
        if is_last or count <= len(ids):
            return ids[likeliest(short, ordered, min(count, len(ids)))]
    raise AssertionError("the last shortlist has all ids")


def likeliest(values: Vector, ordered: Vector, count: int) -> np.ndarray:
    """True for the `count` largest of values (n,), the first if tied. `ordered` has the values in descending order."""
    smallest = ordered[count - 1]
    kept = values > smallest
    ties = np.flatnonzero(values == smallest)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return kept


def keep_min_p(logits: Vector, share: float) -> np.ndarray:
    """The ids that `min_p` keeps of logits (V,)."""
    return np.flatnonzero(logits >= logits.max() + math.log(share))


def shortlists(values: Vector, limits: np.ndarray) -> Iterator[np.ndarray]:
    """For each limit, the ids whose values are at least the limit; finally all ids."""
    for limit in limits:
        yield np.flatnonzero(values >= limit)
    yield np.arange(len(values))


def cumulated(values: Vector) -> Vector:
    """torch's cumulative sums, which zeros in between do not change. NumPy's take four times as long."""
    return torch.from_numpy(values).cumsum(-1).numpy()


# --- all filters -----------------------------------------------------------------------------------------------------

# field of `SamplingConfig`: its neutral value, and the filter for any other value
FILTERS: dict[str, tuple[Any, Callable[[Any], Filter]]] = {
    "repetition_penalty": (1, repetition_penalty),
    "frequency_penalty": (0, frequency_penalty),
    "presence_penalty": (0, presence_penalty),
    "logit_bias": ({}, logit_bias),
    "min_tokens": (0, min_tokens),
    "ban": ((), ban),
    "no_repeat_ngram": (None, no_repeat_ngram),
    "temperature": (1, temperature),
    "top_k": (None, top_k),
    "top_p": (1, top_p),
    "min_p": (0, min_p),
}
CONSTRAINTS = ("regex", "json_schema")
KEEP: dict[str, Callable[[Vector, float], np.ndarray]] = {"top_k": keep_top_k, "top_p": keep_top_p, "min_p": keep_min_p}
SHAPING = frozenset({"temperature", *KEEP})  # these depend only on logits and always keep a token


def make_filters(config: SamplingConfig, constraint: Filter | None = None) -> dict[str, Filter]:
    """The filters of a configuration by name, in the order of its fields; neutral values need none.

    constraint: the filter for its regex or JSON schema.
    """
    filters: dict[str, Filter] = {}
    for name, value in config:
        if name in CONSTRAINTS and value is not None and constraint is not None:
            filters[name] = constraint
        elif name in FILTERS and value != FILTERS[name][0]:
            filters[name] = FILTERS[name][1](value)
    return filters
