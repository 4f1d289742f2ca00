"""Dropout (Srivastava et al. 2014) whose masks are a function of (seed, step, global row, module path, element)."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretell.model.description import PASSED_BACK, Description
from foretell.numerics.randomness import random_words, signed, stream_key
from foretell.system.device import to_device

ELEMENTS_PER_WORD = 4  # 16 random bits per element, so the rate is exact within 2**-17
HALF_RANGE = 1 << 15


@dataclass
class DropoutRNG(threading.local):
    """The counters that the masks of a forward pass depend on, shared by all dropout modules of a model.

    Each thread has its own counters, so several threads can run passes of one model at the same time.
    """

    seed: int = 0
    step: int = 0
    first_row: int = 0  # the micro-batch holds global rows first_row, first_row + row_stride, ...
    row_stride: int = 1
    sequences: int = 1  # per row, each with its own masks: sequence k of row r counts as row r * sequences + k

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the counters of this thread; `threading.local` objects cannot be copied without this."""
        return DropoutRNG, tuple(vars(self).values())

    def global_rows(self, count: int) -> list[int]:
        """The global row of each of `count` sequences of the pass."""
        rows = (divmod(index, self.sequences) for index in range(count))
        return [(self.first_row + row * self.row_stride) * self.sequences + sequence for row, sequence in rows]


class Dropout(nn.Module):
    """Zeroes elements with probability `rate` while training and scales the rest by 1 / (1 - rate).

    keys: the random streams (B,) for the rows of the next pass, set in advance to hide their computation from torch's
    compiler. None: each pass computes them.
    """

    description = Description(formula="identity", backward=PASSED_BACK, saved=("inner",))
    operation = "identity"
    keys: Tensor | None = None

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.bind(DropoutRNG(), path="")

    def bind(self, dropout_rng: DropoutRNG, path: str) -> None:
        """Set the shared counters and the path of this module, which names its random stream."""
        self.dropout_rng, self.path = dropout_rng, path

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scaled_mask(x) if self.training else x

    def scaled_mask(self, x: Tensor) -> Tensor:
        """0 or 1 / (1 - rate) for every element of x (B, ...), in its dtype."""
        margins = self.margins(self.row_keys(x), x[0].numel()).view(x.shape)
        return margins.add_(0.5).clamp_(0, 1).to(x.dtype).mul_(1 / (1 - self.rate))

    def margins(self, keys: Tensor, count: int, first: int = 0) -> Tensor:
        """Numbers (B, count), at least 0.5 for elements that are kept and at most -0.5 for dropped ones.

        They cover `count` elements of every row, starting at `first`. Comparing the bits would take five times as long
        as this subtraction.
        """
        first_word, skipped = divmod(first, ELEMENTS_PER_WORD)
        words = random_words(keys, -(-(skipped + count) // ELEMENTS_PER_WORD), first_word)
        bits = words.view(torch.int16)[:, skipped : skipped + count]
        threshold = min(round(self.rate * 2 * HALF_RANGE) - HALF_RANGE, HALF_RANGE - 1)  # what 16 bits can hold
        return bits.float().sub_(threshold - 0.5)

    def row_keys(self, x: Tensor) -> Tensor:
        """The key of the random stream of each row of x (B, ...), (B,)."""
        return self.make_keys(len(x), x.device) if self.keys is None else self.keys

    def make_keys(self, rows: int, device: torch.device) -> Tensor:
        """The key of the random stream of each row, (B,), from the counters."""
        rng = self.dropout_rng
        keys = [signed(stream_key(rng.seed, rng.step, self.path, row)) for row in rng.global_rows(rows)]
        return to_device(torch.tensor(keys), device)


def make_dropout(rate: float) -> nn.Module:
    """A dropout module, or the identity for a rate of 0."""
    return Dropout(rate) if rate > 0 else nn.Identity()


class DropoutHost(nn.Module):
    """Base class of whole models, with the counters that all dropout modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout_rng = DropoutRNG()

    def bind_dropout(self) -> None:
        """Give every dropout module its path and the shared counters; call it when modules have changed."""
        for path, module in self.named_modules():
            if isinstance(module, Dropout):
                module.bind(self.dropout_rng, path)
