"""The walk through a sentence of news."""

from __future__ import annotations

from foretell.inference.query import NextTokens
from foretell.lessons.catalog import find_lesson
from foretell.lessons.gpt2.printed import FOLLOWING, IDS, PIECES, SENTENCE
from foretell.lessons.gpt2.values import Reading
from foretell.text.byte_level import piece_bytes, readable
from foretell.typesetting.document import Paragraph, Section, Table

COLUMNS = 3
QUOTE = (34, 35)  # the two tokens that hold the opening quote
BAR = 24


def make_page(reading: Reading) -> Section:
    """Tokens, positions, distributions, a continuation."""
    parts = [tokens(), quotes(), contexts(), following(reading), continuation(reading)]
    return Section(find_lesson("gpt2").title, [Paragraph(SENTENCE), *parts])


def tokens() -> Section:
    rows = -(-len(IDS) // COLUMNS)
    cells = [(str(place), str(IDS[place]), PIECES[place]) for place in range(len(IDS))] + [("", "", "")] * COLUMNS
    lines = [[cell for column in range(COLUMNS) for cell in cells[column * rows + line]] for line in range(rows)]
    return Section(
        f"1. {len(IDS)} tokens",
        [
            Paragraph(
                "GPT-2 knows 50,257 pieces of text. A piece begins with Ġ where a space stands before it. Position, id "
                "and piece:"
            ),
            Table(("at", "id", "piece") * COLUMNS, lines),
        ],
    )


def quotes() -> Section:
    rows = [(str(place), PIECES[place], piece_bytes(PIECES[place]).hex(" "), shown(place)) for place in QUOTE]
    return Section(
        "2. Half a character",
        [
            Paragraph(
                "The vocabulary is made of bytes, and a curly quote has three. Here they fall into two tokens, neither "
                "of which is a character. Only together do they show: a program that prints token by token has to wait."
            ),
            Table(("at", "piece", "bytes", "alone"), rows),
        ],
    )


def shown(place: int) -> str:
    return repr(readable(piece_bytes(PIECES[place])))


def contexts() -> Section:
    rows = [
        (str(place), f"0 to {place}", "… " + " ".join(words[-3:]), f"[:{place}]", f"… {' '.join(words[-3:-1])}")
        for place, words in ((place, context.split()) for place, (context, _) in FOLLOWING.items())
    ]
    return Section(
        "3. What a distribution follows",
        [
            Paragraph(
                "At every position the model gives 50,257 logits. Those at position 11 have read the tokens 0 to 11, "
                "twelve of them. The chapter prints the context as [:11], which in Python stops before token 11; the "
                "same happens at 13. So it shows its figures beside a text that is one token short:"
            ),
            Table(("at", "tokens read", "the context ends in", "printed as", "which ends in"), rows),
        ],
    )


def following(reading: Reading) -> Section:
    name = "GPT-2" if reading.is_gpt2 else "primer"
    shown_places = zip(reading.places, reading.following, strict=True)
    said = [] if reading.is_gpt2 else [Paragraph(without_weights(reading))]
    return Section(
        f"4. What {name} expects",
        [
            *said,
            *(part for place, found in shown_places for part in distribution(place, found)),
            Paragraph(
                "Is that the context? The same tokens were also read alone, without the rest of the sentence. The "
                f"probabilities differ by {reading.apart:.1e} at most; with one token fewer they differ by "
                f"{reading.apart_short:.2f}. --at N shows any other position."
            ),
        ],
    )


def without_weights(reading: Reading) -> str:
    return (
        "GPT-2's weights are not part of foretell. With --weights DIR, a directory that holds them, this page shows "
        "what GPT-2 expects, and --check compares it with the printed figures. Here the small model inside foretell "
        f"reads in its place. It knows Python's reference and no news, and needs {len(reading.ids)} tokens of its own "
        "for the sentence; but what is said of contexts holds for it as well."
    )


def distribution(place: int, found: NextTokens) -> list[Paragraph | Table]:
    largest = found.tokens[0].probability
    rows = [
        (repr(token.text), f"{token.probability:.4f}", "█" * max(1, round(BAR * token.probability / largest)))
        for token in found.tokens
    ]
    return [Paragraph(f"After position {place}: {tail(found.context)}"), Table(("next", "P", ""), rows)]


def tail(context: str, width: int = 52) -> str:
    return context if len(context) <= width else "…" + context[-width:]


def continuation(reading: Reading) -> Section:
    context = FOLLOWING[min(FOLLOWING)][0]
    return Section(
        "5. And on it goes",
        [
            Paragraph(
                "The likeliest token is appended and read again: this is how text is generated. foretell generate does "
                "it with more choice."
            ),
            Paragraph(f"{context} … {' '.join(reading.continuation.split())}"),
        ],
    )
