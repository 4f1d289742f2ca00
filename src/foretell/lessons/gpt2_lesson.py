"""The lesson on GPT-2: the tokens of a sentence, and the predictions after them."""

from __future__ import annotations

from collections.abc import Mapping

from foretell.inference.query import NextTokens
from foretell.lessons import gpt2_values as figures
from foretell.lessons.gpt2_values import IDS, PIECES, SENTENCE, Gpt2Values, compute_gpt2
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, lesson_document, printed, same
from foretell.text.tokenizer_json import piece_bytes, readable
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table

# Rows of another length are summed in another order, in float32
SAME_CONTEXT, SHORTER_CONTEXT = 1e-4, 5e-2
COLUMNS = 3
QUOTE = (34, 35)  # the two tokens of the opening quote
BAR_WIDTH = 24
GENERATION = (
    '$ foretell generate gpt2 "The shares of IonQ Inc." --temperature 0',
    '$ foretell generate gpt2 "The shares of IonQ Inc." --top-p 0.9 --seed 1',
)
FINE_TUNING = (
    "$ foretell finetune gpt2 news.txt --task text",
    "$ foretell finetune gpt2 reviews.csv --task classify",
    "$ foretell predict runs/reviews new-reviews.csv",
)


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
        parts = [tokens(), quotes(), contexts(), predictions(self.values), continuation(self.values), fine_tuning()]
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
    return gpt2_predictions(values) if values.is_gpt2 else without_weights(values)


def gpt2_predictions(values: Gpt2Values) -> DocumentSection:
    """The printed probabilities next to those of the named weights, and any further position."""
    shown = dict(zip(values.positions, values.predictions, strict=True))
    others = [(position, prediction) for position, prediction in shown.items() if position not in figures.PREDICTIONS]
    return DocumentSection(
        "4. What GPT-2 predicts",
        [
            *(part for position in figures.PREDICTIONS for part in printed_parts(position, shown.get(position))),
            *(part for position, prediction in others for part in prediction_parts(position, prediction)),
            same_context(values),
        ],
    )


def without_weights(values: Gpt2Values) -> DocumentSection:
    """The printed probabilities as data, and the included model's own."""
    shown = zip(values.positions, values.predictions, strict=True)
    return DocumentSection(
        "4. What GPT-2 predicts",
        [
            Paragraph(
                "These are the probabilities that the source prints. They are its data and not checked here: GPT-2's "
                "weights are not part of foretell. With --weights DIR, a directory that holds them, this page shows "
                "them next to the computed ones, and --check compares the two."
            ),
            *(part for position in figures.PREDICTIONS for part in printed_parts(position, None)),
            Paragraph(
                f"foretell's own small model, {figures.INCLUDED_MODEL}, reads the sentence too. It was trained on "
                f"Python's reference, not on news, and it needs {len(values.ids)} of its own tokens for the sentence. "
                "What this page says about contexts holds for it as well:"
            ),
            *(part for position, prediction in shown for part in prediction_parts(position, prediction)),
            same_context(values),
        ],
    )


def printed_parts(position: int, prediction: NextTokens | None) -> list[Part]:
    """The printed probabilities after a position, and the computed ones of the same tokens if they are known."""
    context, expected = figures.PREDICTIONS[position]
    title = Paragraph(f"After position {position}: {ending(context)}")
    if prediction is None:
        rows = [
            (repr(text), f"{probability:.4f}", bar(probability, expected)) for text, probability in expected.items()
        ]
        return [title, Table(("next", "P, as printed", ""), rows)]
    computed = {token.text: token.probability for token in prediction.tokens}
    rows = [
        (
            repr(text),
            f"{probability:.4f}",
            f"{computed[text]:.4f}" if text in computed else "less",
            bar(probability, expected),
        )
        for text, probability in expected.items()
    ]
    return [title, Table(("next", "P, as printed", "computed", ""), rows)]


def prediction_parts(position: int, prediction: NextTokens) -> list[Part]:
    """The most likely tokens after a position, as computed."""
    computed = {token.text: token.probability for token in prediction.tokens}
    rows = [(repr(text), f"{probability:.4f}", bar(probability, computed)) for text, probability in computed.items()]
    return [Paragraph(f"After position {position}: {ending(prediction.context)}"), Table(("next", "P", ""), rows)]


def bar(probability: float, of: Mapping[str, float]) -> str:
    """A bar; the most likely token's is the longest."""
    return "█" * max(1, round(BAR_WIDTH * probability / max(of.values())))


def same_context(values: Gpt2Values) -> Paragraph:
    return Paragraph(
        "To test which text a prediction follows, the same tokens were also read alone, without the rest of the "
        f"sentence. The probabilities differ by {values.same_context:.1e} at most. With one token fewer they differ by "
        f"{values.shorter_context:.2f}. --at N shows any other position."
    )


def ending(context: str, width: int = 52) -> str:
    return context if len(context) <= width else "…" + context[-width:].partition(" ")[2]


def continuation(values: Gpt2Values) -> DocumentSection:
    context = figures.PREDICTIONS[min(figures.PREDICTIONS)][0]
    return DocumentSection(
        "5. Generating text",
        [
            Paragraph(
                "The most likely token is appended to the context, and the model reads again. Text is generated by "
                f"repeating this. {values.model.name if values.is_gpt2 else figures.INCLUDED_MODEL} continues:"
            ),
            Paragraph(f"{context} … {' '.join(values.continuation.split())}"),
            Paragraph(
                "The source has a heading for this and no text yet. As a command, greedy or with a draw; gpt2 is the "
                "directory with the weights:"
            ),
            Table(("",), [(line,) for line in GENERATION], monospace=True),
        ],
    )


def fine_tuning() -> DocumentSection:
    return DocumentSection(
        "6. Fine-tuning",
        [
            Paragraph(
                "The same holds for fine-tuning: the source has the heading. It continues the training of a model that "
                "can already write, on a few texts of another kind, or for a task with labels. As commands:"
            ),
            Table(("",), [(line,) for line in FINE_TUNING], monospace=True),
        ],
    )
