"""What every question to a model about a text begins and ends with: its ids, a place in it, the likeliest tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from foretell.errors import UsageError
from foretell.runs.saved_model import LanguageModel


@dataclass(frozen=True)
class TokenProbability:
    """One token of the vocabulary with its probability; logprob in nats."""

    id: int
    text: str
    probability: float
    logprob: float


def likeliest(model: LanguageModel, logprobs: Tensor, top: int) -> list[TokenProbability]:
    """The `top` largest of one distribution (V,), largest first."""
    best = logprobs.topk(min(top, len(logprobs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [TokenProbability(token, model.tokenizer.text_of(token), math.exp(value), value) for token, value in pairs]


def encode_some(model: LanguageModel, text: str) -> list[int]:
    """What the model reads for a text, which must fit its context; an empty one needs a tokenizer's start token."""
    ids = model.tokenizer.encode_input(text)
    if not ids:
        raise UsageError("the text is empty; give at least one character")
    model.decoder.check_length(len(ids))
    return ids


def check_position(place: int, length: int) -> int:
    """A position from 0, given one that may count from the end."""
    if not -length <= place < length:
        raise UsageError(f"position {place} is outside the text, which has {length} tokens (0 to {length - 1})")
    return place % length
