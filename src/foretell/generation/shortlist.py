"""The filters temperature, top-k, top-p and min-p of one row on a CPU, without sorting the whole vocabulary.

`narrow` leaves what the plain forms in `filters.py` leave, bit for bit. Top-k and top-p look first at the likeliest
tokens alone, and at more of them only where these do not decide. Measured at a vocabulary of 50,257 on one core:
sorting takes 4.2 ms, finding the tokens above a limit 0.02 ms.

NumPy, since it uses one thread: torch shares arrays of this size between threads, which costs more than it gains, and a
hundred times as much where other programs keep a core busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import torch

Vector: TypeAlias = np.ndarray  # (V,) or a part of it, float64; ids are int64 and ascending
DISTANCES = (4.0, 8.0, 12.0)  # from the largest logit: how far down a shortlist goes


def narrow(logits: Vector, settings: dict[str, float]) -> tuple[np.ndarray | None, Vector]:
    """The ids that filters leave of logits (V,), None for all, and their logits; settings by name, in order."""
    ids = None
    for name, setting in settings.items():
        if name == "temperature":
            logits = (logits - logits.max()) / setting
        else:
            kept = KEEP[name](logits, setting)
            ids, logits = kept if ids is None else ids[kept], logits[kept]
    return ids, logits


def keep_top_k(logits: Vector, count: float) -> np.ndarray:
    """The ids that `filters.top_k` keeps of logits (V,)."""
    count = min(int(count), len(logits))
    for ids in shortlists(logits, logits.max() - np.array(DISTANCES)):
        if len(ids) >= count:
            short = logits[ids]
            return ids[short >= np.partition(short, len(ids) - count)[len(ids) - count]]
    raise AssertionError("the last shortlist has all ids")


def keep_top_p(logits: Vector, mass: float) -> np.ndarray:
    """The ids that `filters.top_p` keeps of logits (V,)."""
    weights = np.exp(logits - logits.max())
    target = mass * cumulated(weights)[-1]  # not `sum`, which adds in another order
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
    """True for the `count` largest of values (n,); of equal ones the first. `ordered` are the same, descending."""
    smallest = ordered[count - 1]
    kept = values > smallest
    ties = np.flatnonzero(values == smallest)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return kept


def keep_min_p(logits: Vector, share: float) -> np.ndarray:
    """The ids that `filters.min_p` keeps of logits (V,)."""
    return np.flatnonzero(logits >= logits.max() + math.log(share))


def shortlists(values: Vector, limits: np.ndarray) -> Iterator[np.ndarray]:
    """The ids whose values are at least each limit in turn; at last all ids."""
    for limit in limits:
        yield np.flatnonzero(values >= limit)
    yield np.arange(len(values))


def cumulated(values: Vector) -> Vector:
    """Sums from the first value on, each of two numbers: zeros among them change nothing. NumPy's takes four times."""
    return torch.from_numpy(values).cumsum(-1).numpy()


KEEP: dict[str, Callable[[Vector, float], np.ndarray]] = {
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
}
