"""Tokens of a training batch with their losses, as `--show-batch` shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayedToken:
    """A token of a row. `loss` is its -log P in nats, None if it was not a target: the first of a row or
    document, or one that is masked.

    `document` counts documents within the row if they do not see each other; else it is None.
    """

    id: int
    text: str
    loss: float | None
    document: int | None


@dataclass(frozen=True)
class ReplayedRow:
    """A row; `start` is its first position in the tokens of the training text, 0 where rows are not parts of one."""

    start: int
    tokens: list[ReplayedToken]

    @property
    def loss(self) -> float | None:
        """The mean over the targets."""
        losses = [token.loss for token in self.tokens if token.loss is not None]
        return sum(losses) / len(losses) if losses else None
