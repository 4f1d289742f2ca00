"""What the trained toy computes on the way to its answer."""

from __future__ import annotations

import numpy as np
import torch

from foretell.insight.trace import Trace
from foretell.lessons.practice import Rows
from foretell.lessons.toy import printed
from foretell.lessons.toy.run import rows
from foretell.model.decoder import Decoder
from foretell.model.position import SinusoidalPosition
from foretell.textbook.embedding import sinusoidal_encoding
from foretell.textbook.vectors import Matrix

ATTENTION = "trunk.blocks.0.attention.core.weights"


def position_vectors(count: int) -> Matrix:
    """The first positions' vectors, (positions, width), as the model makes them."""
    return SinusoidalPosition(printed.WIDTH)(torch.arange(count)).numpy()


def position_vectors_by_textbook(count: int) -> Matrix:
    """The same by the formula as it is printed."""
    return np.stack([sinusoidal_encoding(t, printed.WIDTH) for t in range(count)])


@torch.inference_mode()
def attention_of_answer(decoder: Decoder) -> Matrix:
    """Who looks at whom in the first prompt and its answer, (T, T)."""
    with Trace(decoder, ATTENTION) as trace:
        decoder(Rows(rows()).batch(0).ids)
    return trace[ATTENTION][0, 0].numpy()


@torch.inference_mode()
def predictions(decoder: Decoder) -> list[tuple[int, int, float]]:
    """(word read, likeliest next word, its probability) along the first prompt and its answer."""
    ids = Rows(rows()).batch(0).ids
    best = decoder(ids)[0].softmax(-1).max(-1)
    return list(zip(ids[0].tolist(), best.indices.tolist(), best.values.tolist(), strict=True))
