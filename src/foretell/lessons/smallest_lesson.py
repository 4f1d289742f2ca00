"""The lesson on the smallest decoder: from five ids to the probability of the sentence."""

from __future__ import annotations

import math

import numpy as np

from foretell.lessons import smallest_values as figures
from foretell.lessons.lesson import FigureCheck, Lesson, lesson_document, near, printed, same
from foretell.lessons.smallest_values import (
    IDS,
    TARGETS,
    TEXT,
    VOCABULARY,
    SmallestValues,
    WeightsByPath,
    compute_smallest,
    draw_weights,
)
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table, labelled_table
from foretell.typesetting.expression import Call, Fraction, MathRow, Matrix, Number, Operator, Root, Symbol, row, script

WORDS = VOCABULARY[:-1]  # the five input words
X, Q, K, V = (Symbol(name) for name in "XQKV")
KT = script("K", above="T")

TEXTBOOK_BOUND = 1e-12  # the same float64 sums in another order
FLOAT32_BOUND = 1e-6  # the objective and the embedding return float32
PRINTED = {  # value -> (its name in the check, the printed figures, digits)
    "token": ("word embedding", figures.TOKEN_EMBEDDING[:-1], 4),
    "position": ("position embedding", figures.POSITION_EMBEDDING, 4),
    "stream": ("x = word + position", figures.EMBEDDING_SUM, 4),
    "scaled": ("scaled scores", figures.SCALED_SCORES, 2),
    "weights": ("masked attention weights", figures.ATTENTION_WEIGHTS, 4),
    "value": ("values", figures.VALUES, 4),
    "output": ("attention output", figures.ATTENTION_OUTPUT, 4),
    "probabilities": ("next-token probabilities", figures.PROBABILITIES, 6),
}
PRINTED_WEIGHTS = {"query": figures.QUERY_WEIGHT, "key": figures.KEY_WEIGHT, "value": figures.VALUE_WEIGHT}


class SmallestLesson(Lesson):
    """One attention head and an output layer, with the loss and the chain rule."""

    def __init__(self, weights: WeightsByPath | None = None):
        self.values = compute_smallest(draw_weights() if weights is None else weights)

    def document(self) -> DocumentSection:
        values = self.values
        parts = [tokens(), embeddings(values), projections(values), scores(values), outputs(values), prediction(values)]
        parts += [loss(values), layouts(values), sentence_vector(values)]
        return lesson_document("smallest", [introduction(), *parts])

    def checks(self) -> list[FigureCheck]:
        return [*self.printed_figures(), *self.model_and_textbook(), *self.loss_and_chain_rule(), *self.batch_layouts()]

    def printed_figures(self) -> list[FigureCheck]:
        """The figures that the source prints."""
        values = self.values
        weights = [printed(f"{name} weight", figure, values.weight(name)) for name, figure in PRINTED_WEIGHTS.items()]
        return weights + [
            printed(what, figure, values.model[name], digits) for name, (what, figure, digits) in PRINTED.items()
        ]

    def model_and_textbook(self) -> list[FigureCheck]:
        """The model and the textbook compute the same values."""
        return [
            near(f"{name}: the textbook's and the model's", value, self.values.model[name], TEXTBOOK_BOUND)
            for name, value in self.values.textbook.items()
        ]

    def loss_and_chain_rule(self) -> list[FigureCheck]:
        """The loss is the sum over the targets' printed probabilities; the first word has none."""
        losses, score = self.values.losses["alone"], self.values.score
        targets = [row[target] for row, target in zip(figures.PROBABILITIES, TARGETS, strict=True)]
        expected = -sum(math.log(probability) for probability in targets)
        rounding = sum(0.5e-6 / probability for probability in targets)  # of the printed figures, in their logarithms
        return [
            near("loss, from the printed probabilities", expected, sum(losses), rounding),
            near("log P of the sentence is minus the loss", -sum(losses), score.logprob, 1e-5),
            same("P of the first word", None, score.logprobs[0]),
            near("the last token's vector", self.values.model["output"][-1], score.embedding, FLOAT32_BOUND),
        ]

    def batch_layouts(self) -> list[FigureCheck]:
        """Alone, padded and packed, the sentence has the same losses."""
        (first, alone), *others = self.values.losses.items()
        return [near(f"losses {name} and {first}", alone, losses, FLOAT32_BOUND) for name, losses in others] + [
            same("losses are finite", True, bool(np.isfinite(list(self.values.losses.values())).all()))
        ]


def introduction() -> Paragraph:
    return Paragraph(
        "This decoder has one attention head of width 3, learned positions and an output layer (the head). It has no "
        "norm, no feed-forward layer and no residual. Its weights are random, not trained, so its predictions are "
        "poor. But it does everything that a GPT does with a sentence, and every number fits on the screen. The "
        "numbers are read from the same decoder that foretell trains and generates with."
    )


def tokens() -> DocumentSection:
    contexts = [" ".join(WORDS[: t + 1]) for t in range(len(IDS))]
    rows = [(str(t), context, str(IDS[t]), VOCABULARY[TARGETS[t]]) for t, context in enumerate(contexts)]
    return DocumentSection(
        "1. One sentence, five predictions",
        [
            Paragraph(
                f"The sentence is: {TEXT} Each word has an id from 0 to 5. At every position the model predicts the "
                "next word. It may use the word at that position and all words before it:"
            ),
            Table(("position", "context", "id", "target"), rows),
        ],
    )


def embeddings(values: SmallestValues) -> DocumentSection:
    model = values.model
    summed = row(Matrix(model["token"], row_labels=WORDS), "+", Matrix(model["position"]))
    return DocumentSection(
        "2. Words become vectors",
        [
            Paragraph(
                "Each word has a vector, and each position has one. The two are added, so that the model knows the "
                "order of the words:"
            ),
            Formula(row(X, "=", *summed.items, "=", Matrix(model["stream"], row_labels=WORDS))),
        ],
    )


def projections(values: SmallestValues) -> DocumentSection:
    model = values.model
    weight = values.weight("query")
    query = row(Q, "=", X, script("W", "Q", "T"), "=", X, Matrix(weight.T), "=", Matrix(model["query"]))
    return DocumentSection(
        "3. Query, key and value",
        [
            Paragraph(
                "Three linear maps turn each vector into a query, a key and a value. The query describes what a word "
                "looks for. The key describes what a word offers to the queries of others. The value is what they "
                "take from it:"
            ),
            Formula(query),
            Formula(row(K, "=", X, script("W", "K", "T"), "=", Matrix(model["key"]))),
            Formula(row(V, "=", X, script("W", "V", "T"), "=", Matrix(model["value"]))),
        ],
    )


def scores(values: SmallestValues) -> DocumentSection:
    scaled = Fraction(row(Q, KT), Root(Number(3)))
    return DocumentSection(
        "4. Attention weights",
        [
            Paragraph(
                "The attention score of a query and a key is their dot product. Divided by the square root of the "
                "width, it is the scaled attention score, which does not grow with the width. Each row is a query, "
                "each column a key:"
            ),
            Formula(row(scaled, "=", Matrix(values.model["scaled"], digits=2, row_labels=WORDS))),
            Paragraph(
                "A word must not see later words. The mask sets all scaled scores above the diagonal to minus "
                "infinity. The softmax turns each row into weights that sum to 1. Since exp(-∞) is 0, later words get "
                "weight 0:"
            ),
            Formula(
                row(
                    Symbol("A"),
                    "=",
                    Call("softmax", Matrix(values.model["masked"], digits=2)),
                    "=",
                    Matrix(values.model["weights"], row_labels=WORDS),
                )
            ),
            HeatMap(values.model["weights"], WORDS, WORDS),
        ],
    )


def outputs(values: SmallestValues) -> DocumentSection:
    model = values.model
    terms = [
        part
        for weight, value in zip(model["weights"][1, :2], model["value"], strict=False)
        for part in (Operator("+"), Number(float(weight)), Matrix(value))
    ]
    return DocumentSection(
        "5. The output of attention",
        [
            Paragraph(
                "The output at each position is the sum of the values, each times its weight. The word data sees "
                "financial and itself:"
            ),
            Formula(row(MathRow(tuple(terms[1:])), "=", Matrix(model["output"][1]))),
            Paragraph("For all five words:"),
            Formula(row(Symbol("A"), V, "=", Matrix(model["output"], row_labels=WORDS))),
        ],
    )


def prediction(values: SmallestValues) -> DocumentSection:
    best = int(values.model["probabilities"][0].argmax())
    return DocumentSection(
        "6. The next word",
        [
            Paragraph(
                "The head computes a logit for every word of the vocabulary. A softmax turns the logits into "
                "probabilities:"
            ),
            labelled_table(WORDS, VOCABULARY, values.model["probabilities"], digits=6, corner="after"),
            Paragraph(
                f"After financial the most likely word is '{VOCABULARY[best]}', which is wrong. After the whole "
                "sentence it is the same word, which is right by chance. Training would change the weights until the "
                "right words are likely."
            ),
        ],
    )


def loss(values: SmallestValues) -> DocumentSection:
    losses = values.losses["alone"]
    rows = [
        (" ".join(WORDS[: t + 1]), VOCABULARY[TARGETS[t]], f"{math.exp(-value):.6f}", f"{value:.6f}")
        for t, value in enumerate(losses)
    ]
    total, product = sum(losses), math.exp(values.score.logprob)
    condition = row(script("x", "2"), Operator("…"), script("x", "6"), Operator("|"), script("x", "1"))
    return DocumentSection(
        "7. The loss, and the chain rule",
        [
            Paragraph("The loss is the sum of the negative logarithms of the targets' probabilities:"),
            Table(("x₁ … xₜ", "xₜ₊₁", "P", "-log P"), [*rows, ("", "sum", "", f"{total:.6f}")]),
            Paragraph(
                "A sum of logarithms is the logarithm of a product. So the loss also gives the probability of the "
                "sentence:"
            ),
            Formula(row(Call("P", condition), "=", Call("exp", Number(-total, 6)), "=", Number(product, 6))),
            Paragraph(
                "P(x₁) is not one of the factors. The first prediction already follows the first word. Without a "
                "start token before it, the model gives no probability for 'financial'. The result is the probability "
                "of the rest, given the first word; foretell score says so too."
            ),
        ],
    )


def layouts(values: SmallestValues) -> DocumentSection:
    names = list(values.losses)
    losses = np.array([values.losses[name] for name in names]).T
    return DocumentSection(
        "8. Padded equals packed",
        [
            Paragraph(
                "All rows of a batch have the same length. A short text is padded, or packed into one row with other "
                "texts. In a packed row the mask hides the texts from each other, and the positions of each text start "
                "at 0. Here a second text is in the batch. The loss of each target is the same in every layout:"
            ),
            labelled_table([VOCABULARY[target] for target in TARGETS], names, losses, digits=6, corner="target"),
        ],
    )


def sentence_vector(values: SmallestValues) -> DocumentSection:
    return DocumentSection(
        "9. One vector for the whole text",
        [
            Paragraph(
                "Only the last position has seen every word. Its vector represents the sentence, for example as the "
                "input of a classifier. foretell embed returns it:"
            ),
            Formula(Matrix(np.array([values.score.embedding]), row_labels=("financial … awesome",))),
        ],
    )
