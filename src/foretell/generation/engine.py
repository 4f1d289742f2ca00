"""Runs forward passes of sequences over a paged cache: whole prompts, parts of them, or a token each."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.device import memory_of, to_device
from foretell.errors import UsageError
from foretell.generation.recorded_step import StepRecorder
from foretell.generation.sequence import Sequence, table_of
from foretell.model.decoder import Decoder
from foretell.model.kernels.fast_decoder import with_fast_kernels
from foretell.model.paged_cache import POSITIONS_PER_BLOCK, PagedKVCache, PagedKVView, PagedRow

MEMORY_SHARE = 4  # the cache takes at most 1 / MEMORY_SHARE of the machine's memory unless it is told otherwise


class Engine:
    """A decoder with a cache of `num_blocks` blocks.

    expected_tokens: how many tokens are about to be generated per sequence, which decides whether it pays to prepare
    the weights; None means many. Preparing is done when a form of the model is first used, and takes memory until the
    engine is dropped.
    """

    def __init__(self, decoder: Decoder, num_blocks: int, expected_tokens: int | None = None):
        self.decoder, self.expected_tokens = decoder, expected_tokens
        self.cache = PagedKVCache(decoder.config, num_blocks, decoder.dtype, decoder.device)
        self._prepared: dict[Decoder, Decoder] = {}
        self._recorders: dict[Decoder, StepRecorder] = {}

    @torch.inference_mode()
    def read(self, sequences: list[Sequence], tokens: list[list[int]], num_logits: list[int]) -> Tensor:
        """Read new tokens of sequences that use one form of the model, after what the cache holds of each.

        Returns the logits (R, V) after the last num_logits[b] tokens of each, one sequence after the other.
        """
        decoder = self._prepare(sequences[0].decoder or self.decoder)
        counts, source_rows = [len(new) for new in tokens], [sequence.row for sequence in sequences]
        pairs = zip(sequences, counts, strict=True)
        rows = [PagedRow(table_of(sequence).blocks, sequence.num_cached, count) for sequence, count in pairs]
        ids = padded(tokens)  # (B, T)
        if max(counts) == 1 and (step := self._recorder(decoder).step_for(rows, source_rows)):
            return step(ids)
        view = decoder.join(PagedKVView(self.cache, rows), source_rows)
        hidden = decoder.hidden(to_device(ids, self.cache.keys.device), view)  # (B, T, D)
        return decoder.head(chosen(hidden, counts, num_logits))

    def _prepare(self, decoder: Decoder) -> Decoder:
        """The form of a decoder that is fastest here; it shares weights and hooks."""
        if decoder not in self._prepared:
            self._prepared[decoder] = with_fast_kernels(decoder, self.expected_tokens)
        return self._prepared[decoder]

    def _recorder(self, decoder: Decoder) -> StepRecorder:
        """What records the steps of a form of the model, where that pays."""
        if decoder not in self._recorders:
            self._recorders[decoder] = StepRecorder(decoder, self.cache, self.expected_tokens)
        return self._recorders[decoder]


def padded(tokens: list[list[int]]) -> Tensor:
    """Rows of ids as one tensor (B, T), filled up with zeros."""
    length = max(map(len, tokens))
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in tokens])


def chosen(hidden: Tensor, counts: list[int], num_logits: list[int]) -> Tensor:
    """The hidden states (R, D) of the last num_logits[b] of the counts[b] tokens of each row, from (B, T, D)."""
    if len(counts) * hidden.shape[1] == sum(num_logits):
        return hidden.flatten(0, 1)
    picks = [
        (row, position)
        for row, (count, wanted) in enumerate(zip(counts, num_logits, strict=True))
        for position in range(count - wanted, count)
    ]
    rows, positions = torch.tensor(picks, dtype=torch.long, device=hidden.device).reshape(-1, 2).T
    return hidden[rows, positions]


def bytes_per_block(decoder: Decoder) -> int:
    """Bytes of one block of the cache, keys and values of all layers."""
    config = decoder.config
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_width * POSITIONS_PER_BLOCK
    return numbers * decoder.dtype.itemsize


def affordable_blocks(decoder: Decoder, memory: int | None = None) -> int:
    """The number of blocks in `memory` bytes; None: in a share of the device's memory.

    Raises UsageError where the cache would not fit the machine, or not hold one block.
    """
    installed = memory_of(decoder.device)
    memory = installed // MEMORY_SHARE if memory is None else memory
    if memory > installed:
        raise UsageError(f"a cache of {memory / 2**30:,.1f} GiB does not fit the {installed / 2**30:,.1f} GiB here")
    return memory // bytes_per_block(decoder)
