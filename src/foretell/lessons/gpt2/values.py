"""The sentence read by a model: by GPT-2 where its weights are named, by the model that ships otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretell.inference.completion import generate
from foretell.inference.query import NextTokens, next_tokens
from foretell.language_model import LanguageModel, resolve_position
from foretell.lessons.gpt2.printed import FOLLOWING, SENTENCE
from foretell.loading import load

SHIPPED = "primer"
TOP, CONTINUATION = 5, 12


@dataclass(frozen=True)
class Reading:
    """What a model makes of the sentence."""

    model: LanguageModel
    is_gpt2: bool
    ids: list[int]
    places: list[int]  # positions whose distributions are shown
    following: list[NextTokens]  # one for each place
    apart: float  # how far those are from what comes after the same tokens alone, at most
    apart_short: float  # and from what comes after one token fewer
    continuation: str


def read(weights: str | None, at: int | None) -> Reading:
    """The sentence under a model; `at` names one position more."""
    model = load(weights or SHIPPED, dtype="float32")
    ids = model.encode_fitting(SENTENCE)
    places = shown_places(model, ids, at)
    following = next_tokens(model, SENTENCE, TOP, places)
    first = FOLLOWING[min(FOLLOWING)][0]
    continuation = generate(model, first, CONTINUATION, temperature=0, top_p=1.0).text
    apart, apart_short = (largest_difference(model, ids, places, missing) for missing in (0, 1))
    return Reading(model, weights is not None, ids, places, following, apart, apart_short, continuation)


def shown_places(model: LanguageModel, ids: list[int], at: int | None) -> list[int]:
    """Where the two printed contexts end in this model's tokens, and the position that was asked for."""
    ends = [len(model.tokenizer.encode(context)) - 1 for context, _ in FOLLOWING.values()]
    return [*ends, resolve_position(at, len(ids))] if at is not None else ends


@torch.inference_mode()
def largest_difference(model: LanguageModel, ids: list[int], places: list[int], missing: int) -> float:
    """Largest difference of probabilities: at a place of the whole sentence, and after its tokens alone less `missing`.

    0 missing means that the logits at position p follow the tokens 0 to p, p itself included.
    """
    whole = model.decoder(torch.tensor([ids], device=model.device))[0].double().softmax(-1)  # (T, V)
    differences = []
    for place in (place for place in places if place >= missing):
        prefix = torch.tensor([ids[: place + 1 - missing]], device=model.device)
        alone = model.decoder(prefix)[0, -1].double().softmax(-1)
        differences.append(float((whole[place] - alone).abs().max()))
    return max(differences)
