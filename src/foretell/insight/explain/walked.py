"""What a walk through a pass found: layers, heads, answers and losses as data."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.insight.explain.recording import Recording
from foretell.language_model import TokenProbability

SMALL_WIDTH = 8  # up to here the vectors themselves are shown


@dataclass(frozen=True)
class Sight:
    """The key that a head weighs most, from the last position."""

    head: int
    key: int
    weight: float


@dataclass(frozen=True)
class LayerWalk:
    """One layer at the last position. Sizes are lengths of vectors: the stream that comes in, the updates to it."""

    layer: int
    stream: float
    attention: float
    feedforward: float | None
    sights: tuple[Sight, ...]
    answers: list[TokenProbability]


@dataclass(frozen=True)
class Walked:
    """A pass over a text. `losses` are in nats, one for each token that has one before it."""

    recording: Recording
    layers: tuple[LayerWalk, ...]
    stream: float  # the length of the stream's last vector after the last layer
    answers: list[TokenProbability]
    losses: tuple[float, ...]

    @property
    def loss(self) -> float | None:
        """The mean loss of the text; a text of one token has none."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    @property
    def is_small(self) -> bool:
        return self.recording.config.width <= SMALL_WIDTH
