"""What a model expects next, and how much each token of a text surprised it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from foretell.errors import UsageError
from foretell.runs.reading import TokenProbability, check_position, encode_some, likeliest
from foretell.runs.saved_model import LanguageModel


@dataclass(frozen=True)
class NextTokens:
    """The likeliest tokens after a context, which is the text that the distribution really follows."""

    context: str
    tokens: list[TokenProbability]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ScoredToken:
    """A token of a text and its log-probability in nats given all before it; None where nothing is before it."""

    id: int
    text: str
    logprob: float | None


@dataclass(frozen=True)
class Score:
    """How likely a text is. The sum leaves the first token out: without a start token the model gives it none."""

    tokens: list[ScoredToken]
    logprob: float
    perplexity: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.inference_mode()
def next_tokens(model: LanguageModel, text: str, top: int = 5, at: list[int] | None = None) -> list[NextTokens]:
    """The `top` likeliest tokens after the text, or after each of the token positions `at` (0 is the first token).

    Negative positions count from the end. Raises ContextLengthError for a longer text than the model can see.
    """
    if top < 1:
        raise UsageError(f"top must be 1 or more, not {top}")
    ids = encode_some(model, text)
    positions = [check_position(place, len(ids)) for place in (at or [-1])]
    hidden = model.decoder.hidden(torch.tensor([ids], device=model.device))[0, positions]  # (P, D)
    logprobs = model.decoder.head(hidden)[:, : model.tokenizer.vocab_size].double().log_softmax(-1)  # (P, V)
    contexts = [model.tokenizer.decode(ids[: place + 1]) for place in positions]
    return [NextTokens(context, likeliest(model, row, top)) for context, row in zip(contexts, logprobs, strict=True)]


@torch.inference_mode()
def score(model: LanguageModel, text: str) -> Score:
    """The log-probability of every token of a text given those before it."""
    ids = encode_some(model, text)
    logits = model.decoder(torch.tensor([ids], device=model.device))[0, :-1, : model.tokenizer.vocab_size]  # (T-1, V)
    logprobs = logits.double().log_softmax(-1).gather(1, torch.tensor(ids[1:], device=model.device)[:, None])[:, 0]
    values: list[float | None] = [None, *logprobs.tolist()]
    total = float(logprobs.sum())
    tokens = [
        ScoredToken(token, model.tokenizer.text_of(token), value) for token, value in zip(ids, values, strict=True)
    ]
    return Score(tokens, total, math.exp(-total / (len(ids) - 1)) if len(ids) > 1 else None)
