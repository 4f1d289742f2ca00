"""A decoding step recorded as a CUDA graph: one launch per token instead of one per operation.

With few rows a GPU finishes the operations of a step faster than the host can launch them. A graph repeats what was
recorded with the same addresses, sizes and numbers, so a step that is recorded must not depend on how long rows are:
`StaticPagedKVView` has their positions on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from foretell.device import to_device
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import PADDING_BLOCK, PagedKVCache, PagedRow, StaticPagedKVView

MIN_TOKENS = 16  # recording takes about as long as a few steps

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]

logger = logging.getLogger(__name__)


class StepRecorder:
    """Records the steps of one form of a model, again whenever other rows take part, where that pays."""

    def __init__(self, decoder: Decoder, cache: PagedKVCache, expected_tokens: int | None):
        self.decoder, self.cache = decoder, cache
        self.is_on = pays(decoder, expected_tokens)
        self.recorded: RecordedStep | None = None

    def step_for(self, rows: list[PagedRow], source_rows: list[int | None]) -> RecordedStep | None:
        """The recorded step of these rows, None where none is recorded. A failure is logged and ends the recording."""
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
        self.blocks = to_device(filled_up(self.tables), device)  # (B, K)
        self.ids = torch.zeros(len(rows), 1, dtype=torch.long, device=device)
        self.positions = to_device(torch.tensor(self.starts)[:, None], device)  # (B, 1)
        self.replay, self.logits = record(self.step)

    def continues(self, rows: list[PagedRow]) -> bool:
        """True if these are the rows that were recorded, where the last step left them."""
        return self.starts == [row.start for row in rows] and self.tables == [row.table for row in rows]

    def step(self) -> Tensor:
        """What is recorded: the logits (B, V) after `ids`, each row's at its place in `positions`."""
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


def filled_up(tables: list[list[int]]) -> Tensor:
    """Tables of blocks as one tensor (B, K); shorter ones are filled up with the padding block."""
    length = max(map(len, tables))
    return torch.tensor([[*table, *[PADDING_BLOCK] * (length - len(table))] for table in tables])


def pays(decoder: Decoder, expected_tokens: int | None) -> bool:
    """True on a GPU, if there are enough steps to come and nobody watches the modules, which a graph does not call."""
    is_watched = any(module._forward_hooks or module._forward_pre_hooks for module in decoder.modules())
    is_short = expected_tokens is not None and expected_tokens < MIN_TOKENS
    return decoder.device.type == "cuda" and not is_short and not is_watched


def record_graph(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Run a step once, then record it; returns what repeats it, and where its output then appears."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries allocate and choose kernels in their first run, which a graph must not
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = step()
    return graph.replay, output
