"""The lesson on aggregation: attention as a weighted sum, a mask, positions, and a forecast."""

from __future__ import annotations

import numpy as np

from foretell.lessons.aggregation_values import (
    HORIZON,
    MASKED_SUMS,
    WEIGHTED_SUM,
    WINDOW,
    AggregationValues,
    H,
    W,
    compute_aggregation,
    series,
)
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, lesson_document, same
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Matrix, Number, Symbol, row

SAME = 1e-12  # float64: the same sums, in rows of other lengths
CHANGED = 1e-3


class AggregationLesson(Lesson):
    """A weighted sum, a masked sum, positions, and a forecast."""

    def __init__(self, values: AggregationValues | None = None):
        self.values = values or compute_aggregation()

    def document(self) -> DocumentSection:
        values = self.values
        parts = [weighted_sum(values), masked_sum(values), lengths(values), order(values), forecast(values)]
        return lesson_document("aggregation", [introduction(), *parts])

    def checks(self) -> list[FigureCheck]:
        values = self.values
        return [
            same("wH", WEIGHTED_SUM, values.weighted_sum),
            same("the model's mask is lower triangular", np.tril(np.ones((3, 3), dtype=int)), values.mask),
            same("the mask times H", MASKED_SUMS, values.masked_sums),
            *(
                below(f"contexts of 1 to {WINDOW}, alone and in the window, {kind} positions", SAME, difference)
                for kind, difference in values.prefixes.items()
            ),
            below("without positions the order has no effect", SAME, values.reordered["none"]),
            above("sinusoidal positions make the order matter", CHANGED, values.reordered["sinusoidal"]),
            above("learned positions make the order matter", CHANGED, values.reordered["learned"]),
            *(
                above(f"next number after a context of {length}", 0.9, probability)
                for length, probability in enumerate(values.probabilities, start=1)
                if length > 1  # one number does not tell whether the series rises or falls
            ),
            same("forecast", series(HORIZON, WINDOW), values.forecast),
        ]


def introduction() -> Paragraph:
    return Paragraph(
        "Without its learned weights, attention is a sum: each entry of a sequence adds up the entries that it sees. "
        "Here are these sums with small whole numbers, and then a decoder that forecasts a series of numbers."
    )


def weighted_sum(values: AggregationValues) -> DocumentSection:
    weights, rows = np.array([W]), np.array(H)
    terms = [part for weight, line in zip(W, rows, strict=True) for part in ("+", Number(weight), Matrix(line))]
    return DocumentSection(
        "1. A weighted sum",
        [
            Paragraph("H has three entries, one per row. A row of weights times H is the weighted sum of the entries:"),
            Formula(
                row(Symbol("w"), Symbol("H"), "=", Matrix(weights), Matrix(rows), "=", Matrix(values.weighted_sum))
            ),
            Formula(row(*terms[1:], "=", Matrix(values.weighted_sum))),
        ],
    )


def masked_sum(values: AggregationValues) -> DocumentSection:
    matrices = Matrix(values.mask), Matrix(np.array(H)), "=", Matrix(values.masked_sums)
    return DocumentSection(
        "2. A masked sum",
        [
            Paragraph(
                "For a forecast, an entry must not use later ones. Row i of the mask T has ones up to column i. This "
                "mask is the decoder's own:"
            ),
            Formula(row(Symbol("T"), Symbol("H"), "=", *matrices)),
            Paragraph(
                "The first entry sees only itself, the last sees all three. In attention the ones are replaced by "
                "weights: each row of the softmax sums to 1."
            ),
        ],
    )


def lengths(values: AggregationValues) -> DocumentSection:
    rows = [(kind, f"{difference:.1e}") for kind, difference in values.prefixes.items()]
    return DocumentSection(
        f"3. Any length from 1 to {WINDOW}",
        [
            Paragraph(
                "So the output at a position does not depend on later positions. One window contains many contexts: "
                f"its first number, its first two numbers, up to all {WINDOW}. Each of these was also read alone. The "
                "table shows the largest difference between the logits for a context alone and in the window:"
            ),
            Table(("positions", "difference"), rows),
            Paragraph("A model that is trained on windows is therefore also trained on every shorter context."),
        ],
    )


def order(values: AggregationValues) -> DocumentSection:
    rows = [(kind, f"{difference:.1e}") for kind, difference in values.reordered.items()]
    return DocumentSection(
        "4. A sum does not depend on the order",
        [
            Paragraph(
                "a + b equals b + a. When all entries before the last are reordered, the last output stays the same, "
                "unless a position vector was added to each entry. These vectors can be learned or fixed (sines and "
                "cosines):"
            ),
            Formula(row(Symbol("H′"), "=", Symbol("H"), "+", Symbol("P"))),
            Table(("positions", "change of the last output"), rows),
        ],
    )


def forecast(values: AggregationValues) -> DocumentSection:
    numbers = series(WINDOW + 1, start=1)
    rows = [
        (" ".join(map(str, numbers[: t + 1])), str(numbers[t + 1]), f"{probability:.4f}")
        for t, probability in enumerate(values.probabilities)
    ]
    return DocumentSection(
        "5. A forecast",
        [
            Paragraph(
                "Tokens need not be words. This series goes up and down between 0 and 3. A small decoder was trained "
                f"on windows of it, and its loss fell from {values.losses[0]:.3f} to {values.losses[-1]:.3f} in "
                f"{len(values.losses)} steps. The table shows its probability of the correct next number, for each "
                "length of context:"
            ),
            Table(("context", "next", "P"), rows),
            Paragraph(
                "One number does not tell whether the series rises or falls; two numbers do. The most likely number is "
                "appended and the model reads again. Repeating this makes a forecast:"
            ),
            Formula(row(Matrix(np.array(values.window)), "→", Matrix(np.array(values.forecast)))),
        ],
    )
