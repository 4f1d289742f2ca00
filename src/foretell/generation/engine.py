"""Forward passes over a paged cache: whole prompts, parts of them, or one token per sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.generation.recorded_step import StepRecorder
from foretell.generation.sequence import Sequence, table_of
from foretell.model.decoder import Decoder
from foretell.model.kernels import is_compiling, is_small, prepare_for_generation
from foretell.model.paged_cache import POSITIONS_PER_BLOCK, PagedKVCache, PagedKVView, PagedRow
from foretell.model.surgery import copy_with_own_hooks
from foretell.system.device import memory_of

MEMORY_SHARE = 4  # the cache takes at most 1 / MEMORY_SHARE of the machine's memory by default


class Engine:
    """A decoder with a cache of `num_blocks` blocks.

    expected_tokens: the number of tokens to generate per sequence; None means many. The weights are packed for
    generation, unless a small model generates few. The packed form is kept with the decoder, so the next engine does
    not pack again. The first pass of a small model uses its plain modules, so the first token does not wait for numba.
    """

    def __init__(self, decoder: Decoder, num_blocks: int, expected_tokens: int | None = None):
        self.decoder, self.expected_tokens = decoder, expected_tokens
        self.cache = PagedKVCache(decoder.config, num_blocks, decoder.dtype, decoder.device)
        self._prepared: dict[Decoder, Decoder | None] = {}  # None: one pass was made with the plain modules
        self._was_compiling = False  # True if kernels were being compiled when the last form was prepared
        self._recorders: dict[Decoder, StepRecorder] = {}
        self.reading: list[tuple[Sequence, int]] = []  # during a pass: each row's sequence and number of new tokens

    @torch.inference_mode()
    def read(self, sequences: list[Sequence], tokens: list[list[int]], num_logits: list[int]) -> Iterator[Tensor]:
        """Read new tokens of sequences that use the same form of the model, after their cached tokens.

        Yields the logits (r, V) after the last num_logits[b] tokens of each sequence, in order; r rows at a time, to
        bound the memory.
        """
        decoder = self._prepare(sequences)
        counts, source_rows = [len(new) for new in tokens], [sequence.row for sequence in sequences]
        pairs = zip(sequences, counts, strict=True)
        rows = [PagedRow(table_of(sequence).blocks, sequence.num_cached, count) for sequence, count in pairs]
        ids = padded(tokens)  # (B, T)
        is_step = max(counts) == min(num_logits) == 1
        step = self._recorder(decoder).step_for(rows, source_rows) if is_step else None
        self.reading = list(zip(sequences, counts, strict=True))
        try:
            if step is not None:
                logits = [step(ids)]
            else:
                view = decoder.join(PagedKVView(self.cache, rows), source_rows)
                logits = decoder.last_logits(ids, view, counts, num_logits)
        finally:
            self.reading = []
        yield from logits

    def _prepare(self, sequences: list[Sequence]) -> Decoder:
        """The fastest form of the sequences' decoder on this machine; it shares weights and hooks."""
        decoder = sequences[0].decoder or self.decoder
        if decoder not in self._prepared and is_small(decoder):
            self._prepared[decoder] = None
            return decoder
        if self._was_compiling and any(each.num_cached == 0 for each in sequences) and not is_compiling():
            self._prepared = dict.fromkeys(self._prepared)  # missing kernels may have been compiled by now
        form = self._prepared.get(decoder)
        if form is None:
            form = self._prepared[decoder] = prepare_for_generation(decoder, self.expected_tokens)
            self._was_compiling = is_compiling()
        return form

    @property
    def is_compiling(self) -> bool:
        """True while missing kernels are compiled in the background."""
        return is_compiling()

    def watched_copy(self) -> Decoder:
        """A copy of the prepared decoder for the hooks of one sequence; packed weights are shared.

        It is kept until a sequence with this decoder ends in the scheduler, or until `forget`.
        """
        watched = copy_with_own_hooks(self._prepared.get(self.decoder) or self.decoder)
        self._prepared[watched] = watched
        return watched

    def forget(self, decoder: Decoder) -> None:
        """Free what was prepared for another form of the model."""
        self._prepared.pop(decoder, None)
        self._recorders.pop(decoder, None)

    def _recorder(self, decoder: Decoder) -> StepRecorder:
        if decoder not in self._recorders:
            self._recorders[decoder] = StepRecorder(decoder, self.cache, self.expected_tokens)
        return self._recorders[decoder]


def padded(rows: list[list[int]]) -> Tensor:
    """Rows of ids as one tensor (B, T); shorter rows are padded with 0."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])


def bytes_per_block(decoder: Decoder) -> int:
    """The bytes of one block of the cache: keys and values of all layers."""
    config = decoder.config
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_width * POSITIONS_PER_BLOCK
    return numbers * decoder.dtype.itemsize


def affordable_blocks(decoder: Decoder, memory: int | None = None, num_schedulers: int = 1) -> int:
    """The number of blocks per scheduler in `memory` bytes; None: in a share of the device's memory.

    Raises UsageError if `memory` is larger than the machine's.
    """
    installed = memory_of(decoder.device)
    memory = installed // MEMORY_SHARE if memory is None else memory
    if memory > installed:
        raise UsageError(f"a cache of {memory / 2**30:,.1f} GiB does not fit the {installed / 2**30:,.1f} GiB here")
    return memory // num_schedulers // bytes_per_block(decoder)
