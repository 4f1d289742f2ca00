"""Key/value views for attention, with and without a cache.

A view is one forward pass as attention sees it: the positions of the new tokens, the vectors that become keys and
values, the mask, and all keys and values of a layer. The core works with any of them.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.errors import UsageError, check_count, check_type
from foretell.model.mask import EMPTY, Mask


class KVView:
    """The base class of all views: self-attention without a cache, where every token has a key and a value."""

    def __init__(self) -> None:
        self._masks: dict[int | None, Mask] = {}  # by window

    @cached_property
    def positions(self) -> Tensor:
        """(B or 1, T) the position of each new token."""
        raise NotImplementedError

    def source(self, layer: int, x: Tensor) -> Tensor:
        """The vectors (B, N, D) that a layer turns into new keys and values, where its queries come from x."""
        return x

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values (B, G, S, E) of a layer, given the new ones (B, G, N, E)."""
        return key, value

    def mask(self, window: int | None) -> Mask:
        """The mask of the layers with this window, made once."""
        if window not in self._masks:
            self._masks[window] = self.make_mask(window)
        return self._masks[window]

    def make_mask(self, window: int | None) -> Mask:
        raise NotImplementedError


class FreshKVView(KVView):
    """A pass over whole rows without a cache: training, scoring, tracing.

    positions (B or 1, T) and document_ids (B, T) default to 0..T-1 and one document per row.
    """

    def __init__(self, ids: Tensor, positions: Tensor | None = None, document_ids: Tensor | None = None):
        super().__init__()
        _, T = ids.shape
        self.positions = torch.arange(T, device=ids.device)[None] if positions is None else positions  # (B or 1, T)
        # Within a document positions only increase, so the order in the row decides which token comes first
        mask = Mask(T, T, query_document_ids=document_ids, key_document_ids=document_ids, device=ids.device)
        self._masks[None] = mask

    def make_mask(self, window: int | None) -> Mask:
        return dataclasses.replace(self._masks[None], window=window)


KeptKeys = dict[int, tuple[Tensor, Tensor]]  # the keys and values (B, G, S, E) of each layer


class KeptKVView(FreshKVView):
    """A pass over ids (B, T) that keeps its keys and values.

    earlier: the keys and values kept from a pass over one row, whose first `start` tokens all rows share. ids then
    holds only the tokens after these.
    """

    def __init__(self, ids: Tensor, earlier: KeptKeys | None = None, start: int = 0):
        T = ids.shape[1]
        super().__init__(ids, torch.arange(start, start + T, device=ids.device)[None])
        self._masks[None] = Mask(T, start + T, device=ids.device)
        self.earlier, self.start, self.kept = earlier or {}, start, KeptKeys()

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.start:
            first = (each[:, :, : self.start].expand(len(key), -1, -1, -1) for each in self.earlier[layer])
            key, value = (torch.cat(parts, 2) for parts in zip(first, (key, value), strict=True))
        self.kept[layer] = key, value
        return key, value


class RowsKVView(KVView):
    """A pass over new tokens (B, T) of rows in a cache: row b has counts[b] of them after starts[b], then padding."""

    def __init__(self, starts: list[int], counts: list[int], device: torch.device):
        super().__init__()
        self.starts, self.counts, self.device = starts, counts, device
        self.ends = [start + count for start, count in zip(starts, counts, strict=True)]
        self.num_queries, self.num_keys = max(counts), max(self.ends)
        self.is_even = len(set(starts)) == 1  # then the causal mask hides the padding, which follows a row's tokens

    def make_mask(self, window: int | None) -> Mask:
        if self.is_even:
            return Mask(self.num_queries, self.num_keys, window=window, device=self.device)
        slots = torch.arange(self.num_keys, device=self.device)[None]  # (1, S)
        ends = torch.tensor(self.ends, device=self.device)[:, None]
        return Mask(
            self.num_queries,
            self.num_keys,
            window=window,
            # padding gets the last token's position: with no visible key its output would be NaN, which no mask hides
            query_positions=self.positions.minimum(ends - 1),
            key_positions=torch.where(slots < ends, slots, EMPTY),  # (B, S)
        )


class KVCache:
    """Keys and values of every layer, for rows that grow at their own pace.

    Slot s of a row holds its position s, so rows need no padding on the left: a shorter row has fewer slots filled.
    """

    def __init__(self, config: ModelConfig, rows: int, capacity: int, dtype: torch.dtype, device: torch.device | str):
        check_type("the configuration", config, ModelConfig, "a ModelConfig")
        check_count("rows", rows)
        check_count("capacity", capacity)
        # one slot more than can be filled: the padding of uneven rows is written there
        shape = (config.num_layers, rows, config.num_kv_heads, capacity + 1, config.head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # (L, B, G, S, E)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * rows  # tokens that each row holds
        self.capacity = capacity

    def make_room(self, counts: list[int]) -> KVView:
        """Make room for `counts[b]` new tokens in row b, and return the view of the pass that adds them.

        Raises UsageError if the number of rows differs, or if the tokens do not fit into the cache.
        """
        if len(counts) != len(self.lengths):
            raise UsageError(f"the cache has {len(self.lengths)} rows, but counts has {len(counts)}; give one per row")
        lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        if max(lengths) > self.capacity:
            raise UsageError(f"a row of {max(lengths)} tokens does not fit into the cache, which holds {self.capacity}")
        view, self.lengths = CachedKVView(self, list(self.lengths), counts), lengths
        return view

    def keep_rows(self, rows: list[int]) -> None:
        """Drop all rows but these, which become rows 0, 1, ...; a row that is named twice is copied."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.lengths = [self.lengths[row] for row in rows]


class CachedKVView(RowsKVView):
    """A pass over new tokens of the rows of a `KVCache`."""

    def __init__(self, cache: KVCache, starts: list[int], counts: list[int]):
        super().__init__(starts, counts, cache.keys.device)
        self.cache = cache

    @cached_property
    def slots(self) -> Tensor:
        """(B or 1, T) the slot of each new token; padding gets the slots after, up to the one that is never read."""
        starts = torch.tensor(self.starts[:1] if self.is_even else self.starts, device=self.device)
        slots = starts[:, None] + torch.arange(self.num_queries, device=self.device)
        return slots.clamp(max=self.cache.capacity)

    @cached_property
    def positions(self) -> Tensor:
        """(B or 1, T) the position of each new token; padding gets a valid position."""
        return self.slots.clamp(max=self.cache.capacity - 1)

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
