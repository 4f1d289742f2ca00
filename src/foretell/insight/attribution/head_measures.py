"""What a head's attention weights come to in numbers, each a mean over the tokens that look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measure:
    """A number for every head, and how it is written."""

    title: str
    of: Callable[[Tensor], Tensor]  # weights (..., T, S) to one number a head, (...)
    format: Callable[[float], str]


def mean_distance(weights: Tensor) -> Tensor:
    """How many tokens back a head looks, on average."""
    places = torch.arange(weights.shape[-1], device=weights.device)
    return _over_queries((weights * (places[:, None] - places)).sum(-1))


def share_on_first(weights: Tensor) -> Tensor:
    """How much goes to the first token, where heads that have nothing to do often look (Xiao et al. 2023)."""
    return _over_queries(weights[..., 0])


def share_on_itself(weights: Tensor) -> Tensor:
    """How much each token gives to itself."""
    return _over_queries(weights.diagonal(dim1=-2, dim2=-1))


def share_on_previous(weights: Tensor) -> Tensor:
    """How much goes to the token before; for the second token that is the first."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1) if weights.shape[-1] > 1 else 0 * weights[..., 0, 0]


def entropy(weights: Tensor) -> Tensor:
    """How spread out a head's look is, in nats: 0 is one token alone, ln n is n tokens evenly."""
    return _over_queries(torch.special.entr(weights).sum(-1))


def _over_queries(values: Tensor) -> Tensor:
    """The mean over all queries but the first, which has only itself to look at; alone, it is all there is."""
    return values[..., 1:].mean(-1) if values.shape[-1] > 1 else values[..., 0]


def _percent(value: float) -> str:
    return f"{value:.0%}"


MEASURES: dict[str, Measure] = {
    "distance": Measure("mean distance in tokens", mean_distance, "{:.1f}".format),
    "first": Measure("share on the first token", share_on_first, _percent),
    "itself": Measure("share on the token itself", share_on_itself, _percent),
    "previous": Measure("share on the token before", share_on_previous, _percent),
    "entropy": Measure("entropy in nats", entropy, "{:.2f}".format),
}
