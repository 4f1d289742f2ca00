"""The logit lens at every place of the stream, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretell.insight.early import logits_after
from foretell.model.decoder import Decoder

TOP = 5


@dataclass(frozen=True)
class Lens:
    """What each place (P) of the stream says at each position (T), and what it makes of the token that follows.

    ids, probabilities and logits are (P, T, K), the likeliest first. following and ranks (rank 0 is the likeliest) are
    (P, T) and about the text's next token; the last position has none, and holds 0 and -1.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    logits: np.ndarray
    following: np.ndarray
    ranks: np.ndarray


def look_through(decoder: Decoder, streams: Sequence[Tensor], next_ids: Tensor, vocab_size: int) -> Lens:
    """Streams (T, D), one for each place; next_ids (T-1,) or (T,) are the tokens that follow the first positions."""
    places = [_read_place(decoder, stream, next_ids, vocab_size) for stream in streams]
    return Lens(*(np.stack(parts) for parts in zip(*places, strict=True)))


def _read_place(decoder: Decoder, stream: Tensor, next_ids: Tensor, vocab_size: int) -> list[np.ndarray]:
    logits = logits_after(decoder, stream)[:, :vocab_size].float()  # (T, V)
    T, K = len(logits), min(TOP, vocab_size)
    logprobs = logits.log_softmax(-1)
    top = logits.topk(K)  # (T, K)
    following, ranks = torch.zeros(T), torch.full((T,), -1)
    count = len(next_ids)
    said = logits[:count].gather(1, next_ids[:, None])  # (count, 1)
    following[:count] = logprobs[:count].gather(1, next_ids[:, None])[:, 0].exp().cpu()
    ranks[:count] = (logits[:count] > said).sum(-1).cpu()
    parts = (top.indices, logprobs.gather(1, top.indices).exp(), top.values, following, ranks)
    return [part.cpu().numpy() for part in parts]
