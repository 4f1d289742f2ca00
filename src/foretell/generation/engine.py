"""Forward passes over a paged cache: whole prompts, parts of them, or one token per sequence.

On a GPU, decode steps are captured as a CUDA graph: one launch per token instead of one per operation. With few rows a
GPU finishes the operations of a step faster than the host can launch them. A graph repeats the recorded operations with
the same addresses, sizes and numbers, so a captured step must not depend on the length of the rows:
`StaticPagedKVView` has their positions on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from foretell.device import memory_of, to_device
from foretell.errors import UsageError
from foretell.generation.sequence import Sequence, table_of
from foretell.model.decoder import Decoder, logit_chunks
from foretell.model.kernels.fast_decoder import is_compiling, with_fast_kernels
from foretell.model.paged_cache import (
    PADDING_BLOCK,
    POSITIONS_PER_BLOCK,
    PagedKVCache,
    PagedKVView,
    PagedRow,
    StaticPagedKVView,
)
from foretell.model.surgery import copy_with_own_hooks

MEMORY_SHARE = 4  # the cache takes at most 1 / MEMORY_SHARE of the machine's memory by default
MIN_TOKENS = 16  # capturing takes about as long as a few steps

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]

logger = logging.getLogger(__name__)


class Engine:
    """A decoder with a cache of `num_blocks` blocks.

    expected_tokens: the number of tokens to be generated per sequence, which decides whether the weights are packed for
    the generation; None means many. The first pass of a form of the model uses its plain modules, so the first token
    does not wait for the packing, which happens in the second pass and takes memory until the engine is dropped.
    """

    def __init__(self, decoder: Decoder, num_blocks: int, expected_tokens: int | None = None):
        self.decoder, self.expected_tokens = decoder, expected_tokens
        self.cache = PagedKVCache(decoder.config, num_blocks, decoder.dtype, decoder.device)
        self._prepared: dict[Decoder, Decoder | None] = {}  # None: one pass was made, with the plain modules
        self._was_compiling = False  # when the last form was prepared
        self._recorders: dict[Decoder, StepRecorder] = {}
        self.reading: list[tuple[Sequence, int]] = []  # during a pass: the sequence of each row, and its new tokens

    @torch.inference_mode()
    def read(self, sequences: list[Sequence], tokens: list[list[int]], num_logits: list[int]) -> Iterator[Tensor]:
        """Read new tokens of sequences that use one form of the model, after the cached tokens of each.

        Yields the logits (r, V) after the last num_logits[b] tokens of each, one sequence after the other, r rows at a
        time so that memory stays bounded.
        """
        decoder = self._prepare(sequences)
        counts, source_rows = [len(new) for new in tokens], [sequence.row for sequence in sequences]
        pairs = zip(sequences, counts, strict=True)
        rows = [PagedRow(table_of(sequence).blocks, sequence.num_cached, count) for sequence, count in pairs]
        ids = padded(tokens, 0)  # (B, T)
        if max(counts) == 1 and (step := self._recorder(decoder).step_for(rows, source_rows)):
            yield step(ids)
            return
        view = decoder.join(PagedKVView(self.cache, rows), source_rows)
        self.reading = list(zip(sequences, counts, strict=True))
        try:
            hidden = decoder.hidden(to_device(ids, self.cache.keys.device), view)  # (B, T, D)
        finally:
            self.reading = []
        yield from logit_chunks(decoder, chosen(hidden, counts, num_logits))

    def _prepare(self, sequences: list[Sequence]) -> Decoder:
        """The form of the sequences' decoder that is fastest here; it shares weights and hooks."""
        decoder = sequences[0].decoder or self.decoder
        if decoder not in self._prepared:
            self._prepared[decoder] = None
            return decoder
        if self._was_compiling and any(each.num_cached == 0 for each in sequences) and not is_compiling():
            self._prepared = dict.fromkeys(self._prepared)  # kernels that were missing may be there now
        form = self._prepared[decoder]
        if form is None:
            form = self._prepared[decoder] = with_fast_kernels(decoder, self.expected_tokens)
            self._was_compiling = is_compiling()
        return form

    def watched_copy(self) -> Decoder:
        """A copy of the prepared decoder for the hooks of one sequence; packed weights are shared.

        It is kept until a sequence of the scheduler that has it as its decoder ends, or until `forget`.
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


def padded(rows: list[list[int]], value: int) -> Tensor:
    """Rows of numbers as one tensor (B, T); shorter rows are filled up with a value."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])


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


def affordable_blocks(decoder: Decoder, memory: int | None = None, num_schedulers: int = 1) -> int:
    """The number of blocks in `memory` bytes for several schedulers; None: in a share of the device's memory.

    Raises UsageError where the cache would not fit the machine, or not hold one block.
    """
    installed = memory_of(decoder.device)
    memory = installed // MEMORY_SHARE if memory is None else memory
    if memory > installed:
        raise UsageError(f"a cache of {memory / 2**30:,.1f} GiB does not fit the {installed / 2**30:,.1f} GiB here")
    return memory // num_schedulers // bytes_per_block(decoder)


class StepRecorder:
    """Captures decode steps of one form of a model, again when the set of rows changes; off for short generations."""

    def __init__(self, decoder: Decoder, cache: PagedKVCache, expected_tokens: int | None):
        self.decoder, self.cache = decoder, cache
        self.is_on = can_record(decoder, expected_tokens)
        self.recorded: RecordedStep | None = None

    def step_for(self, rows: list[PagedRow], source_rows: list[int | None]) -> RecordedStep | None:
        """The captured step of these rows, None where none is captured. A failure is logged and ends the capturing."""
        if self.is_on and (self.recorded is None or not self.recorded.continues(rows)):
            try:
                self.recorded = RecordedStep(self.decoder, self.cache, rows, source_rows, record_graph)
            except RuntimeError as error:
                self.is_on, self.recorded = False, None
                logger.warning(f"steps are not recorded as a CUDA graph: {' '.join(str(error).split())[:200]}")
        return self.recorded


class RecordedStep:
    """One step of some rows: a token each."""

    @torch.inference_mode()
    def __init__(
        self,
        decoder: Decoder,
        cache: PagedKVCache,
        rows: list[PagedRow],
        source_rows: list[int | None],
        record: Record,
    ):
        device = cache.keys.device
        self.decoder, self.cache, self.source_rows = decoder, cache, source_rows
        self.tables = [list(row.table) for row in rows]
        self.starts = [row.start for row in rows]
        self.blocks = to_device(padded(self.tables, PADDING_BLOCK), device)  # (B, K)
        self.ids = torch.zeros(len(rows), 1, dtype=torch.long, device=device)
        self.positions = to_device(torch.tensor(self.starts)[:, None], device)  # (B, 1)
        self.replay, self.logits = record(self.step)

    def continues(self, rows: list[PagedRow]) -> bool:
        """True if these are the captured rows, where the last step left them."""
        return self.starts == [row.start for row in rows] and self.tables == [row.table for row in rows]

    def step(self) -> Tensor:
        """The captured operations: the logits (B, V) after `ids`, each row's at its place in `positions`."""
        kv = self.decoder.join(StaticPagedKVView(self.cache, self.blocks, self.positions), self.source_rows)
        return self.decoder.head(self.decoder.hidden(self.ids, kv)[:, -1])

    @torch.inference_mode()
    def __call__(self, ids: Tensor) -> Tensor:
        """Read the newest token of each row, ids (B, 1); returns the logits (B, V) of the next token."""
        self.ids.copy_(to_device(ids, self.ids.device))
        self.replay()
        self.positions.add_(1)
        self.starts = [start + 1 for start in self.starts]
        return self.logits.clone()  # the next replay writes to the same place


def can_record(decoder: Decoder, expected_tokens: int | None) -> bool:
    """True on a GPU, if enough steps follow and no module has hooks, which a graph does not call."""
    has_hooks = any(module._forward_hooks or module._forward_pre_hooks for module in decoder.modules())
    is_short = expected_tokens is not None and expected_tokens < MIN_TOKENS
    return decoder.device.type == "cuda" and not is_short and not has_hooks


def record_graph(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Run a step once, then capture it; returns the replay, and the tensor that each replay writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries allocate and choose kernels in their first run, which a graph must not
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = step()
    return graph.replay, output
