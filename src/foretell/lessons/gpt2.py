"""GPT-2: the tokens of a news sentence, and what a model predicts for it.

The model is GPT-2 if its weights are given, otherwise the small one that foretell includes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from foretell.inference.completion import generate
from foretell.inference.query import NextTokens, next_tokens, resolve_position
from foretell.language_model import LanguageModel
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, printed, same
from foretell.loading import load
from foretell.text.tokenizer_json import piece_bytes, readable
from foretell.typesetting.document import Paragraph, Part, Table, bar

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
P_OF_THE = PREDICTIONS[11][1][" the"]

INCLUDED_MODEL = "primer"
TOP, CONTINUATION_TOKENS = 5, 12
# float32 sums over rows of another length run in another order
SAME_CONTEXT, SHORTER_CONTEXT = 1e-4, 5e-2
COLUMNS = 3
QUOTE = (34, 35)  # the two tokens of the opening quote


class Gpt2Lesson(Lesson):
    """46 tokens and two predictions.

    weights: a directory with GPT-2; without it the included model is used. at: one more position to show.
    """

    name = "gpt2"

    def __init__(self, weights: str | None = None, at: int | None = None):
        self.is_gpt2 = weights is not None
        self.model = model = load(weights or INCLUDED_MODEL, dtype="float32")
        self.ids = model.encode_fitting(SENTENCE)
        ends = [len(model.tokenizer.encode(context)) - 1 for context, _ in PREDICTIONS.values()]
        self.positions = ends if at is None else [*ends, resolve_position(at, len(self.ids))]
        self.predictions = next_tokens(model, SENTENCE, TOP, self.positions)  # one for each position
        # The largest differences from the predictions after the same tokens alone, and after one token fewer
        self.same_context, self.shorter_context = (
            largest_difference(model, self.ids, self.positions, missing) for missing in (0, 1)
        )
        self.first_context = PREDICTIONS[min(PREDICTIONS)][0]
        self.continuation = generate(model, self.first_context, CONTINUATION_TOKENS, temperature=0, top_p=1.0).text

    @property
    def skipped(self) -> str:
        return "" if self.is_gpt2 else "GPT-2's weights are not here; --weights DIR names a folder with them"

    def shown(self) -> dict[str, Any]:
        computed = dict(zip(self.positions, self.predictions, strict=True))
        known = {position: computed.pop(position, None) if self.is_gpt2 else None for position in PREDICTIONS}
        return {
            "sentence": SENTENCE,
            "num_tokens": len(IDS),
            "tokens": in_columns([(t, IDS[t], PIECES[t]) for t in range(len(IDS))]),
            "quote": [
                (t, PIECES[t], piece_bytes(PIECES[t]).hex(" "), repr(readable(piece_bytes(PIECES[t])))) for t in QUOTE
            ],
            "contexts": [
                (t, f"0 to {t}", "… " + " ".join(words[-3:]), f"[:{t}]", f"… {' '.join(words[-3:-1])}")
                for t, words in ((t, context.split()) for t, (context, _) in PREDICTIONS.items())
            ],
            "is_gpt2": self.is_gpt2,
            "printed_predictions": [part for prediction in known.items() for part in printed_parts(*prediction)],
            "other_predictions": [part for prediction in computed.items() for part in prediction_parts(*prediction)],
            "included_model": INCLUDED_MODEL,
            "num_own_tokens": len(self.ids),
            "same_context": f"{self.same_context:.1e}",
            "shorter_context": f"{self.shorter_context:.2f}",
            "model": self.model.name if self.is_gpt2 else INCLUDED_MODEL,
            "first_context": self.first_context,
            "continuation": " ".join(self.continuation.split()),
        }

    def checks(self) -> list[FigureCheck]:
        return [*check_pieces(), *self.check_context(), *(self.check_gpt2() if self.is_gpt2 else [])]

    def solutions(self) -> list[Exercise]:
        sizes = [len(piece_bytes(PIECES[t])) for t in QUOTE]
        return [
            Exercise(len(IDS[:31]), "30 + 1", "the positions 0 to 30"),
            Exercise(sum(sizes), " + ".join(map(str, sizes)), "20 e2 80 and 9c"),
            Exercise(-math.log(P_OF_THE), f"-ln({P_OF_THE})", "section 4"),
        ]

    def check_context(self) -> list[FigureCheck]:
        """The logits at a position follow the tokens up to and including it, not one token fewer."""
        return [
            below("difference from what follows the same tokens alone", SAME_CONTEXT, self.same_context),
            above("difference from what follows one token fewer", SHORTER_CONTEXT, self.shorter_context),
        ]

    def check_gpt2(self) -> list[FigureCheck]:
        """The figures that the source prints for GPT-2."""
        computed = dict(zip(self.positions, self.predictions, strict=True))
        return [
            same("ids", IDS, self.ids),
            same("logits at a position", VOCABULARY_SIZE, self.model.decoder.config.vocab_size),
            *(check for position in PREDICTIONS for check in check_prediction(position, computed.get(position))),
        ]


def check_pieces() -> list[FigureCheck]:
    """The printed pieces are the sentence, byte for byte."""
    return [
        same("tokens", 46, len(IDS)),
        same("pieces", len(IDS), len(PIECES)),
        same("the pieces' bytes are the sentence", SENTENCE, b"".join(map(piece_bytes, PIECES)).decode()),
        same("the pieces of a curly quote", "“", b"".join(map(piece_bytes, PIECES[34:36])).decode().strip()),
    ]


def check_prediction(position: int, prediction: NextTokens | None) -> list[FigureCheck]:
    """The context and the five most likely tokens after one position."""
    context, expected = PREDICTIONS[position]
    tokens = prediction.tokens if prediction is not None else []
    probabilities = [token.probability for token in tokens]
    return [
        same(f"context of position {position}", context, prediction.context if prediction is not None else None),
        same(f"most likely after position {position}", list(expected), [token.text for token in tokens]),
        printed(f"probabilities after position {position}", list(expected.values()), probabilities),
    ]


def in_columns(cells: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Groups of cells as lines of `COLUMNS` groups, read column by column; the last ones may be empty."""
    lines = -(-len(cells) // COLUMNS)
    padded = cells + [("",) * len(cells[0])] * COLUMNS
    return [[cell for column in range(COLUMNS) for cell in padded[column * lines + line]] for line in range(lines)]


def printed_parts(position: int, prediction: NextTokens | None) -> list[Part]:
    """The printed probabilities after a position, and the computed ones of the same tokens if they are known."""
    context, expected = PREDICTIONS[position]
    computed = {token.text: f"{token.probability:.4f}" for token in prediction.tokens} if prediction else {}
    rows = [
        (
            repr(text),
            f"{probability:.4f}",
            *([computed.get(text, "less")] if prediction else []),
            bar(probability / max(expected.values())),
        )
        for text, probability in expected.items()
    ]
    header = ("next", "P, as printed", *(["computed"] if prediction else []), "")
    return [Paragraph(f"After position {position}: {ending(context)}"), Table(header, rows)]


def prediction_parts(position: int, prediction: NextTokens) -> list[Part]:
    """The most likely tokens after a position, as computed."""
    computed = {token.text: token.probability for token in prediction.tokens}
    rows = [
        (repr(text), f"{probability:.4f}", bar(probability / max(computed.values())))
        for text, probability in computed.items()
    ]
    return [Paragraph(f"After position {position}: {ending(prediction.context)}"), Table(("next", "P", ""), rows)]


def ending(context: str, width: int = 52) -> str:
    return context if len(context) <= width else "…" + context[-width:].partition(" ")[2]


@torch.inference_mode()
def largest_difference(model: LanguageModel, ids: list[int], positions: list[int], missing: int) -> float:
    """Largest difference of a probability at the positions, between the whole sentence and its first tokens alone.

    `missing` tokens are left off the end of those first tokens. A difference of 0 with none missing means that the
    logits at position p depend on tokens 0 to p, including p.
    """
    whole = model.decoder(torch.tensor([ids], device=model.device))[0].double().softmax(-1)  # (T, V)
    differences = []
    for position in (position for position in positions if position >= missing):
        prefix = torch.tensor([ids[: position + 1 - missing]], device=model.device)
        alone = model.decoder(prefix)[0, -1].double().softmax(-1)
        differences.append(float((whole[position] - alone).abs().max()))
    return max(differences)
