"""A cache of keys and values in blocks of positions. Rows can share blocks, and release them.

A row has a table of blocks: position s is at offset s % P of block table[s // P]. So rows join and leave without a
copy, and rows that begin with the same tokens share their first blocks (Kwon et al. 2023, PagedAttention).
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.model.cache import KVView, RowsKVView
from foretell.model.mask import Mask
from foretell.system.device import to_device

POSITIONS_PER_BLOCK = 32
PADDING_BLOCK = 0  # padding is written there and may not be finite; it belongs to no row and is never read


@dataclass(frozen=True)
class PagedRow:
    """The part of one pass that belongs to one row: `count` new tokens after the first `start`."""

    table: Sequence[int]  # its blocks
    start: int
    count: int

    @property
    def end(self) -> int:
        """The number of tokens that the row has after the pass."""
        return self.start + self.count


class PagedKVCache:
    """Keys and values of every layer, in N blocks of P positions."""

    def __init__(self, config: ModelConfig, num_blocks: int, dtype: torch.dtype, device: torch.device | str):
        shape = (config.num_layers, config.num_kv_heads, num_blocks, POSITIONS_PER_BLOCK, config.head_width)
        self.keys, self.values = (blank(shape, dtype, torch.device(device)) for _ in range(2))  # (L, G, N, P, E)

    def copy_block(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` positions of a block of all layers."""
        for blocks in (self.keys, self.values):
            blocks[:, :, target, :count] = blocks[:, :, source, :count]

    def clear_blocks(self, blocks: list[int]) -> None:
        """Set blocks of all layers to zero, see `blank`."""
        for pool in (self.keys, self.values):
            pool[:, :, blocks] = 0


def filled_table(table: Sequence[int], num_blocks: int) -> list[int]:
    """The first `num_blocks` blocks of a table; a shorter table is filled up with its own first block.

    The keys in the added blocks are hidden, but must be finite, see `blank`.
    """
    return [*table[:num_blocks], *[table[0]] * (num_blocks - len(table))]


def blank(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, because the value of a hidden key is multiplied by its weight of 0, and 0 * NaN is NaN.

    On a CPU they occupy memory only once they are written to.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(zeroed_memory(math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


def zeroed_memory(size: int) -> Any:
    """A buffer of bytes that occupies memory once it is written to, on Linux in pages of 4 KiB.

    With the pages of 2 MiB that NumPy requests, the first key of each head of each layer occupied a page: the first 512
    tokens in a server of GPT-2's shape took 0.9 s and 576 MiB instead of 0.2 s and 19 MiB.
    """
    if sys.platform != "linux":
        return np.zeros(size, dtype=np.uint8)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a Linux kernel without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class PagedKVView(RowsKVView):
    """A pass over new tokens of rows in a paged cache."""

    def __init__(self, cache: PagedKVCache, rows: Sequence[PagedRow]):
        super().__init__([row.start for row in rows], [row.count for row in rows], cache.keys.device)
        self.cache, self.rows = cache, rows

    @cached_property
    def block_numbers(self) -> np.ndarray:
        """(B, K) the blocks of each row, in int32; rows with fewer blocks are filled up."""
        num_blocks = -(-self.num_keys // POSITIONS_PER_BLOCK)
        return np.array([filled_table(row.table, num_blocks) for row in self.rows], dtype=np.int32)

    @cached_property
    def position_numbers(self) -> np.ndarray:
        """(B, T) the position of each new token; padding has the position of the row's last token."""
        if self.num_queries == 1:
            return np.array(self.starts)[:, None]
        starts, ends = np.array([self.starts, self.ends])
        return np.minimum(starts[:, None] + np.arange(self.num_queries), ends[:, None] - 1)

    @cached_property
    def tables(self) -> Tensor:
        """`block_numbers` on the device."""
        return to_device(torch.from_numpy(self.block_numbers), self.device)

    @cached_property
    def positions(self) -> Tensor:
        """`position_numbers` on the device."""
        return to_device(torch.from_numpy(self.position_numbers), self.device)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """The block and the offset in it of each new token, (B, T) each; padding goes to the padding block."""
        blocks = self.tables.long().gather(1, self.positions // POSITIONS_PER_BLOCK)
        if self.num_queries > 1:
            counts = torch.tensor(self.counts, device=self.device)
            is_padding = torch.arange(self.num_queries, device=self.device) >= counts[:, None]
            blocks = blocks.masked_fill(is_padding, PADDING_BLOCK)
        return blocks, self.positions % POSITIONS_PER_BLOCK

    @cached_property
    def spacing(self) -> tuple[int, int] | None:
        """(first block, distance between rows in blocks) if all rows are evenly spaced runs of blocks, else None.

        The keys are then a view of the cache, without a copy.
        """
        num_blocks, first = self.tables.shape[1], self.rows[0].table[0]
        step = self.rows[1].table[0] - first if len(self.rows) > 1 else num_blocks
        runs = first + step * torch.arange(len(self.rows))[:, None] + torch.arange(num_blocks)
        fits = step >= num_blocks and first + step * len(self.rows) <= self.cache.keys.shape[2]
        return (first, step) if fits and torch.equal(runs, self.tables.cpu().long()) else None

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (B, G, T, E) and return all of them, (B, G, S, E)."""
        self.store(layer, key, value)
        return self.gather(self.cache.keys[layer]), self.gather(self.cache.values[layer])

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's new keys and values (B, G, T, E) into the cache."""
        blocks, offsets = self.places
        for pool, new in ((self.cache.keys[layer], key), (self.cache.values[layer], value)):
            pool.permute(1, 2, 0, 3)[blocks, offsets] = new.transpose(1, 2)  # (B, T, G, E)

    def gather(self, blocks: Tensor) -> Tensor:
        """The first S positions of each row (B, G, S, E), from one layer's blocks (G, N, P, E)."""
        num_blocks = self.tables.shape[1]
        if self.spacing:
            first, step = self.spacing
            rows = blocks[:, first : first + step * len(self.rows)].unflatten(1, (-1, step))[:, :, :num_blocks]
        else:
            rows = blocks[:, self.tables.long()]  # (G, B, K, P, E)
        return rows.transpose(0, 1).flatten(2, 3)[:, :, : self.num_keys]


class StaticPagedKVView(KVView):
    """One new token per row, at `positions` (B, 1) on the device; the operations do not depend on the rows' lengths.

    tables (B, K) contains at least the blocks that the rows fill. Queries see keys up to their own position, so they
    never see the old content of a block after a row's end.
    """

    def __init__(self, cache: PagedKVCache, tables: Tensor, positions: Tensor):
        super().__init__()
        self.cache, self.tables, self.positions = cache, tables.long(), positions
        self.num_keys = tables.shape[1] * POSITIONS_PER_BLOCK
        self.slots = torch.arange(self.num_keys, device=positions.device)[None]  # (1, S)
        self.places = self.tables.gather(1, positions // POSITIONS_PER_BLOCK), positions % POSITIONS_PER_BLOCK

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (B, G, 1, E) and return all of them, (B, G, S, E)."""
        filled = []
        for pool, new in ((self.cache.keys[layer], key), (self.cache.values[layer], value)):
            pool.permute(1, 2, 0, 3)[self.places] = new.transpose(1, 2)
            filled.append(pool[:, self.tables].transpose(0, 1).flatten(2, 3))
        return filled[0], filled[1]

    def make_mask(self, window: int | None) -> Mask:
        return Mask(1, self.num_keys, window=window, query_positions=self.positions, key_positions=self.slots)
