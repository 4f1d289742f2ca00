"""The walk from a weighted sum to a forecast."""

from __future__ import annotations

import numpy as np

from foretell.lessons.aggregation.values import WINDOW, Everything, H, W, series
from foretell.lessons.catalog import find_lesson
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Matrix, Number, Symbol, row


def make_page(found: Everything) -> DocumentSection:
    """Sum, mask, positions, forecast."""
    parts = [weighted_sum(found), masked_sum(found), lengths(found), order(found), forecast(found)]
    return DocumentSection(find_lesson("aggregation").title, [introduction(), *parts])


def introduction() -> Paragraph:
    return Paragraph(
        "Take away the learned weights, and attention is a sum: each entry of a sequence collects from the others. "
        "Here are the sums with the simplest numbers, and then a decoder that forecasts a series which is no text."
    )


def weighted_sum(found: Everything) -> DocumentSection:
    weights, rows = np.array([W]), np.array(H)
    terms = [part for weight, line in zip(W, rows, strict=True) for part in ("+", Number(weight), Matrix(line))]
    return DocumentSection(
        "1. A row of weights collects",
        [
            Paragraph("Three entries, one a row of H. A row of weights times H adds the entries up:"),
            Formula(row(Symbol("w"), Symbol("H"), "=", Matrix(weights), Matrix(rows), "=", Matrix(found.weighted_sum))),
            Formula(row(*terms[1:], "=", Matrix(found.weighted_sum))),
        ],
    )


def masked_sum(found: Everything) -> DocumentSection:
    return DocumentSection(
        "2. A triangle of weights collects from the past alone",
        [
            Paragraph(
                "For a forecast, no entry may collect from later ones. Row i of the mask T has ones up to column i. "
                "This one is the decoder's own:"
            ),
            Formula(
                row(
                    Symbol("T"),
                    Symbol("H"),
                    "=",
                    Matrix(found.mask),
                    Matrix(np.array(H)),
                    "=",
                    Matrix(found.masked_sums),
                )
            ),
            Paragraph(
                "The first entry keeps to itself, the last has them all. Attention puts shares in place of the ones: "
                "each row of the softmax sums to 1."
            ),
        ],
    )


def lengths(found: Everything) -> DocumentSection:
    rows = [(kind, f"{apart:.1e}") for kind, apart in found.prefixes.items()]
    return DocumentSection(
        f"3. Any length from 1 to {WINDOW}",
        [
            Paragraph(
                "So what a position hands out depends on no later one. A window is many questions at once: its first "
                f"number alone, its first two, up to all {WINDOW}. Each prefix was also read alone. The largest "
                "difference between its answer and the window's answer at that place:"
            ),
            Table(("positions", "difference"), rows),
            Paragraph("A model trained on windows has therefore learned every shorter context too."),
        ],
    )


def order(found: Everything) -> DocumentSection:
    rows = [(kind, f"{apart:.1e}") for kind, apart in found.reordered.items()]
    return DocumentSection(
        "4. A sum does not know the order",
        [
            Paragraph(
                "a + b is b + a. When all entries before the last change places, its output stays as it was, unless "
                "something was added that tells places apart. That can be learned, or fixed (sines and cosines):"
            ),
            Formula(row(Symbol("H′"), "=", Symbol("H"), "+", Symbol("P"))),
            Table(("positions", "the last output moves by"), rows),
        ],
    )


def forecast(found: Everything) -> DocumentSection:
    wave = series(WINDOW + 1, start=1)
    rows = [
        (" ".join(map(str, wave[: t + 1])), str(wave[t + 1]), f"{probability:.4f}")
        for t, probability in enumerate(found.sure)
    ]
    return DocumentSection(
        "5. Numbers over time",
        [
            Paragraph(
                "Tokens need not be words. This series goes up and down between 0 and 3, and a small decoder was "
                f"trained on windows of it: the loss fell from {found.losses[0]:.3f} to {found.losses[-1]:.3f} in "
                f"{len(found.losses)} steps. What it gives to the true next number, at every length of context:"
            ),
            Table(("context", "next", "P"), rows),
            Paragraph(
                "One number does not say whether the wave rises or falls; two do. The likeliest number, appended and "
                "read again, makes a forecast:"
            ),
            Formula(row(Matrix(np.array(found.wave)), "→", Matrix(np.array(found.forecast)))),
        ],
    )
