"""The walk through the smallest decoder."""

from __future__ import annotations

import math

import numpy as np

from foretell.lessons.catalog import find_lesson
from foretell.lessons.figures import labelled
from foretell.lessons.smallest_decoder.printed import TEXT, VOCABULARY
from foretell.lessons.smallest_decoder.values import IDS, TARGETS, Everything
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Operator, Root, Row, Symbol, row, script

WORDS = VOCABULARY[:-1]  # the five that go in
X, Q, K, V = (Symbol(name) for name in "XQKV")
KT = script("K", above="T")


def make_page(found: Everything) -> DocumentSection:
    """From five ids to the probability of the sentence."""
    parts = [tokens(), stream(found), projections(found), scores(found), mixture(found), prediction(found)]
    parts += [loss(found), layouts(found), last_vector(found)]
    return DocumentSection(find_lesson("smallest").title, [introduction(), *parts])


def introduction() -> Paragraph:
    return Paragraph(
        "One attention head of width 3, learned positions, a head; no norm, no feed-forward layer, no residual. Its "
        "weights are drawn, not trained, so it guesses badly. But all that a GPT does with a sentence happens here, "
        "and every number fits on the screen. They are read from the decoder that also trains and generates."
    )


def tokens() -> DocumentSection:
    read = [" ".join(WORDS[: t + 1]) for t in range(len(IDS))]
    rows = [(str(t), context, str(IDS[t]), VOCABULARY[TARGETS[t]]) for t, context in enumerate(read)]
    return DocumentSection(
        "1. Five questions in one sentence",
        [
            Paragraph(
                f"The sentence: {TEXT} Each word has an id, 0 to 5. Every position is asked for the word that follows, "
                "and may use all words up to its own, not its own alone:"
            ),
            Table(("position", "what it may read", "its id", "to predict"), rows),
        ],
    )


def stream(found: Everything) -> DocumentSection:
    model = found.model
    summed = row(Matrix(model["token"], row_labels=WORDS), "+", Matrix(model["position"]))
    return DocumentSection(
        "2. Words become vectors",
        [
            Paragraph("A vector for each word, plus one for each place, so that order is not lost:"),
            Formula(row(X, "=", *summed.items, "=", Matrix(model["stream"], row_labels=WORDS))),
        ],
    )


def projections(found: Everything) -> DocumentSection:
    model = found.model
    weight = found.weight("query")
    query = row(Q, "=", X, script("W", "Q", "T"), "=", X, Matrix(weight.T), "=", Matrix(model["query"]))
    return DocumentSection(
        "3. What each word asks, offers, and hands over",
        [
            Paragraph(
                "Three linear maps make a query, a key and a value of each vector. The query says what a word looks "
                "for, the key what it can be found by, the value what is taken from it:"
            ),
            Formula(query),
            Formula(row(K, "=", X, script("W", "K", "T"), "=", Matrix(model["key"]))),
            Formula(row(V, "=", X, script("W", "V", "T"), "=", Matrix(model["value"]))),
        ],
    )


def scores(found: Everything) -> DocumentSection:
    scaled = Fraction(row(Q, KT), Root(Number(3)))
    return DocumentSection(
        "4. Who looks at whom",
        [
            Paragraph(
                "Each query meets each key in a dot product, divided by the root of the width, so that scores do not "
                "grow with it. Row: who looks. Column: at whom."
            ),
            Formula(row(scaled, "=", Matrix(found.model["scaled"], digits=2, row_labels=WORDS))),
            Paragraph(
                "The future is not to be seen: above the diagonal everything becomes minus infinity. The softmax turns "
                "each row into shares that sum to 1, and exp(-∞) is exactly 0:"
            ),
            Formula(
                row(
                    Symbol("A"),
                    "=",
                    Call("softmax", Matrix(found.model["masked"], digits=2)),
                    "=",
                    Matrix(found.model["weights"], row_labels=WORDS),
                )
            ),
            HeatMap(found.model["weights"], WORDS, WORDS),
        ],
    )


def mixture(found: Everything) -> DocumentSection:
    model = found.model
    taken = [
        part
        for share, value in zip(model["weights"][1, :2], model["value"], strict=False)
        for part in (Operator("+"), Number(float(share)), Matrix(value))
    ]
    return DocumentSection(
        "5. Each word takes its shares",
        [
            Paragraph("The shares times the values. For data, which sees financial and itself:"),
            Formula(row(Row(tuple(taken[1:])), "=", Matrix(model["output"][1]))),
            Paragraph("and for all five:"),
            Formula(row(Symbol("A"), V, "=", Matrix(model["output"], row_labels=WORDS))),
        ],
    )


def prediction(found: Everything) -> DocumentSection:
    best = int(found.model["probabilities"][0].argmax())
    return DocumentSection(
        "6. What comes next",
        [
            Paragraph("The head gives each vector a score for every word; a softmax makes probabilities of them:"),
            labelled(WORDS, VOCABULARY, found.model["probabilities"], digits=6, corner="after"),
            Paragraph(
                f"After financial it expects '{VOCABULARY[best]}', which is wrong; so it does after the whole "
                "sentence, which is right, by luck. Training would move the weights until the right words are likely."
            ),
        ],
    )


def loss(found: Everything) -> DocumentSection:
    losses = found.layouts["alone"]
    rows = [
        (" ".join(WORDS[: t + 1]), VOCABULARY[TARGETS[t]], f"{math.exp(-value):.6f}", f"{value:.6f}")
        for t, value in enumerate(losses)
    ]
    total, product = sum(losses), math.exp(found.chain.logprob)
    condition = row(script("x", "2"), Operator("…"), script("x", "6"), Operator("|"), script("x", "1"))
    return DocumentSection(
        "7. The loss, and the chain rule",
        [
            Paragraph("What training makes small is the sum of the negative logarithms of the targets' probabilities:"),
            Table(("x₁ … xₜ", "xₜ₊₁", "P", "-log P"), [*rows, ("", "sum", "", f"{total:.6f}")]),
            Paragraph(
                "A sum of logarithms is the logarithm of a product, so the same number says how likely it all is:"
            ),
            Formula(row(Call("P", condition), "=", Call("exp", Number(-total, 6)), "=", Number(product, 6))),
            Paragraph(
                "P(x₁) is not among the factors. The first answer already follows the first word, so without "
                "a start token in front of it nothing here says how likely 'financial' is. What the model gives is the "
                "probability of the rest, given the first word, and foretell score says so too."
            ),
        ],
    )


def layouts(found: Everything) -> DocumentSection:
    names = list(found.layouts)
    values = np.array([found.layouts[name] for name in names]).T
    return DocumentSection(
        "8. Padded equals packed",
        [
            Paragraph(
                "Rows of a batch have one length. A short text is padded, or packed into one row with others. There "
                "the mask hides them from each other, and positions start again at 0. Here another text stands beside "
                "ours. The loss of each target is the same, wherever the sentence stands:"
            ),
            labelled([VOCABULARY[target] for target in TARGETS], names, values, digits=6, corner="target"),
        ],
    )


def last_vector(found: Everything) -> DocumentSection:
    return DocumentSection(
        "9. One vector for the whole text",
        [
            Paragraph(
                "Only the last position has seen everything. Its vector stands for the sentence when a later layer is "
                "to classify it, and is what foretell embed gives:"
            ),
            Formula(Matrix(np.array([found.chain.representation]), row_labels=("financial … awesome",))),
        ],
    )
