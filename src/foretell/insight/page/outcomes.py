"""The labels or the number that a tuned model predicts, for its page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The C outputs of a linear layer that reads one vector of a text: logits of labels, or with C = 1 a number.

    names: of the outputs. weight: (C, D), whose products with the vector, times `scale`, plus `constant`, are the
    outputs. reads_mean: the vector is the mean over all positions, else the last one's. outputs: computes them from the
    stream after the last norm, (T, D) to (C,). words: the word that each token of a text belongs to, -1 for a special
    token.
    """

    names: tuple[str, ...]
    weight: Tensor
    reads_mean: bool
    outputs: Callable[[Tensor], Tensor]
    words: Callable[[str], list[int]]
    scale: float = 1.0
    constant: float = 0.0
    remark: str = ""  # about what the outputs leave out

    def to_json(self) -> dict[str, Any]:
        return {"names": self.names, "readsMean": self.reads_mean, "constant": self.constant, "remark": self.remark}

    def positions(self, length: int) -> slice:
        """The positions whose vectors it reads."""
        return slice(0 if self.reads_mean else length - 1, length)
