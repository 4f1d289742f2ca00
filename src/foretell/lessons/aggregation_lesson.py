"""The lesson on aggregation: attention as a weighted sum, a mask, positions, and a forecast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foretell.lessons.aggregation_values import (
    DISTANCES,
    HORIZON,
    KEYS,
    MASKED_SUMS,
    OTHER_V,
    PAIRS,
    QUERIES,
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
from foretell.typesetting.expression import MathRow, Matrix, Number, Symbol, row, script

SAME = 1e-12  # float64: the same sums, in rows of other lengths
CHANGED = 1e-3
A_ENTRY = (
    script("Σ", "f=0", "F-1"),
    script("Q", "i,f"),
    script("K", "j,f"),
    "=",
    script("q", "i", "T"),
    script("k", "j"),
)
SIZES = (
    ("Q, K", "N x F", "3 x 3"),
    ("A = Q Kᵀ", "N x N", "3 x 3"),
    ("V, V′ = A V", "N x E", "3 x 3"),
)


class AggregationLesson(Lesson):
    """A weighted sum, a masked sum, positions, and a forecast."""

    def __init__(self, values: AggregationValues | None = None):
        self.values = values or compute_aggregation()

    def document(self) -> DocumentSection:
        values = self.values
        parts = [weighted_sum(values), queries_and_keys(values), masked_sum(values), lengths(values), order(values)]
        parts += [forecast(values), recurrent(values)]
        return lesson_document("aggregation", [introduction(), *parts])

    def checks(self) -> list[FigureCheck]:
        values = self.values
        return [
            same("wH", WEIGHTED_SUM, values.weighted_sum),
            same("the model's mask is lower triangular", np.tril(np.ones((3, 3), dtype=int)), values.mask),
            same("the mask times H", MASKED_SUMS, values.masked_sums),
            *(same(f"A_{i} V", MASKED_SUMS[i], sum_of_rows(i)) for i in range(3)),
            same("A is not symmetric", False, bool((values.associations == values.associations.T).all())),
            same(
                "sizes of A and V'", [[3, 3], [3, 3]], [list(values.associations.shape), list(values.aggregated.shape)]
            ),
            same("the largest weight of subject and of verb", [1, 2], values.associations[:2].argmax(axis=1)),
            same("elementwise products are right on a diagonal", MASKED_SUMS[1], elementwise_sum(H)),
            same(
                "and give another sum for other values",
                False,
                np.array_equal(values.elementwise, values.row_times_matrix),
            ),
            below("a recurrent network's gradient over the longest distance", 1e-9, values.gradients["recurrent"][-1]),
            above("attention's gradient over the longest distance", 1e-6, values.gradients["attention"][-1]),
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


def sum_of_rows(i: int) -> np.ndarray:
    """The entries up to i, each times 1, and the later ones times 0."""
    return sum((int(k <= i) * np.array(entry) for k, entry in enumerate(H)), np.zeros(3, dtype=int))


def elementwise_sum(V: Sequence[Sequence[int]]) -> np.ndarray:
    """A_1 V as the source computes it: rows of the mask times rows of V, element by element."""
    T = np.tril(np.ones((3, 3), dtype=int))
    return T[0] * np.array(V)[0] + T[1] * np.array(V)[1] + 0 * np.array(V)[2]


def introduction() -> Paragraph:
    return Paragraph(
        "A GPT predicts the next entry of a sequence in three steps: each entry becomes a vector (an embedding), each "
        "vector gets a weight from its context (attention), and the vectors are added up with these weights "
        "(aggregation). "
        "Without its learned weights, attention is a sum: each entry of a sequence adds up the entries that it sees. "
        "Here are these sums with small whole numbers, and then a decoder that forecasts a series of numbers."
    )


def weighted_sum(values: AggregationValues) -> DocumentSection:
    weights, rows = np.array([W]), np.array(H)
    terms = [part for weight, line in zip(W, rows, strict=True) for part in ("+", Number(weight), Matrix(line))]
    entries = script("Σ", "i=0", "N-1")
    return DocumentSection(
        "1. A weighted sum",
        [
            Paragraph(
                "H has N entries, one per row. A row of N weights times H is the weighted sum of the entries, and as "
                "wide as one entry:"
            ),
            Formula(row(script("w", above="T"), Symbol("H"), "=", entries, script("w", "i"), script("h", "i", "T"))),
            Formula(row(script("w", above="T"), Symbol("H"), "=", weights, rows, "=", Matrix(values.weighted_sum))),
            Formula(row(*terms[1:], "=", Matrix(values.weighted_sum))),
        ],
    )


def queries_and_keys(values: AggregationValues) -> DocumentSection:
    A, V = Symbol("A"), Symbol("V")
    return DocumentSection(
        "2. Queries, keys and values",
        [
            Paragraph(
                "Attention finds the weights. Each entry h_i has a key, which says what it is, and a query, which says "
                "what it looks for. The weight of entry j for entry i is the dot product of the query of i and the key "
                "of j. All of them are one product of matrices:"
            ),
            Formula(row(A, "=", Symbol("Q"), script("K", above="T"))),
            Formula(row(script("A", "i,j"), "=", *A_ENTRY)),
            Paragraph(
                "Two descriptions are needed because the relation has a direction. Take a sentence of subject, verb "
                "and object. Here the subject looks for a verb, the verb for an object, and the object for nothing:"
            ),
            Formula(
                row(
                    A,
                    "=",
                    Matrix(np.array(QUERIES), row_labels=PAIRS),
                    script(Matrix(np.array(KEYS)), above="T"),
                    "=",
                    Matrix(values.associations, row_labels=PAIRS),
                )
            ),
            Paragraph(
                "The subject finds the verb, but the verb does not find the subject: A is not symmetric. With one "
                "vector for both roles it always would be."
            ),
            Paragraph("A third vector, the value, is what an entry contributes. V holds one in each row:"),
            Formula(row(Symbol("V′"), "=", A, V, "=", values.associations, np.array(H), "=", values.aggregated)),
            Table(("matrix", "rows x columns", "here"), SIZES),
            Paragraph("The source writes one entry of A as q_iᵀ · k_jᵀ. The second ᵀ is a slip: it is q_iᵀ k_j."),
        ],
    )


def masked_sum(values: AggregationValues) -> DocumentSection:
    matrices = Matrix(values.mask), Matrix(np.array(H)), "=", Matrix(values.masked_sums)
    return DocumentSection(
        "3. A masked sum",
        [
            Paragraph(
                "For a forecast, an entry must not use later ones. Row i of the mask T has ones up to column i. This "
                "mask is the decoder's own:"
            ),
            Formula(row(Symbol("T"), Symbol("V"), "=", *matrices)),
            Paragraph("Row by row, with A for the mask of ones:"),
            *(Formula(sum_formula(i, line)) for i, line in enumerate(MASKED_SUMS)),
            Paragraph(
                "The first entry sees only itself, the last sees all three. In attention the ones are replaced by "
                "weights: each row of the softmax sums to 1."
            ),
            Paragraph(
                "The source's code multiplies rows element by element, w₁ ⊙ v₁ + w₂ ⊙ v₂, with the rows w of the mask. "
                "This slip does not show, because V has numbers on its diagonal only. With other values the sum must "
                "be the row times the matrix:"
            ),
            Formula(
                row(script("A", "1"), Symbol("V"), "=", values.mask[1], np.array(OTHER_V), "=", values.row_times_matrix)
            ),
            Formula(
                row(
                    script("w", "1"),
                    "⊙",
                    script("v", "1"),
                    "+",
                    script("w", "2"),
                    "⊙",
                    script("v", "2"),
                    "=",
                    values.elementwise,
                )
            ),
        ],
    )


def sum_formula(i: int, line: list[int]) -> MathRow:
    """A_i V as the sum of the three entries, each times 1 or 0."""
    terms = [part for k in range(3) for part in ("+", Number(int(k <= i)), script("v", str(k), "T"))]
    return row(script("A", str(i)), Symbol("V"), "=", *terms[1:], "=", Matrix(np.array(line)))


def lengths(values: AggregationValues) -> DocumentSection:
    rows = [(kind, f"{difference:.1e}") for kind, difference in values.prefixes.items()]
    return DocumentSection(
        f"4. Any length from 1 to {WINDOW}",
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
        "5. A sum does not depend on the order",
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
        "6. A forecast",
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
            Paragraph(
                "With words it is the same: the output at each position is projected to the size of the vocabulary, a "
                "softmax makes probabilities, and the cross entropy with the known next words is the loss. foretell "
                "train is for text; foretell forecast is for series of numbers."
            ),
        ],
    )


def recurrent(values: AggregationValues) -> DocumentSection:
    rows = [
        (str(distance), *(f"{sizes[index]:.1e}" for sizes in values.gradients.values()))
        for index, distance in enumerate(DISTANCES)
    ]
    return DocumentSection(
        "7. Why not a recurrent network",
        [
            Paragraph(
                "Before transformers, recurrent networks (RNN, LSTM) read a sequence one entry at a time and kept what "
                "they had read in one vector. An early entry reaches the last output through every step between, and "
                "each step multiplies its gradient again: it vanishes, or it explodes. In attention every entry is one "
                "step away. Both networks here are small and untrained. The table shows the size of the gradient of "
                "the last output by an earlier entry:"
            ),
            Table(("entries back", *values.gradients), rows),
            Paragraph(
                "The steps of a recurrent network also have to wait for each other. Attention is a product of "
                "matrices, so all positions are computed at the same time."
            ),
        ],
    )
