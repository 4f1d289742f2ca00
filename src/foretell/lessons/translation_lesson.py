"""The lesson on the decoder that translates: what its source prints, what follows from it, and a trained model."""

from __future__ import annotations

import numpy as np

from foretell.lessons.lesson import FigureCheck, Lesson, above, lesson_document, near, same
from foretell.lessons.translation_values import (
    CROSS_SCORES,
    HEAD_WIDTH,
    INPUT,
    OTHER_KEY,
    QUERIES,
    SCALED_SCORES,
    SOURCE_HEAD_WIDTH,
    SOURCE_WORDS,
    TARGET_WORDS,
    TRANSPOSED_KEYS,
    LayerValues,
    LiveTranslation,
    TranslationValues,
    compute_translation,
)
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Part, Table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Root, Symbol, SymbolMatrix, row, script

TRUNCATED = 0.01  # the source truncates after the second digit
SAME = 1e-12
QKT = row(Symbol("Q"), script("K", above="T"))
SCALED_QKT = Fraction(QKT, Root(Symbol("d")))
LAYER_BOUND = 1e-10
PRINTED_TABLES = (INPUT, QUERIES, TRANSPOSED_KEYS)
COMMANDS = (
    Paragraph(
        "With numbers that are trained instead of drawn, this is a translator. It is trained on pairs of sentences, in "
        "minutes, and this lesson shows its steps from <sos> on when it is given the model:"
    ),
    Table(
        ("",),
        [
            ("$ foretell train --task translate pairs.tsv --out runs/en-fr",),
            ('$ foretell translate en-fr "I am good"',),
            ("$ foretell lesson translation --model en-fr",),
        ],
        monospace=True,
    ),
)
MASK_STEPS = (
    "Without a mask:",
    "<sos> must not see the word that it is to predict, nor the words after it:",
    "The row of Je is masked:",
    "The row of vais is masked; bien sees all words:",
)


class TranslationLesson(Lesson):
    """Masked attention within the target, then attention to the source sentence."""

    def __init__(self, values: TranslationValues | None = None, live: LiveTranslation | None = None):
        self.values, self.live = values or compute_translation(), live

    def document(self) -> DocumentSection:
        values = self.values
        parts = [embedding(), masking(values), weights(values), heads(values), cross_attention(values), layer(values)]
        return lesson_document("translation", [introduction(), *parts, trained_system(self.live), not_computed()])

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
    narrower = np.round(np.array(SCALED_SCORES) * 4) / 4
    return [
        near(what, SCALED_SCORES, values.exact_scores, TRUNCATED),
        above("and not over √16: the largest difference", 10 * TRUNCATED, np.abs(narrower - SCALED_SCORES).max()),
    ]


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
        near("softmax of M W_Q (R W_K)ᵀ / √2", layer.cross_weights, cross_softmax(layer), SAME),
        same(
            "sizes of X, Q and Kᵀ as printed", [(4, 4), (4, 4), (4, 3)], [np.shape(table) for table in PRINTED_TABLES]
        ),
        near("the whole layer: the textbook's and torch's", layer.torch_output, layer.states[-1], LAYER_BOUND),
        near("after its last norm each word has mean 0", np.zeros(4), layer.states[-1].mean(axis=0), SAME),
        *(
            same(f"words in {name}", len(TARGET_WORDS), value.shape[1])
            for name, value in (("the embedding", layer.embedded), ("M", layer.M), ("the output", layer.states[-1]))
        ),
        same("words in the encoder's output", len(SOURCE_WORDS), layer.R.shape[1]),
    ]


def cross_softmax(layer: LayerValues) -> np.ndarray:
    """The weights (4, 3) from the first head's queries of M and keys of R."""
    exponentials = np.exp(layer.query.T @ layer.key / np.sqrt(HEAD_WIDTH))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def changed(changes: list[float]) -> list[bool]:
    """For each word: did it change at all?"""
    return [change > 0 for change in changes]


def introduction() -> Paragraph:
    return Paragraph(
        "An encoder-decoder translates 'I am good' as '<sos> Je vais bien', one word at a time. Like every GPT, the "
        "decoder reads its own words so far. It also reads the source sentence, through the encoder. "
        '"Decoder-based models" prints some of the numbers. Most of its tables have dots instead, so other numbers '
        "cannot be computed: those tables are shown as data."
    )


def embedding() -> DocumentSection:
    projections = [row(Symbol(name), "=", Symbol("X"), script("W", name)) for name in "QKV"]
    return DocumentSection(
        "1. The input",
        [
            Paragraph(
                "The decoder does not read words. Each word is a vector (the output embedding), and the vector of its "
                "position is added. <sos> starts the sentence. As printed:"
            ),
            Formula(row(Symbol("X"), "=", SymbolMatrix(INPUT, TARGET_WORDS))),
            Paragraph("The queries, keys and values of a head are three products:"),
            *map(Formula, projections),
        ],
    )


def masking(values: TranslationValues) -> DocumentSection:
    first, *others = [
        [Paragraph(title), Formula(Matrix(scores, digits=3, row_labels=TARGET_WORDS))]
        for title, scores in zip(MASK_STEPS, values.masked, strict=True)
    ]
    rest = [part for step in others for part in step]
    return DocumentSection("2. Masked attention, one row at a time", [*first, head_width(values), *rest])


def head_width(values: TranslationValues) -> Paragraph:
    whole = ", ".join(f"{value:.0f}" for value in values.dot_products[0])
    return Paragraph(
        "These are the scaled attention scores Q Kᵀ / √d as printed. The width d of a head is not printed. Times 8 the "
        f"scores are whole numbers (first row: {whole}), truncated after two digits. This fits d = "
        f"{SOURCE_HEAD_WIDTH}, the width in Vaswani et al. 2017. It is an assumption: d = 256 fits as well."
    )


def weights(values: TranslationValues) -> DocumentSection:
    return DocumentSection(
        "3. Attention weights",
        [
            Formula(row(Call("softmax", SCALED_QKT), "=", Matrix(values.weights, row_labels=TARGET_WORDS))),
            Paragraph(
                "Each word attends mostly to itself. The weights times the values, which are not printed, are the "
                "output of a head:"
            ),
            Formula(row(script("Z", "i"), "=", Call("softmax", SCALED_QKT), script("V", "i"))),
        ],
    )


def heads(values: TranslationValues) -> DocumentSection:
    layer = values.layer
    concatenated = np.concatenate(layer.heads).T
    joined = row(Symbol("M"), "=", Call("Concat", row(script("Z", "1"), ",", script("Z", "2"))), script("W", "0"))
    return DocumentSection(
        "4. Several heads",
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
    layer = values.layer
    source = [f"{change:.2f}" for change in values.source_changes]
    target = [f"{change:.2f}" for change in values.target_changes]
    softmax = Call("softmax", Fraction(QKT, Number(8)))
    M, R = Symbol("M"), Symbol("R")
    products = [[row(script("q", str(i)), script("k", str(j))) for j in (1, 2, 3)] for i in (1, 2, 3, 4)]
    return DocumentSection(
        "5. Attention to the other sentence",
        [
            Paragraph(
                "The queries come from the decoder's M, which has four rows. The keys and values come from the "
                "encoder's output R, which has three:"
            ),
            Formula(row(Symbol("Q"), "=", M, script("W", "Q"))),
            Formula(row(Symbol("K"), "=", R, script("W", "K"))),
            Paragraph("As printed; the columns of Kᵀ are I, am, good:"),
            Formula(row(*QKT.items, "=", SymbolMatrix(QUERIES, TARGET_WORDS), SymbolMatrix(TRANSPOSED_KEYS))),
            Paragraph(
                f"One number of Kᵀ is printed twice, once as {TRANSPOSED_KEYS[1][0]} and once as {OTHER_KEY}; one of "
                "them is a slip. Each query meets each key, so the product is four by three:"
            ),
            Formula(row(*QKT.items, "=", SymbolMatrix(products, TARGET_WORDS))),
            Formula(row(*QKT.items, "=", Matrix(np.array(CROSS_SCORES), row_labels=TARGET_WORDS))),
            Paragraph("The numbers are the source's data. Divided by 8, the softmax of each row is:"),
            Formula(row(softmax, "=", Matrix(values.cross_weights, row_labels=TARGET_WORDS))),
            Paragraph(
                "On random numbers every step can be computed. The scores of the first of two heads, of width 2:"
            ),
            Formula(
                row(
                    M,
                    script("W", "Q"),
                    script(Call("", row(R, script("W", "K"))), above="T"),
                    "=",
                    Matrix(layer.query.T, 2),
                    Matrix(layer.key, 2),
                    "=",
                    Matrix(layer.query.T @ layer.key, digits=2, row_labels=TARGET_WORDS),
                )
            ),
            Paragraph(
                "This attention has no mask, because the whole source sentence is known before the first word is "
                "written. To see the difference, the last word of each sentence is replaced. The table shows the "
                "largest change in each word's attention output:"
            ),
            Table(
                ("replaced", *TARGET_WORDS),
                [("bien, in masked attention", *target), ("good, in cross-attention", *source)],
            ),
        ],
    )


def layer(values: TranslationValues) -> DocumentSection:
    layer = values.layer
    attended, first, crossed, second, transformed, third = (shape(state) for state in layer.states)
    rows = [
        ("embedding + position", "X", shape(layer.embedded)),
        ("masked multi-head attention", "X₁ = X + M", attended),
        ("norm", "X₂ = LayerNorm(X₁)", first),
        ("encoder-decoder attention", "X₃ = X₂ + CrossAttention(X₂, R)", crossed),
        ("norm", "X₄ = LayerNorm(X₃)", second),
        ("feed-forward", "X₅ = X₄ + MLP(X₄), word by word", transformed),
        ("norm", "X₆ = LayerNorm(X₅)", third),
    ]
    return DocumentSection(
        "6. The layer, step by step",
        [
            Table(("step", "", "words x width"), rows),
            Paragraph(
                "In the whole layer each step is added to the residual stream and normalised. So its queries are of "
                "LayerNorm(X + M), where the source has M alone. This layer was computed by the textbook, and torch's "
                "TransformerDecoderLayer gives the same numbers. A decoder is a stack of such layers:"
            ),
            Formula(row(script("X", "6"), "=", Matrix(layer.states[-1].T, row_labels=TARGET_WORDS))),
        ],
    )


def shape(columns: np.ndarray) -> str:
    """Words first, as in the source."""
    return f"{columns.shape[1]} x {columns.shape[0]}"


def trained_system(live: LiveTranslation | None) -> DocumentSection:
    return DocumentSection("7. A trained system", translated(live) if live is not None else COMMANDS)


def translated(live: LiveTranslation) -> list[Part]:
    """A trained model's steps, from <sos> on."""
    return [
        Paragraph(f"{live.model} reads '{live.sentence}' and writes one token at a time:"),
        Table(("words so far", "next"), live.steps),
        Paragraph(f"The translation: {live.translation}"),
    ]


def not_computed() -> DocumentSection:
    return DocumentSection(
        "What could not be computed",
        [
            Paragraph(
                "X, Q and K of the second attention are printed with dots instead of columns, so the product 91, 60, "
                "77, ... does not follow from them. These tables are shown and not checked. The checks cover the "
                "sizes, the mask, the softmax of the complete tables, the heads and their projection, the whole layer "
                "on random numbers, and which words change when a word is replaced."
            )
        ],
    )
