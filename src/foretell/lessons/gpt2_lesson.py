"""The lesson on GPT-2: the tokens of a sentence, and the predictions after them."""

from __future__ import annotations

from foretell.inference.query import NextTokens
from foretell.lessons import gpt2_values as figures
from foretell.lessons.gpt2_values import IDS, PIECES, SENTENCE, Gpt2Values, compute_gpt2
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, lesson_document, printed, same
from foretell.text.byte_level import piece_bytes, readable
from foretell.typesetting.document import DocumentSection, Paragraph, Table

# Rows of another length are summed in another order, in float32
SAME_CONTEXT, SHORTER_CONTEXT = 1e-4, 5e-2
COLUMNS = 3
QUOTE = (34, 35)  # the two tokens of the opening quote
BAR_WIDTH = 24


class Gpt2Lesson(Lesson):
    """46 tokens and two predictions. `weights` is a directory with GPT-2; without it the included model is used."""

    def __init__(self, weights: str | None = None, at: int | None = None):
        self.values = compute_gpt2(weights, at)

    @property
    def skipped(self) -> str:
        if self.values.is_gpt2:
            return ""
        return "GPT-2's weights are not here; --weights DIR names a folder with them"

    def document(self) -> DocumentSection:
        parts = [tokens(), quotes(), contexts(), predictions(self.values), continuation(self.values)]
        return lesson_document("gpt2", [Paragraph(SENTENCE), *parts])

    def checks(self) -> list[FigureCheck]:
        return [
            *check_pieces(),
            *check_context(self.values),
            *(check_gpt2(self.values) if self.values.is_gpt2 else []),
        ]


def check_pieces() -> list[FigureCheck]:
    """The printed pieces are the sentence, byte for byte."""
    return [
        same("tokens", 46, len(IDS)),
        same("pieces", len(IDS), len(PIECES)),
        same("the pieces' bytes are the sentence", SENTENCE, b"".join(map(piece_bytes, PIECES)).decode()),
        same("the pieces of a curly quote", "“", b"".join(map(piece_bytes, PIECES[34:36])).decode().strip()),
    ]


def check_context(values: Gpt2Values) -> list[FigureCheck]:
    """The logits at a position follow the tokens up to and including it, not one token fewer."""
    return [
        below("difference from what follows the same tokens alone", SAME_CONTEXT, values.same_context),
        above("difference from what follows one token fewer", SHORTER_CONTEXT, values.shorter_context),
    ]


def check_gpt2(values: Gpt2Values) -> list[FigureCheck]:
    """The figures that the source prints for GPT-2."""
    shown = dict(zip(values.positions, values.predictions, strict=True))
    return [
        same("ids", IDS, values.ids),
        same("logits at a position", figures.VOCABULARY_SIZE, values.model.decoder.config.vocab_size),
        *(check for position in figures.PREDICTIONS for check in check_prediction(position, shown.get(position))),
    ]


def check_prediction(position: int, prediction: NextTokens | None) -> list[FigureCheck]:
    """The context and the five most likely tokens after one position."""
    context, expected = figures.PREDICTIONS[position]
    tokens = prediction.tokens if prediction is not None else []
    probabilities = [token.probability for token in tokens]
    return [
        same(f"context of position {position}", context, prediction.context if prediction is not None else None),
        same(f"most likely after position {position}", list(expected), [token.text for token in tokens]),
        printed(f"probabilities after position {position}", list(expected.values()), probabilities),
    ]


def tokens() -> DocumentSection:
    rows = -(-len(IDS) // COLUMNS)
    cells = [(str(t), str(IDS[t]), PIECES[t]) for t in range(len(IDS))] + [("", "", "")] * COLUMNS
    lines = [[cell for column in range(COLUMNS) for cell in cells[column * rows + line]] for line in range(rows)]
    return DocumentSection(
        f"1. {len(IDS)} tokens",
        [
            Paragraph(
                "GPT-2's vocabulary has 50,257 pieces of text. In a piece, Ġ is a space. The table shows each "
                "token's position, id and piece:"
            ),
            Table(("at", "id", "piece") * COLUMNS, lines),
        ],
    )


def quotes() -> DocumentSection:
    rows = [(str(t), PIECES[t], piece_bytes(PIECES[t]).hex(" "), repr(readable(piece_bytes(PIECES[t])))) for t in QUOTE]
    return DocumentSection(
        "2. Half a character",
        [
            Paragraph(
                "The vocabulary is made of bytes. A curly quote has three bytes, and here they belong to two tokens. "
                "Neither token is a character; only together they can be displayed. A program that prints text token "
                "by token has to wait for the second one."
            ),
            Table(("at", "piece", "bytes", "alone"), rows),
        ],
    )


def contexts() -> DocumentSection:
    rows = [
        (str(t), f"0 to {t}", "… " + " ".join(words[-3:]), f"[:{t}]", f"… {' '.join(words[-3:-1])}")
        for t, words in ((t, context.split()) for t, (context, _) in figures.PREDICTIONS.items())
    ]
    return DocumentSection(
        "3. The context of a prediction",
        [
            Paragraph(
                "The model computes 50,257 logits at every position. Those at position 11 follow the tokens 0 to 11, "
                'which are twelve tokens. "Decoder models - GPT" prints their context as [:11], but in Python that '
                "ends before token 11. The same happens at 13. So its figures are printed with a context that is one "
                "token too short:"
            ),
            Table(("at", "tokens read", "the context ends in", "printed as", "which ends in"), rows),
        ],
    )


def predictions(values: Gpt2Values) -> DocumentSection:
    name = "GPT-2" if values.is_gpt2 else figures.INCLUDED_MODEL
    shown = zip(values.positions, values.predictions, strict=True)
    note = [] if values.is_gpt2 else [Paragraph(without_weights(values))]
    return DocumentSection(
        f"4. What {name} predicts",
        [
            *note,
            *(part for position, prediction in shown for part in prediction_parts(position, prediction)),
            Paragraph(
                "To test this, the same tokens were also read alone, without the rest of the sentence. The "
                f"probabilities differ by {values.same_context:.1e} at most. With one token fewer they differ by "
                f"{values.shorter_context:.2f}. --at N shows any other position."
            ),
        ],
    )


def without_weights(values: Gpt2Values) -> str:
    return (
        "GPT-2's weights are not part of foretell. With --weights DIR, a directory that holds them, this page shows "
        "GPT-2's predictions, and --check compares them with the printed figures. Here foretell's own small model "
        "reads the sentence instead. It was trained on Python's reference, not on news, and it needs "
        f"{len(values.ids)} of its own tokens for the sentence. What this page says about contexts holds for it too."
    )


def prediction_parts(position: int, prediction: NextTokens) -> list[Paragraph | Table]:
    largest = prediction.tokens[0].probability
    rows = [
        (repr(token.text), f"{token.probability:.4f}", "█" * max(1, round(BAR_WIDTH * token.probability / largest)))
        for token in prediction.tokens
    ]
    return [Paragraph(f"After position {position}: {ending(prediction.context)}"), Table(("next", "P", ""), rows)]


def ending(context: str, width: int = 52) -> str:
    return context if len(context) <= width else "…" + context[-width:]


def continuation(values: Gpt2Values) -> DocumentSection:
    context = figures.PREDICTIONS[min(figures.PREDICTIONS)][0]
    return DocumentSection(
        "5. Generating text",
        [
            Paragraph(
                "The most likely token is appended to the context, and the model reads again. Text is generated by "
                "repeating this. foretell generate can also draw less likely tokens."
            ),
            Paragraph(f"{context} … {' '.join(values.continuation.split())}"),
        ],
    )
