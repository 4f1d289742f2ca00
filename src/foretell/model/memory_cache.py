"""Key/value views for encoder-decoders: whole sentences, an encoder's output, and a decoder that reads it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from foretell.model.cache import FreshKVView, KVCache, KVView
from foretell.model.mask import EMPTY, Mask


class FullKVView(FreshKVView):
    """An encoder's pass over whole rows: every token sees all tokens of its document, but no padding.

    The first lengths[b] tokens of row b are real and the rest is padding; None means no padding. positions and
    document_ids are as in `FreshKVView`.
    """

    def __init__(
        self,
        ids: Tensor,
        lengths: list[int] | None = None,
        positions: Tensor | None = None,
        document_ids: Tensor | None = None,
    ):
        super().__init__(ids, positions)
        if document_ids is None:
            self._masks[None] = full_mask(self.positions, ids.shape[1], lengths)
        else:
            self._masks[None] = document_mask(document_ids, document_ids)


class MemoryKVView(KVView):
    """Encoder-decoder attention: keys and values come from an encoder's output, queries from the decoder.

    memory (B, S, D) is projected once per layer and kept, so one view serves every step of a generation. lengths is as
    in `FullKVView`. rotation: cosines and sines (B or 1, 1, S, E) for the keys, if positions rotate them. Vaswani et
    al. 2017, section 3.2.3.
    """

    rotation: tuple[Tensor, Tensor] | None = None

    def __init__(self, memory: Tensor, lengths: list[int] | None = None, positions: Tensor | None = None):
        super().__init__()
        B, S, _ = memory.shape
        self.memory, self.lengths = memory, lengths
        # The positions of the memory, not of the queries
        self.positions = torch.arange(S, device=memory.device)[None] if positions is None else positions
        self._projected: dict[int, tuple[Tensor, Tensor]] = {}
        self._mask = full_mask(self.positions, 1, lengths)
        self.origins = list(range(B))  # the original row that each row is a copy of

    def keep_to_documents(self, queries: Tensor, keys: Tensor) -> None:
        """Let queries with these document ids (B, T) see only the keys (B, S) of their document.

        Padding sees the first document: without any key its output would be NaN, which no mask hides.
        """
        self._mask = document_mask(queries.clamp(min=0), keys)

    def of_rows(self, origins: list[int]) -> MemoryKVView:
        """The memory for these original rows, which must all be present."""
        other = copy.copy(self)
        other.keep_rows([self.origins.index(origin) for origin in origins])
        return other

    def keep_rows(self, rows: list[int]) -> None:
        """Drop all rows but these, which become rows 0, 1, ...; a row that is named twice is copied."""
        origins = [self.origins[row] for row in rows]
        if origins == self.origins:  # beam search swaps rows that are copies of each other
            return
        assert len(self.positions) == 1, "rows of several documents are not generated"
        self.origins, self.memory = origins, self.memory[rows]
        self._projected = {layer: (key[rows], value[rows]) for layer, (key, value) in self._projected.items()}
        if self.lengths is not None:
            self.lengths = [self.lengths[row] for row in rows]
            self._mask = full_mask(self.positions, 1, self.lengths)

    def source(self, layer: int, x: Tensor) -> Tensor:
        """The memory at a layer's first call, then an empty tensor (B, 0, D)."""
        return self.memory[:, :0] if layer in self._projected else self.memory

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (B, G, S, E) of the memory, as projected by this layer's first call."""
        return self._projected.setdefault(layer, (key, value))

    def mask(self, window: int | None) -> Mask:
        """Every query sees the whole memory without padding, or only its document."""
        return self._mask


def document_mask(queries: Tensor, keys: Tensor) -> Mask:
    """The mask of queries with document ids (B, T) that see all keys (B, S) of their document."""
    return Mask(
        queries.shape[1],
        keys.shape[1],
        causal=False,
        query_positions=torch.zeros_like(queries),  # unused without causality and window
        key_positions=torch.zeros_like(keys),
        query_document_ids=queries,
        key_document_ids=keys,
    )


def full_mask(positions: Tensor, num_queries: int, lengths: list[int] | None) -> Mask:
    """The mask of queries that see the first lengths[b] keys of row b, of all at positions (B or 1, S)."""
    num_keys = positions.shape[1]
    mask = Mask(num_queries, num_keys, causal=False, device=positions.device)
    if lengths is None or min(lengths, default=num_keys) == num_keys:
        return mask
    is_real = positions < torch.tensor(lengths, device=positions.device)[:, None]  # (B, S)
    queries = torch.zeros(len(lengths), num_queries, dtype=torch.long, device=positions.device)
    return dataclasses.replace(mask, query_positions=queries, key_positions=torch.where(is_real, positions, EMPTY))


class ConditionedKVView(KVView):
    """A pass of a decoder with a memory: the view of the decoder's tokens and the view of the memory."""

    def __init__(self, own: KVView, memory: MemoryKVView):
        super().__init__()
        self.own, self.memory, self.positions = own, memory, own.positions

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.own.extend(layer, key, value)

    def mask(self, window: int | None) -> Mask:
        return self.own.mask(window)


class ConditionedKVCache(KVCache):
    """A cache of a decoder that reads a memory, with the memory's keys and values."""

    def __init__(self, memory: MemoryKVView, *arguments: Any):
        super().__init__(*arguments)
        self.memory = memory

    def make_room(self, counts: list[int]) -> ConditionedKVView:
        return ConditionedKVView(super().make_room(counts), self.memory)

    def keep_rows(self, rows: list[int]) -> None:
        super().keep_rows(rows)
        self.memory.keep_rows(rows)
