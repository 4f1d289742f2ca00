"""What a model would answer: the likeliest tokens of a distribution, also after a layer that is not the last."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.insight.explain.recording import Recording


@dataclass(frozen=True)
class Answer:
    """A token and its probability."""

    id: int
    text: str
    probability: float


def answers_of(recording: Recording, logits: Tensor, top: int) -> tuple[Answer, ...]:
    """The `top` likeliest tokens of scores (V,), likeliest first."""
    probabilities = logits[: recording.vocabulary].cpu().double().softmax(-1)
    best = probabilities.topk(min(top, len(probabilities)))
    text_of = recording.model.tokenizer.text_of
    return tuple(
        Answer(token, text_of(token), value)
        for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


@torch.no_grad()
def logits_after(recording: Recording, stream: Tensor) -> Tensor:
    """What the last norm and the head make of a stream (..., D) as it is after some layer: the logit lens.

    nostalgebraist 2020, "interpreting GPT: the logit lens". After the last layer these are the model's own logits.
    """
    decoder = recording.model.decoder
    return decoder.head(decoder.trunk.norm(stream))
