"""A news sentence, what the source prints about it, and what a model predicts for it.

The model is GPT-2 if its weights are given, otherwise the small one that foretell includes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretell.inference.completion import generate
from foretell.inference.query import NextTokens, next_tokens, resolve_position
from foretell.language_model import LanguageModel
from foretell.loading import load

# Printed in the source
SENTENCE = (
    "The shares of IonQ Inc. and other companies linked to quantum computing tumbled in premarket trading on "
    "Wednesday, after Nvidia Corp. Chief Executive Officer Jensen Huang said that “very useful” quantum computers are "
    "likely decades away"
)
IDS = [
    *(464, 7303, 286, 36404, 48, 3457, 13, 290, 584, 2706, 6692, 284, 14821, 14492, 256, 11137, 287, 662, 10728, 7313),
    *(319, 3583, 11, 706, 27699, 11421, 13, 5953, 10390, 10391, 32623, 31663, 531, 326, 564, 250, 548, 4465, 447, 251),
    *(14821, 9061, 389, 1884, 4647, 1497),
]
PIECES = [
    *("The", "Ġshares", "Ġof", "ĠIon", "Q", "ĠInc", ".", "Ġand"),
    *("Ġother", "Ġcompanies", "Ġlinked", "Ġto", "Ġquantum", "Ġcomputing", "Ġt", "umbled"),
    *("Ġin", "Ġpre", "market", "Ġtrading", "Ġon", "ĠWednesday", ",", "Ġafter"),
    *("ĠNvidia", "ĠCorp", ".", "ĠChief", "ĠExecutive", "ĠOfficer", "ĠJensen", "ĠHuang"),
    *("Ġsaid", "Ġthat", "ĠâĢ", "ľ", "very", "Ġuseful", "âĢ", "Ŀ"),
    *("Ġquantum", "Ġcomputers", "Ġare", "Ġlikely", "Ġdecades", "Ġaway"),
]
VOCABULARY_SIZE = 50_257

# Position -> (the text that its logits follow, the most likely next tokens, four digits). The source prints this text
# one token short: `[:11]` and `[:13]` leave out the tokens at positions 11 and 13
PREDICTIONS = {
    11: (
        "The shares of IonQ Inc. and other companies linked to",
        {" the": 0.3923, " its": 0.0377, " Ion": 0.0170, " a": 0.0169, " it": 0.0168},
    ),
    13: (
        "The shares of IonQ Inc. and other companies linked to quantum computing",
        {" are": 0.1440, " have": 0.1428, " were": 0.0638, ",": 0.0579, " and": 0.0379},
    ),
}

INCLUDED_MODEL = "primer"
TOP, CONTINUATION_TOKENS = 5, 12


@dataclass(frozen=True)
class Gpt2Values:
    """Every value that the lesson shows and checks."""

    model: LanguageModel
    is_gpt2: bool
    ids: list[int]
    positions: list[int]  # whose predictions are shown
    predictions: list[NextTokens]  # one for each position
    same_context: float  # largest difference to the predictions after the same tokens alone
    shorter_context: float  # and to those after one token fewer
    continuation: str


def compute_gpt2(weights: str | None, at: int | None) -> Gpt2Values:
    """The predictions of GPT-2 in the directory `weights`, or of the included model; `at` adds a position."""
    model = load(weights or INCLUDED_MODEL, dtype="float32")
    ids = model.encode_fitting(SENTENCE)
    positions = shown_positions(model, ids, at)
    predictions = next_tokens(model, SENTENCE, TOP, positions)
    first_context = PREDICTIONS[min(PREDICTIONS)][0]
    continuation = generate(model, first_context, CONTINUATION_TOKENS, temperature=0, top_p=1.0).text
    same, shorter = (largest_difference(model, ids, positions, missing) for missing in (0, 1))
    return Gpt2Values(model, weights is not None, ids, positions, predictions, same, shorter, continuation)


def shown_positions(model: LanguageModel, ids: list[int], at: int | None) -> list[int]:
    """The last positions of the two printed contexts in this model's tokens, and `at` if it is given."""
    ends = [len(model.tokenizer.encode(context)) - 1 for context, _ in PREDICTIONS.values()]
    return [*ends, resolve_position(at, len(ids))] if at is not None else ends


@torch.inference_mode()
def largest_difference(model: LanguageModel, ids: list[int], positions: list[int], missing: int) -> float:
    """Largest difference of a probability between the whole sentence and its first tokens alone, at the positions.

    `missing` tokens are left off the end of those first tokens. A difference of 0 with none missing means that the
    logits at position p follow the tokens 0 to p, with p included.
    """
    whole = model.decoder(torch.tensor([ids], device=model.device))[0].double().softmax(-1)  # (T, V)
    differences = []
    for position in (position for position in positions if position >= missing):
        prefix = torch.tensor([ids[: position + 1 - missing]], device=model.device)
        alone = model.decoder(prefix)[0, -1].double().softmax(-1)
        differences.append(float((whole[position] - alone).abs().max()))
    return max(differences)
