"""A decoding step recorded as a CUDA graph: one launch per token instead of one per operation.

With few rows a GPU finishes the operations of a step faster than the host can launch them. A graph repeats what was
recorded with the same addresses, sizes and numbers, so a step that is recorded must not depend on how long rows are:
`StaticKVView` has their positions on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from foretell.device import to_device
from foretell.generation.sequence import Sequence
from foretell.model.cache import KVCache
from foretell.model.decoder import Decoder

MIN_TOKENS = 16  # recording takes about as long as a few steps

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]

logger = logging.getLogger(__name__)


class StepRecorder:
    """Records the steps of a generation, again for every new cache, where that pays."""

    def __init__(self, decoder: Decoder, max_tokens: int | None):
        self.decoder = decoder
        self.is_on = pays(decoder, max_tokens)
        self.recorded: RecordedStep | None = None

    def step_for(self, cache: KVCache) -> RecordedStep | None:
        """The recorded step of a cache; None where none is recorded. A failure is logged, and ends the recording."""
        if self.is_on and (self.recorded is None or self.recorded.keys is not cache.keys):
            try:
                self.recorded = RecordedStep(self.decoder, cache, record_graph)
            except RuntimeError as error:
                self.is_on, self.recorded = False, None
                logger.warning(f"steps are not recorded as a CUDA graph: {' '.join(str(error).split())[:200]}")
        return self.recorded


class RecordedStep:
    """One step of all rows of a cache. It is out of date when `cache.keys` has become another tensor."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, cache: KVCache, record: Record):
        device = cache.keys.device
        self.decoder, self.cache, self.keys = decoder, cache, cache.keys
        self.ids = torch.zeros(len(cache.lengths), 1, dtype=torch.long, device=device)
        self.positions = to_device(torch.tensor(cache.lengths)[:, None], device)  # (B, 1)
        self.replay, self.logits = record(self.step)

    def step(self) -> Tensor:
        """What is recorded: the logits (B, V) after `ids`, each row's at its place in `positions`."""
        kv = self.cache.step_view(self.positions)
        return self.decoder.head(self.decoder.hidden(self.ids, kv)[:, -1])

    @torch.inference_mode()
    def __call__(self, sequences: list[Sequence]) -> Tensor:
        """Read the newest token of each sequence; returns the logits (B, V) of the next token."""
        newest = torch.tensor([[sequence.generated[-1]] for sequence in sequences])
        self.ids.copy_(to_device(newest, self.ids.device))
        self.replay()
        self.positions.add_(1)
        self.cache.make_room([1] * len(sequences))
        return self.logits.clone()  # the next replay writes to the same place


def pays(decoder: Decoder, max_tokens: int | None) -> bool:
    """True on a GPU, if there are enough steps to come and nobody watches the modules, which a graph does not call."""
    is_watched = any(module._forward_hooks or module._forward_pre_hooks for module in decoder.modules())
    is_short = max_tokens is not None and max_tokens < MIN_TOKENS
    return decoder.embed.token.weight.device.type == "cuda" and not is_short and not is_watched


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
