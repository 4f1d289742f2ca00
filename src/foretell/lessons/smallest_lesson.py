"""The lesson on the smallest decoder: from five ids to the probability of the sentence."""

from __future__ import annotations

import math

import numpy as np

from foretell.lessons import smallest_values as figures
from foretell.lessons.lesson import FigureCheck, Lesson, above, lesson_document, near, printed, same
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
from foretell.typesetting.expression import (
    Call,
    Fraction,
    MathRow,
    Matrix,
    Number,
    Operator,
    Root,
    Script,
    Symbol,
    row,
    script,
)

WORDS = VOCABULARY[:-1]  # the five input words
X, Q, K, V = (Symbol(name) for name in "XQKV")
KT = script("K", above="T")

CLASSIFIER = Call("softmax", row(script("h", "5"), script("W", "C", "T")))

TEXTBOOK_BOUND = 1e-12  # the same float64 sums in another order
FLOAT32_BOUND = 1e-6  # the objective and the embedding return float32
PRINTED = {  # value -> (its name in the check, the printed figures, digits)
    "token": ("word embedding of the sentence", figures.TOKEN_EMBEDDING[:-1], 4),
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
        return [
            *self.printed_figures(),
            *self.model_and_textbook(),
            *self.slips(),
            *self.loss_and_chain_rule(),
            *self.batch_layouts(),
        ]

    def printed_figures(self) -> list[FigureCheck]:
        """The figures that the source prints."""
        values = self.values
        weights = [printed(f"{name} weight", figure, values.weight(name)) for name, figure in PRINTED_WEIGHTS.items()]
        weights.append(printed("word embedding, with !", figures.TOKEN_EMBEDDING, values.token_embedding))
        return weights + [
            printed(what, figure, values.model[name], digits) for name, (what, figure, digits) in PRINTED.items()
        ]

    def model_and_textbook(self) -> list[FigureCheck]:
        """The model and the textbook compute the same values."""
        return [
            near(f"{name}: the textbook's and the model's", value, self.values.model[name], TEXTBOOK_BOUND)
            for name, value in self.values.textbook.items()
        ]

    def slips(self) -> list[FigureCheck]:
        """Where the source's words or formulas differ from what its code computes."""
        values = self.values
        untransposed = np.abs(values.model["stream"] @ values.weight("query") - values.model["query"]).max()
        positions = values.weights["embed.position.weight"].numpy()
        return [
            above("X W_Q, not transposed, differs from the printed queries by", 0.1, float(untransposed)),
            same(
                "masked with -1e9 and with -∞: weights of 0",
                values.masked_by_number == 0,
                values.model["masked"] < -1e9,
            ),
            near(
                "masked with -1e9 and with -∞: weights", values.model["weights"], values.masked_by_number, FLOAT32_BOUND
            ),
            near("a row masked completely, with -1e9", [0.2] * 5, values.fully_masked["-1000000000.0"], FLOAT32_BOUND),
            same("a row masked completely, with -∞", True, bool(np.isnan(values.fully_masked["-inf"]).all())),
            same("this sentence's ids are its positions", list(range(len(IDS))), IDS),
            near("positions of 'awesome data!' are 0, 1, 2", positions[:3], values.other_positions, TEXTBOOK_BOUND),
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
            Paragraph(
                "Here ! is the last token, where a special end token could be. A decoder does not need one, but learns "
                "from it where texts end. An encoder such as BERT reads a special token at the start instead. It is "
                "trained to fill in masked words, and sees the words on both sides."
            ),
        ],
    )


def embeddings(values: SmallestValues) -> DocumentSection:
    model = values.model
    summed = row(Matrix(model["token"], row_labels=WORDS), "+", Matrix(model["position"]))
    by_position = [(VOCABULARY[id], str(id), str(t)) for t, id in enumerate(figures.OTHER_TEXT)]
    return DocumentSection(
        "2. Words become vectors",
        [
            Paragraph("Each of the six words has a vector. The row of ! is not used: here ! is only a target."),
            Formula(row(Symbol("E"), "=", Matrix(values.token_embedding, row_labels=VOCABULARY))),
            Paragraph(
                "Each position has a vector too. The two are added, so that the model knows the order of the words:"
            ),
            Formula(row(X, "=", *summed.items, "=", Matrix(model["stream"], row_labels=WORDS))),
            Paragraph(
                "The source's code looks up positions by token ids. That is right here only because the ids are 0 to "
                "4, in order. In 'awesome data !' it would read the positions 4, 1 and 5, and there is no position 5. "
                "The model uses 0, 1 and 2:"
            ),
            Table(("word", "id", "position"), by_position),
        ],
    )


def projections(values: SmallestValues) -> DocumentSection:
    model = values.model
    weights = [Formula(row(script("W", name[0].upper()), "=", Matrix(values.weight(name)))) for name in PRINTED_WEIGHTS]
    products = [
        Formula(row(symbol, "=", X, script("W", symbol.name, "T"), "=", Matrix(model[name])))
        for name, symbol in zip(PRINTED_WEIGHTS, (Q, K, V), strict=True)
    ]
    return DocumentSection(
        "3. Query, key and value",
        [
            Paragraph(
                "Three linear maps turn each vector into a query, a key and a value. The query describes what a word "
                "looks for. The key describes what a word offers to the queries of others. The value is what they "
                "take from it. These are the weights as printed, by torch:"
            ),
            *weights,
            Paragraph(
                "torch stores a weight with one row per output. So the products need the transpose, which is missing "
                "in the printed formula Q = X W_Q:"
            ),
            *products,
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
            Paragraph("An encoder has no mask. There the first word would attend to all five, also to those after it:"),
            Formula(row(Call("softmax", Matrix(values.model["scaled"][0], 2)), "=", Matrix(values.unmasked[0]))),
            Paragraph(
                "The source puts -1e9 in place of -∞ and calls it a 'small value close to zero'. It is minus a "
                "billion, far from zero. Its exponential is 0, so the weights are the same. The two differ if a row is "
                "masked completely: -1e9 then gives every word the weight 0.2, and -∞ gives no number."
            ),
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
            Paragraph(
                "The output has the shape of X, five rows of width 3, so that another layer can read it. A GPT has "
                "several heads in each layer, and adds a residual, a norm and a feed-forward layer."
            ),
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
            Paragraph(
                "The loss is the sum of the negative logarithms of the targets' probabilities. Θ are the weights; "
                "training changes them so that the loss of all sequences becomes small:"
            ),
            Formula(
                row(
                    Call("L", Symbol("Θ")),
                    "=",
                    "-",
                    script("Σ", "t=1", "T"),
                    "log",
                    Call("P", row(*given(script("x", "t"), "t-1").items, ";", Symbol("Θ"))),
                )
            ),
            Table(("x₁ … xₜ", "xₜ₊₁", "P", "-log P"), [*rows, ("", "sum", "", f"{total:.6f}")]),
            Paragraph(
                "By the chain rule, the probability of a sequence is the product of the probabilities of its words:"
            ),
            Formula(
                row(
                    Call("P", row(script("x", "1"), ",", "…", ",", script("x", "T"))),
                    "=",
                    Call("P", script("x", "1")),
                    "·",
                    Call("P", row(script("x", "2"), "|", script("x", "1"))),
                    "·",
                    "…",
                    "·",
                    Call("P", given(script("x", "T"), "T-1")),
                )
            ),
            Paragraph(
                "A sum of logarithms is the logarithm of a product. So the loss also gives the probability of the "
                "sentence:"
            ),
            Formula(row(Call("P", condition), "=", Call("exp", Number(-total, 6)), "=", Number(product, 6))),
            Paragraph(
                "In both printed formulas the first factor is P(x₁). The model does not give it: the first prediction "
                "already follows the first word. Without a start token before 'financial', the sum has five terms, and "
                "the result is the probability of the rest, given the first word; foretell score says so too."
            ),
        ],
    )


def given(symbol: Script, last: str) -> MathRow:
    """x | x₁, …, x_last."""
    return row(symbol, "|", script("x", "1"), ",", "…", ",", script("x", last))


def layouts(values: SmallestValues) -> DocumentSection:
    names = list(values.losses)
    losses = np.array([values.losses[name] for name in names]).T
    return DocumentSection(
        "8. Padded equals packed",
        [
            Paragraph(
                "All rows of a batch have the same length, such as 512 or 1024. The source pads or truncates every "
                "text to it. Truncating loses the end of a long text; foretell cuts a long text into several rows. A "
                "short text is padded, or packed into one row with others. In a packed row the mask hides the texts "
                "from each other, and the positions of each text start at 0. Here a second text is in the batch. The "
                "loss of each target is the same in every layout:"
            ),
            labelled_table([VOCABULARY[target] for target in TARGETS], names, losses, digits=6, corner="target"),
        ],
    )


def sentence_vector(values: SmallestValues) -> DocumentSection:
    vector = script("h", "5")
    return DocumentSection(
        "9. One vector for the whole text, and fine-tuning",
        [
            Paragraph(
                "Only the last position has seen every word. Its vector represents the sentence. foretell embed "
                "returns it:"
            ),
            Formula(row(vector, "=", Matrix(np.array([values.score.embedding])))),
            Paragraph(
                "Fine-tuning continues the training of a model for one task, with far fewer texts. It adds a linear "
                f"layer that reads this vector. For two classes and width {figures.WIDTH}, its matrix W_C has six new "
                "weights. They start untrained, and are trained together with the model:"
            ),
            Formula(row(Call("P", row(Symbol("class"), "|", Symbol("text"))), "=", CLASSIFIER)),
            Table(("",), [("$ foretell finetune MODEL reviews.csv --task classify",)], monospace=True),
        ],
    )
