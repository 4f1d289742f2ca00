"""The lesson on the decoder that translates, as far as its source prints enough numbers to compute it."""

from __future__ import annotations

import numpy as np

from foretell.lessons.lesson import FigureCheck, Lesson, lesson_document, near, same
from foretell.lessons.translation_values import (
    CROSS_SCORES,
    SCALED_SCORES,
    SOURCE_HEAD_WIDTH,
    SOURCE_WORDS,
    TARGET_WORDS,
    TranslationValues,
    compute_translation,
)
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Root, Symbol, row, script

TRUNCATED = 0.01  # the source truncates after the second digit
SAME = 1e-12
QKT = row(Symbol("Q"), script("K", above="T"))
SCALED_QKT = Fraction(QKT, Root(Symbol("d")))
MASK_STEPS = (
    "Without a mask:",
    "<sos> must not see the word that it is to predict, nor the words after it:",
    "The row of Je is masked:",
    "The row of vais is masked; bien sees all words:",
)


class TranslationLesson(Lesson):
    """Masked attention within the target, then attention to the source sentence."""

    def __init__(self, values: TranslationValues | None = None):
        self.values = values or compute_translation()

    def document(self) -> DocumentSection:
        values = self.values
        parts = [masking(values), weights(values), heads(values), cross_attention(values), layer(values)]
        return lesson_document("translation", [introduction(), *parts, not_computed()])

    def checks(self) -> list[FigureCheck]:
        return [
            *check_scores(self.values),
            *check_masks(self.values),
            *check_cross_attention(self.values),
            *check_layer(self.values),
        ]


def check_scores(values: TranslationValues) -> list[FigureCheck]:
    """The printed scores are whole numbers divided by 8: the head's width is 64."""
    what = f"scaled scores are whole numbers over √{SOURCE_HEAD_WIDTH}"
    return [near(what, SCALED_SCORES, values.exact_scores, TRUNCATED)]


def check_masks(values: TranslationValues) -> list[FigureCheck]:
    """One row more is masked each time; the softmax of each row is a distribution."""
    masked = [int(np.isinf(scores).sum()) for scores in values.masked]
    upper = np.triu(np.ones((len(TARGET_WORDS), len(TARGET_WORDS))), k=1)
    return [
        same("the mask grows row by row: masked scores", [0, 3, 5, 6], masked),
        same("in the last step, all above the diagonal is masked", upper, np.isinf(values.masked[-1]).astype(float)),
        near("each row of the softmax sums to 1", np.ones(len(TARGET_WORDS)), values.weights.sum(1), SAME),
        same("later words have weight 0", np.zeros((4, 4)), values.weights * upper),
        same(
            "masked attention: words that change with the last one",
            [False, False, False, True],
            changed(values.target_changes),
        ),
    ]


def check_cross_attention(values: TranslationValues) -> list[FigureCheck]:
    """Every target word sees every source word."""
    shape = [len(TARGET_WORDS), len(SOURCE_WORDS)]
    return [
        same("shape of the printed product", shape, list(np.shape(CROSS_SCORES))),
        same("shape of Q Kᵀ by the textbook", shape, list(values.layer.cross_weights.shape)),
        near("each row of the cross-attention weights sums to 1", np.ones(4), values.cross_weights.sum(1), SAME),
        same("no mask: every weight is above 0", True, bool((values.layer.cross_weights > 0).all())),
        same("words that change with the last source word", [True] * 4, changed(values.source_changes)),
    ]


def check_layer(values: TranslationValues) -> list[FigureCheck]:
    """Heads are concatenated and projected; every step has one vector per target word."""
    layer = values.layer
    return [
        near("M = Concat(Z1 .. Zh) W0", np.concatenate(layer.heads).T @ layer.output_weight.T, layer.M.T, SAME),
        *(
            same(f"words in {name}", len(TARGET_WORDS), value.shape[1])
            for name, value in (("the embedding", layer.embedded), ("M", layer.M), ("the output", layer.output))
        ),
        same("words in the encoder's output", len(SOURCE_WORDS), layer.R.shape[1]),
    ]


def changed(changes: list[float]) -> list[bool]:
    """For each word: did it change at all?"""
    return [change > 0 for change in changes]


def introduction() -> Paragraph:
    return Paragraph(
        "An encoder-decoder translates 'I am good' as '<sos> Je vais bien', one word at a time. Like every GPT, the "
        "decoder reads its own words so far, each embedded with its position. It also reads the source sentence, "
        'through the encoder. "Decoder-based models" prints some of the numbers. Most of its tables have dots instead, '
        "so the other numbers cannot be computed."
    )


def masking(values: TranslationValues) -> DocumentSection:
    first, *others = [
        [Paragraph(title), Formula(Matrix(scores, digits=3, row_labels=TARGET_WORDS))]
        for title, scores in zip(MASK_STEPS, values.masked, strict=True)
    ]
    rest = [part for step in others for part in step]
    return DocumentSection("1. Masked attention, one row at a time", [*first, head_width(values), *rest])


def head_width(values: TranslationValues) -> Paragraph:
    whole = ", ".join(f"{value:.0f}" for value in values.dot_products[0])
    return Paragraph(
        "These are the scaled attention scores Q Kᵀ / √d as printed. They show how wide a head is: times 8 they are "
        f"whole numbers (first row: {whole}), truncated after two digits, so d is {SOURCE_HEAD_WIDTH}."
    )


def weights(values: TranslationValues) -> DocumentSection:
    return DocumentSection(
        "2. Attention weights",
        [
            Formula(row(Call("softmax", SCALED_QKT), "=", Matrix(values.weights, row_labels=TARGET_WORDS))),
            Paragraph(
                "Each word attends mostly to itself. The weights times the values, which are not printed, are the "
                "output Z."
            ),
        ],
    )


def heads(values: TranslationValues) -> DocumentSection:
    layer = values.layer
    concatenated = np.concatenate(layer.heads).T
    joined = row(Symbol("M"), "=", Call("Concat", row(script("Z", "1"), ",", script("Z", "2"))), script("W", "0"))
    return DocumentSection(
        "3. Several heads",
        [
            Paragraph("Each head has its own output Z. The outputs are concatenated and projected. On random numbers:"),
            Formula(
                row(
                    *joined.items,
                    "=",
                    Matrix(concatenated, digits=2),
                    Matrix(layer.output_weight.T, digits=2),
                    "=",
                    Matrix(layer.M.T, digits=2, row_labels=TARGET_WORDS),
                )
            ),
        ],
    )


def cross_attention(values: TranslationValues) -> DocumentSection:
    source = [f"{change:.2f}" for change in values.source_changes]
    target = [f"{change:.2f}" for change in values.target_changes]
    softmax = Call("softmax", Fraction(QKT, Number(8)))
    return DocumentSection(
        "4. Attention to the other sentence",
        [
            Paragraph(
                "The queries come from the decoder's M, which has four rows. The keys and values come from the "
                "encoder's output R, which has three. So the product is four by three. This is the printed product; "
                "its columns are I, am, good:"
            ),
            Formula(row(*QKT.items, "=", Matrix(np.array(CROSS_SCORES), row_labels=TARGET_WORDS))),
            Formula(row(softmax, "=", Matrix(values.cross_weights, row_labels=TARGET_WORDS))),
            Paragraph(
                "This attention has no mask, because the whole source sentence is known before the first word is "
                "written. To see the difference, the last word of each sentence is replaced. The table shows the "
                "largest change in each word's attention output (on random numbers):"
            ),
            Table(
                ("replaced", *TARGET_WORDS),
                [("bien, in masked attention", *target), ("good, in cross-attention", *source)],
            ),
        ],
    )


def layer(values: TranslationValues) -> DocumentSection:
    layer = values.layer
    rows = [
        ("embedding + position", "X", shape(layer.embedded)),
        ("masked multi-head attention", "M", shape(layer.M)),
        ("the encoder's output", "R", shape(layer.R)),
        ("encoder-decoder attention", "queries of M, keys and values of R", shape(layer.cross)),
        ("feed-forward", "each word by itself", shape(layer.output)),
    ]
    return DocumentSection(
        "5. The layer, step by step",
        [
            Table(("step", "", "words x width"), rows),
            Paragraph("Each step is added to the residual stream and normalised. A decoder is a stack of such layers."),
        ],
    )


def shape(columns: np.ndarray) -> str:
    """Words first, as in the source."""
    return f"{columns.shape[1]} x {columns.shape[0]}"


def not_computed() -> DocumentSection:
    return DocumentSection(
        "What could not be computed",
        [
            Paragraph(
                "The input X, the query and key matrices of the second attention and their 4 x 3 product are printed "
                "with dots instead of columns. The figures 91, 60, 77, ... are shown, but not checked. One entry of a "
                "key is printed twice, once as 18.71 and once as 16.71. The checks cover the shapes, the mask, the "
                "softmax of the complete tables, the projection, and which words change when a word is replaced."
            )
        ],
    )
