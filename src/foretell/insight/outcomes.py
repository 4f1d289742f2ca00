"""The labels or the number that a tuned model predicts, for its page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.model.decoder import Decoder


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The C outputs of a linear layer that reads vectors of a text: logits of labels, or a number (C = 1).

    outputs: computes the outputs (C,) from the streams after the last norm (T, D) of the pass and all `others`, or the
    pass's share if given only the pass. kind: `text`; `orders`: the outputs of the sequences add up; `choice`: each
    sequence has one output, and the pass has output `first`, whose weight is `weight`; `tags`: each token has outputs
    (T, C), and a word has the outputs of its last token.
    """

    names: tuple[str, ...]  # names of the outputs
    weight: Tensor  # (C, D): its products with the vector, times `scale`, plus `constant`, are the outputs
    reads_mean: bool  # True: the vector is the mean over all positions; False: the last position's
    outputs: Callable[..., Tensor]
    words: Callable[[], list[int]]  # the index of each token's word, -1 for a special token
    scale: float = 1.0
    constant: float = 0.0
    kind: str = "text"
    others: tuple[list[int], ...] = ()  # further token sequences that the head reads
    first: int = 0
    example: str = "text"  # the word for the input in headings

    def to_json(self) -> dict[str, Any]:
        names = ("names", "kind", "first", "example", "constant")
        return {**{name: getattr(self, name) for name in names}, "readsMean": self.reads_mean}

    @torch.no_grad()
    def read(self, decoder: Decoder, hidden: Tensor) -> Tensor:
        """The outputs, given the stream (T, D) of the pass; runs the passes over `others`."""
        rows = [decoder.hidden(torch.tensor([ids], device=hidden.device))[0] for ids in self.others]
        return self.outputs(hidden, *rows)

    def positions(self, length: int, at: int | str = 0) -> slice:
        """The positions whose vectors an output reads; `at`: the position of the output, for tags only."""
        if self.kind == "tags":
            return slice(int(at), int(at) + 1)
        return slice(0 if self.reads_mean else length - 1, length)
