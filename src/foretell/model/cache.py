"""What a forward pass can look back on: nothing but its own tokens, or the keys and values of earlier calls.

Both kinds of context answer the same three questions: which positions the new tokens have, which keys they may see, and
what a layer's keys and values are once the new ones are added. The core never knows which kind it serves.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.model.mask import EMPTY, Mask


class FreshKVView:
    """A pass over whole rows: training, scoring, tracing.

    positions (B or 1, T) and document_ids (B, T) default to 0..T-1 and one document a row.
    """

    def __init__(self, ids: Tensor, positions: Tensor | None = None, document_ids: Tensor | None = None):
        _, T = ids.shape
        self.positions = torch.arange(T, device=ids.device)[None] if positions is None else positions  # (B or 1, T)
        # Inside one document positions only count up, so the order in the row decides what comes before what
        self._mask = Mask(T, T, query_document_ids=document_ids, key_document_ids=document_ids, device=ids.device)
        self._windowed: dict[int | None, Mask] = {}

    def mask(self, window: int | None) -> Mask:
        """The mask of the layers with this window."""
        return self._windowed.setdefault(window, dataclasses.replace(self._mask, window=window))

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values (B, G, S, E) that a layer's queries can look at: its own."""
        return key, value


class KVCache:
    """Keys and values of every layer, for rows that grow at their own pace.

    Slot s of a row holds its position s, so rows need no padding on the left: a shorter row has fewer slots filled.
    """

    def __init__(self, config: ModelConfig, rows: int, capacity: int, dtype: torch.dtype, device: torch.device | str):
        # one slot more than can be filled: the padding of uneven rows is written there
        shape = (config.num_layers, rows, config.num_kv_heads, capacity + 1, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, G, S, E)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * rows  # tokens that each row holds
        self.capacity = capacity

    def extend(self, counts: list[int]) -> CachedKVView:
        """Make room for `counts[b]` new tokens in row b, and return the view of the pass that brings them."""
        view = CachedKVView(self, list(self.lengths), counts)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        assert max(self.lengths) <= self.capacity, "the engine asks for a cache that holds what it generates"
        return view

    def keep_rows(self, rows: list[int]) -> None:
        """Drop all other rows, in place of which the kept ones move up."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.lengths = [self.lengths[row] for row in rows]


class CachedKVView:
    """One pass over new tokens (B, T) after what a cache holds; row b brings counts[b] of them, the rest is padding."""

    def __init__(self, cache: KVCache, starts: list[int], counts: list[int]):
        self.cache, self.starts, self.counts = cache, starts, counts
        self.num_queries = max(counts)
        self.filled = [start + count for start, count in zip(starts, counts, strict=True)]
        self.num_keys = max(self.filled)
        self.is_even = len(set(starts)) == 1  # all rows start at the same slot, so one slice holds all
        self.device = cache.keys.device
        self._windowed: dict[int | None, Mask] = {}

    @cached_property
    def slots(self) -> Tensor:
        """(B or 1, T) the slot of each new token; padding counts on, at most into the slot that is never read."""
        starts = torch.tensor(self.starts[:1] if self.is_even else self.starts, device=self.device)
        slots = starts[:, None] + torch.arange(self.num_queries, device=self.device)
        return slots.clamp(max=self.cache.capacity)

    @cached_property
    def positions(self) -> Tensor:
        """(B or 1, T) the position of each new token; padding gets one that exists."""
        return self.slots.clamp(max=self.cache.capacity - 1)

    def mask(self, window: int | None) -> Mask:
        """The mask of the layers with this window.

        When all rows start together, padding stands behind every real token of its row, where causality hides it.
        """
        if window not in self._windowed:
            self._windowed[window] = self._make_mask(window)
        return self._windowed[window]

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (B, G, T, E) and return all of them, (B, G, S, E)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        if self.is_even:
            slots = slice(self.starts[0], self.num_keys)
            keys[:, :, slots], values[:, :, slots] = key, value
        else:
            rows = torch.arange(len(self.starts), device=self.device)[:, None]  # (B, 1)
            keys[rows, :, self.slots] = key.transpose(1, 2)
            values[rows, :, self.slots] = value.transpose(1, 2)
        return keys[:, :, : self.num_keys], values[:, :, : self.num_keys]

    def _make_mask(self, window: int | None) -> Mask:
        if self.is_even:
            return Mask(self.num_queries, self.num_keys, window=window, device=self.device)
        slots = torch.arange(self.num_keys, device=self.device)[None]  # (1, S)
        filled = torch.tensor(self.filled, device=self.device)[:, None]
        key_positions = torch.where(slots < filled, slots, EMPTY)  # (B, S)
        return Mask(
            self.num_queries,
            self.num_keys,
            window=window,
            # padding asks as the row's last token: with nothing in its window it would be NaN, which no mask hides
            query_positions=self.slots.minimum(filled - 1),
            key_positions=key_positions,
        )


KVView = FreshKVView | CachedKVView
