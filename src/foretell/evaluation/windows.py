"""A long text in windows that overlap: every token is predicted once, with text before it.

With a context of C tokens and a stride of S, a window begins every S tokens, and of each but the first only the last S
predictions count. So each token is predicted from at least C - S tokens before it, but those at the text's beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from foretell.data.batch import Batch, make_batch, pad

TOKENS_AT_ONCE = 8192


@dataclass(frozen=True)
class Window:
    """Tokens to read, one more than the model sees at once, and the first of them that counts as a target."""

    ids: np.ndarray
    first: int

    @property
    def count(self) -> int:
        return len(self.ids) - self.first


def iter_windows(ids: np.ndarray, context_length: int, stride: int, first: int = 1) -> Iterator[Window]:
    """The windows of a text. `first` is the first token to predict, at least 1: nothing is before token 0."""
    start, counted = 0, first
    while counted < len(ids):
        window = ids[start : start + context_length + 1]
        if counted < start + len(window):  # else the window holds only what is given
            yield Window(window, counted - start)
            counted = start + len(window)
        start += stride


def window_batches(windows: list[Window], context_length: int) -> Iterator[Batch]:
    """The windows in batches of at most TOKENS_AT_ONCE tokens."""
    rows = max(1, TOKENS_AT_ONCE // context_length)
    for place in range(0, len(windows), rows):
        group = windows[place : place + rows]
        tokens, lengths = pad([window.ids.tolist() for window in group])
        batch = make_batch(tokens, lengths)
        columns = torch.arange(1, tokens.shape[1])
        counts = columns >= torch.tensor([[window.first] for window in group])  # (B, T)
        yield replace(batch, loss_weights=batch.loss_weights * counts)
