"""Decoding steps captured as CUDA graphs: one launch per step instead of one per operation.

With few rows a GPU finishes the operations of a step faster than the host can launch them. A graph repeats the recorded
operations with the same addresses, sizes and constants, so a captured step must not depend on the rows and their
length: `StaticPagedKVView` has their blocks and positions on the device. Capturing takes as long as a few steps, so the
numbers of rows and blocks are rounded up, and a captured step is used again for any rows that fit.

A graph calls no hooks. Instead, the tensors of the residual stream are kept, and each replay passes them to the hooks
that only read them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from foretell.generation.block_table import blocks_for
from foretell.model.cache import KVView
from foretell.model.decoder import Decoder
from foretell.model.paged_cache import PADDING_BLOCK, PagedKVCache, PagedRow, StaticPagedKVView, filled_table
from foretell.system.device import to_device

MIN_TOKENS = 16  # capturing takes about as long as a few steps
STEPS_KEPT = 16  # captured steps per form of the model

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]

logger = logging.getLogger(__name__)


class ReadingHook(ABC):
    """A forward hook of the embedding or a block that changes nothing; captured steps call it too.

    With any other hook, no step is captured or replayed.
    """

    @abstractmethod
    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Read the output. The next replay overwrites it, so keep only copies."""


class StepRecorder:
    """Captured steps of one form of a model, the most recently used last; off for short generations.

    They share one memory pool: no two run at once, and the results of a step are copied before the next one runs.
    """

    def __init__(self, decoder: Decoder, cache: PagedKVCache, expected_tokens: int | None):
        self.decoder, self.cache = decoder, cache
        self.is_on = can_record(decoder, expected_tokens)
        self.steps: OrderedDict[tuple[int, tuple[int | None, ...]], RecordedStep] = OrderedDict()

    @cached_property
    def record(self) -> Record:
        return graph_recorder()

    def step_for(self, rows: list[PagedRow], source_rows: list[int | None]) -> RecordedStep | None:
        """A captured step for these rows, or None if capturing is off. A failure is logged and turns capturing off."""
        if not self.is_on or is_changed(self.decoder):
            return None
        most = blocks_for(self.decoder.config.context_length)
        num_blocks = min(most, rounded_up(max(len(row.table) for row in rows)))
        padding = source_rows[:1] * (rounded_up(len(rows)) - len(rows))
        key = num_blocks, (*source_rows, *padding)
        try:
            if key not in self.steps:
                self.steps[key] = RecordedStep(self.decoder, self.cache, *key, self.record)
        except RuntimeError as error:
            self.is_on = False
            self.steps.clear()
            logger.warning(f"cannot capture decoding as a CUDA graph: {' '.join(str(error).split())[:200]}")
            return None
        self.steps.move_to_end(key)
        if len(self.steps) > STEPS_KEPT:
            self.steps.popitem(last=False)
        self.steps[key].use_for(rows)
        return self.steps[key]


def rounded_up(count: int) -> int:
    """A number of rows, or of blocks per row, rounded up to 1, 2, 4 or a multiple of 8."""
    return -(-count // 8) * 8 if count > 4 else 1 << (count - 1).bit_length()


class RecordedStep:
    """One step (one token per row) for any rows, up to B rows of up to K blocks.

    Missing rows are padding: they read and write the padding block, which no row reads.
    source_rows: (B,) the rows of the source that the step reads.
    """

    view: KVView  # kept, because the graph reads its source, which the decoder drops when it generates other rows

    @torch.inference_mode()
    def __init__(
        self,
        decoder: Decoder,
        cache: PagedKVCache,
        num_blocks: int,
        source_rows: tuple[int | None, ...],
        record: Record,
    ):
        self.decoder, self.cache, self.source_rows = decoder, cache, list(source_rows)
        self.tables: list[list[int]] = []  # the tables of the rows, without padding
        self.starts: list[int] = []
        B, device = len(source_rows), cache.keys.device
        self.ids, self.positions = (torch.zeros(B, 1, dtype=torch.long, device=device) for _ in range(2))
        self.blocks = torch.full((B, num_blocks), PADDING_BLOCK, device=device)  # capturing writes to no other block
        self.stream: dict[nn.Module, tuple[tuple[Any, ...], Tensor]] = {}  # inputs and outputs, which replays overwrite
        with ExitStack() as hooks:
            for module in stream_modules(decoder):
                hooks.callback(module.register_forward_hook(self.keep).remove)
            self.replay, self.logits = record(self.step)

    def keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self.stream[module] = inputs, output

    @torch.inference_mode()
    def use_for(self, rows: list[PagedRow]) -> None:
        """Copy blocks and positions of rows to the device, unless they are already there after the last step."""
        starts, tables = [row.start for row in rows], [row.table for row in rows]
        if starts == self.starts and tables == self.tables:
            return
        self.starts, self.tables = starts, [list(table) for table in tables]
        B, K = self.blocks.shape
        padding = B - len(rows)
        blocks = [filled_table(table, K) for table in [*tables, *[[PADDING_BLOCK]] * padding]]
        self.blocks.copy_(to_device(torch.tensor(blocks), self.blocks.device))
        self.positions[:, 0].copy_(to_device(torch.tensor([*starts, *[0] * padding]), self.blocks.device))

    def step(self) -> Tensor:
        """The captured operations: the logits (B, V) after `ids`, which are at `positions`."""
        self.view = self.decoder.join(StaticPagedKVView(self.cache, self.blocks, self.positions), self.source_rows)
        return self.decoder.head(self.decoder.hidden(self.ids, self.view)[:, -1])

    @torch.inference_mode()
    def __call__(self, ids: Tensor) -> Tensor:
        """Read the newest token of each row, ids (B, 1); returns the logits (B, V) for the next token."""
        count = len(ids)
        self.ids[:count].copy_(to_device(ids, self.ids.device))
        self.replay()
        for module, call in self.stream.items():
            for hook in module._forward_hooks.values():
                hook(module, *call)
        self.positions[:count].add_(1)
        self.starts = [start + 1 for start in self.starts]
        return self.logits[:count].clone()  # the next replay overwrites them


def can_record(decoder: Decoder, expected_tokens: int | None) -> bool:
    """True on a GPU if enough steps follow and no module inside a block has hooks, which a graph would not call."""
    is_short = expected_tokens is not None and expected_tokens < MIN_TOKENS
    return decoder.device.type == "cuda" and not is_short and not has_inner_hooks(decoder)


def has_inner_hooks(decoder: Decoder) -> bool:
    stream = stream_modules(decoder)
    hooks = (each._forward_pre_hooks or (each not in stream and each._forward_hooks) for each in decoder.modules())
    return any(hooks)


def is_changed(decoder: Decoder) -> bool:
    """True while a hook may change the residual stream."""
    hooks = (hook for module in stream_modules(decoder) for hook in module._forward_hooks.values())
    return not all(isinstance(hook, ReadingHook) for hook in hooks)


def stream_modules(decoder: Decoder) -> list[nn.Module]:
    """The modules whose outputs are the residual stream."""
    return [decoder.embed, *decoder.trunk.blocks]


def graph_recorder() -> Record:
    """Make a function that runs and captures a step, and returns the replay and the tensor that it writes."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # one: each stream keeps memory for matmuls

    def record(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # run once first: libraries then allocate and choose kernels, a graph must not
            step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            output = step()
        return graph.replay, output

    return record
