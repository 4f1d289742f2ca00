"""The lesson on the formal algorithms: attention, mask, decoder, training, inference, and GPT-1 to GPT-3."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from foretell.lessons import algorithms_values as figures
from foretell.lessons.algorithms_listings import (
    D_INFERENCE,
    D_TRAINING,
    D_TRANSFORMER,
    LISTINGS,
    MASKED_ATTENTION,
    SINGLE_QUERY,
)
from foretell.lessons.algorithms_values import (
    ETA,
    LENGTH,
    N_V,
    STEPS,
    TEMPERATURES,
    AttentionValues,
    DecoderValues,
    compute_attention,
    compute_decoder,
    x,
)
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, lesson_document, near, printed, same
from foretell.model.cost import count_parameters
from foretell.model.presets import preset_config
from foretell.textbook.parameters import DTransformerParameters, ETransformerParameters
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Part, Table, labelled_table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Root, Symbol, SymbolMatrix, row, script

SAME = 1e-12  # the same float64 sums in another order
DIFFERENT = 1e-3
MODELS = ("gpt1", "gpt2", "gpt2-xl", "gpt3-175b")
SHOWN_STEPS = (0, 5, 10, 20, STEPS - 1)
KT = script("K", above="T")


class AlgorithmsLesson(Lesson):
    """Attention, the mask, the decoder in two forms, training, inference, and the GPT models."""

    def __init__(self, attention: AttentionValues | None = None, decoder: DecoderValues | None = None):
        self.attention = attention or compute_attention()
        self.decoder = decoder or compute_decoder()

    def document(self) -> DocumentSection:
        attention, decoder = self.attention, self.decoder
        parts = [single_query(attention), mask(attention), two_forms(decoder), training(decoder), inference(decoder)]
        return lesson_document("algorithms", [introduction(), *parts, models()])

    def checks(self) -> list[FigureCheck]:
        return [
            *check_single_query(self.attention),
            *check_mask(self.attention),
            *check_forms(self.decoder),
            *check_training(self.decoder),
            *check_inference(self.decoder),
            *check_models(),
            *check_listings(),
        ]


def check_single_query(values: AttentionValues) -> list[FigureCheck]:
    """The printed dot products, and the softmax that is nearly one-hot."""
    mixture = values.weak_scaled @ np.array(figures.KEYS)
    return [
        same("q . k for the three keys", figures.DOT_PRODUCTS, values.dot_products),
        above("weight of the last key, without scaling", figures.LAST_WEIGHT, float(values.unscaled[-1])),
        near("attention weights sum to 1", 1.0, float(values.unscaled.sum()), SAME),
        near("single-query attention scales", mixture, values.mixture, SAME),
    ]


def check_listings() -> list[FigureCheck]:
    """The code next to a listing is the code that runs; BERT differs from GPT in three places."""
    classes = (DTransformerParameters, ETransformerParameters)
    names = [{field.name for field in dataclasses.fields(parameters)} for parameters in classes]
    means = figures.layer_means()
    return [
        *(
            same(f"{listing.title.split(';')[0]}: code shown that is not the textbook's", [], listing.missing_code())
            for listing in LISTINGS
        ),
        same(
            "BERT's parameters that GPT does not have",
            ["W_f", "b_f"],
            sorted(names[1] - names[0]),
        ),
        below("BERT normalises at the end of a layer: mean of a vector", SAME, means["BERT"]),
        above("GPT does not: mean of a vector", DIFFERENT, means["GPT"]),
    ]


def check_mask(values: AttentionValues) -> list[FigureCheck]:
    """mask[tx, tz] = 1 if tz <= tx, in the textbook and in the model."""
    future = np.triu(np.ones((LENGTH, LENGTH)), k=1)
    only_last = [False] * (LENGTH - 1) + [True]
    return [
        same("the mask, textbook", figures.MASK, values.mask),
        same("the mask, model", figures.MASK, values.model_mask),
        near("masked softmax: rows sum to 1", np.ones(LENGTH), values.weights.sum(1), SAME),
        same("masked softmax: 0 above the diagonal", np.zeros((LENGTH, LENGTH)), values.weights * future),
        near("masked softmax: the textbook's and the model's", values.weights, values.model_weights, SAME),
        above("the loop's weights of the last word: their sum", 2.0, float(values.loop_weights[-1].sum())),
        near(
            "the loop is right for the last visible word alone",
            values.weights.diagonal(),
            values.loop_weights.diagonal(),
            SAME,
        ),
        same("unmasked: positions that change with the last word", [True] * LENGTH, values.unmasked_changes),
        same("masked: positions that change with the last word", only_last, values.masked_changes),
    ]


def check_forms(values: DecoderValues) -> list[FigureCheck]:
    """The listing and GPT-2 differ in the residual; the model has GPT-2's."""
    difference, in_loop = (
        float(np.abs(values.overwriting - other).max()) for other in (values.residual, values.listing)
    )
    return [
        above("the norm inside the loop changes P by", 0.01, in_loop),
        near("the model and GPT-2's residual", values.residual, values.model, SAME),
        above("the listing and GPT-2's residual differ by", DIFFERENT, difference),
        near("each P sums to 1", np.ones(len(values.model)), values.model.sum(1), SAME),
    ]


def check_training(values: DecoderValues) -> list[FigureCheck]:
    """The loss at t = 1, and a loss that falls by gradient descent."""
    return [
        printed("loss at t = 1", -math.log(figures.P_CAT), values.loss_of_cat, digits=10),
        near("and the cross entropy with a one-hot target", values.loss_of_cat, values.cross_entropy_of_cat, SAME),
        same("the vocabulary holds the printed ids", True, max(figures.IDS) < N_V),
        below("gradient descent: share of the loss that is left", 0.5, values.losses[-1] / values.losses[0]),
    ]


def check_inference(values: DecoderValues) -> list[FigureCheck]:
    """p^(1/temperature), in the textbook and in generation."""
    return [
        *(
            near(f"temperature {tau}: the textbook's and generation's", tempered, sampled, SAME)
            for tau, tempered, sampled in zip(TEMPERATURES, values.tempered, values.sampler, strict=True)
        ),
        near("temperature 0.5 squares the ratios", squared(values.tempered[1]), values.tempered[0], SAME),
        same("number of generated tokens", 4, len(values.generated)),
    ]


def squared(p: np.ndarray) -> np.ndarray:
    """p^2, scaled to sum to 1."""
    return p**2 / (p**2).sum()


def check_models() -> list[FigureCheck]:
    """The printed shapes of GPT-1 to GPT-3 are those of the presets."""
    shapes = {"gpt1": figures.GPT1, "gpt2-xl": figures.GPT2, "gpt3-175b": figures.GPT3}
    checks = [
        same(f"{name}: {field}", value, getattr(preset_config(name), field))
        for name, shape in shapes.items()
        for field, value in shape.items()
    ]
    windows = preset_config("gpt3-175b").windows
    alternating = all((window is None) == (layer % 2 == 0) for layer, window in enumerate(windows))
    return [
        *checks,
        near("gpt2-xl: parameters", figures.GPT2_PARAMETERS, count_parameters(preset_config("gpt2-xl")), 0.02e9),
        same("gpt3-175b: dense and banded layers alternate", True, alternating),
    ]


def introduction() -> Paragraph:
    return Paragraph(
        "A transformer is a short list of algorithms. Habernal lists them line by line, after Phuong and Hutter 2022. "
        "Here they run in NumPy (foretell's textbook), and each result is compared with the model that foretell trains "
        "and generates with. In his listings a sequence X has one row per token, and weights multiply from the right, "
        "X W. In the paper and in the textbook's code it has one column per token, and they multiply from the left, "
        "W X. Both give the same numbers."
    )


def single_query(values: AttentionValues) -> DocumentSection:
    query, keys = np.array([figures.QUERY]), np.array(figures.KEYS)
    scores = Matrix(values.dot_products, digits=0)
    dot_products = row(Symbol("q"), KT, "=", Matrix(query, 0), Matrix(keys.T, 0), "=", scores)
    scaled = Fraction(Symbol("0.1 q Kᵀ"), Root(Number(2)))
    return DocumentSection(
        "1. One query",
        [
            Paragraph(
                "The word at position 2 has a query q, and three words have keys. The attention score of each key "
                "is its dot product with the query:"
            ),
            Formula(dot_products),
            Paragraph(
                "The softmax turns scores into weights. These scores are so large that the last key gets all of the "
                "weight but 10⁻³⁰. So the second word attends only to the third, which comes after it:"
            ),
            Formula(row(Call("softmax", row(Symbol("q"), KT)), "=", Matrix(values.unscaled))),
            Paragraph(
                "Attention scores grow with the width, and with large scores one key gets everything. So they are "
                "divided by the square root of the width: the scaled attention scores. A tenth of the query "
                "shows the effect: first the weights without this scaling, then with it, then the output:"
            ),
            Formula(row(Call("softmax", Symbol("0.1 q Kᵀ")), "=", Matrix(values.weak))),
            Formula(row(Call("softmax", scaled), "=", Matrix(values.weak_scaled))),
            Formula(row(Symbol("ṽ"), "=", Matrix(values.weak_scaled), Matrix(keys, 0), "=", Matrix(values.mixture))),
            Paragraph("The source gives no values, so the keys serve as values in this product."),
            *SINGLE_QUERY.parts(),
        ],
    )


def mask(values: AttentionValues) -> DocumentSection:
    unmasked, masked = (
        ["changes" if change else "same" for change in changes]
        for changes in (values.unmasked_changes, values.masked_changes)
    )
    return DocumentSection(
        "2. The mask",
        [
            Paragraph(
                "Each of four words has an attention score for each of the four; the row is the query tx, the column "
                "the key tz. The mask is 1 where tz is not after tx:"
            ),
            Formula(row(Symbol("mask"), "=", Matrix(values.model_mask))),
            Paragraph("Where the mask is 0, the score becomes -∞, and its weight after the softmax is 0:"),
            Formula(
                row(
                    Matrix(np.array(figures.ASSOCIATIONS)),
                    "→",
                    Matrix(values.masked, digits=0),
                    "→",
                    Matrix(values.weights),
                )
            ),
            Paragraph(
                "Without the mask this is BERT's attention, with the mask it is GPT's. The table shows which words' "
                "outputs change when the last word is replaced:"
            ),
            Table(("attention", *(f"word {n + 1}" for n in range(4))), [("unmasked", *unmasked), ("masked", *masked)]),
            *MASKED_ATTENTION.parts(),
            Paragraph("Without the lines 6 and 7 this is unmasked self-attention, as in BERT."),
            *loop_form(values),
        ],
    )


def loop_form(values: AttentionValues) -> list[Part]:
    """The source's loop, which divides each weight by another sum."""
    names = ("the loop", "the softmax")
    weights = np.stack([values.loop_weights[-1], values.weights[-1]])
    lines = np.column_stack([weights, weights.sum(axis=1)])
    return [
        Paragraph(
            "Before the masked matrix the source has a loop: for each t, α_t is exp(s_t) divided by the sum of "
            "exp(s_u) over u = 1 to t. This is a slip. The sum ends at the key t, so each weight is divided by another "
            "sum, and together they are more than 1. It should end at the position of the query. For word 4:"
        ),
        labelled_table(names, ("α₁", "α₂", "α₃", "α₄", "sum"), lines),
    ]


def two_forms(values: DecoderValues) -> DocumentSection:
    rows = [
        ("the listing as printed", values.listing[-1]),
        ("its last norm after the loop", values.overwriting[-1]),
        ("GPT-2's residual", values.residual[-1]),
        ("foretell's model", values.model[-1]),
    ]
    in_loop = np.abs(values.listing - values.overwriting).max()
    inner = Call("LayerNorm", Symbol("X"))
    return DocumentSection(
        "3. The decoder, in several forms",
        [
            Paragraph(
                "DTransformer adds token and position embeddings, applies layers of attention and feed-forward, a last "
                "norm, an unembedding and a softmax."
            ),
            *D_TRANSFORMER.parts(),
            Paragraph(
                "Line 10 has a slip: it is printed inside the loop over the layers, with a scale and a shift for each. "
                "The last norm belongs after the loop, once. With one layer this is the same. With two, it changes "
                f"probabilities by up to {in_loop:.2f} here."
            ),
            Paragraph(
                "The lines 6 to 9 overwrite X with its normalised value and add the attention output to that. GPT-2 "
                "normalises a copy. X itself is not normalised, and all updates are added to it:"
            ),
            Formula(
                row(Symbol("X"), "←", inner, ";", Symbol("X"), "←", Symbol("X"), "+", Call("Attention", Symbol("X")))
            ),
            Formula(row(Symbol("X"), "←", Symbol("X"), "+", Call("Attention", inner))),
            Paragraph(
                f"These are different models. All have the same small random weights and {figures.SIZES.L} layers. "
                f"After the {len(x)} tokens {' '.join(map(str, x))} they predict these probabilities:"
            ),
            labelled_table([name for name, _ in rows], token_labels(5), np.array([p for _, p in rows]), digits=6),
            Paragraph("GPT-2's form is the one that was trained and published. foretell's model uses it."),
            Paragraph("The encoder BERT (ETransformer in the paper and the textbook) differs in three places:"),
            Table(
                ("", "BERT", "GPT"),
                [
                    ("layer norm", "after each sublayer", "before each sublayer"),
                    ("before the unembedding", "one more projection, W_f", "none"),
                    ("attention", "sees both sides", "sees the past: left to right"),
                ],
            ),
        ],
    )


def token_labels(count: int) -> list[str]:
    return [f"token {id}" for id in range(count)]


def training(values: DecoderValues) -> DocumentSection:
    sentence = ", ".join(map(str, figures.IDS))
    rows = [(str(step), f"{values.losses[step]:.4f}") for step in SHOWN_STEPS]
    loss = row(
        "-",
        "log",
        Symbol("P[1, 11987]"),
        "=",
        "-",
        "log",
        Number(figures.P_CAT),
        "=",
        Number(values.loss_of_cat),
    )
    return DocumentSection(
        "4. Training",
        [
            Paragraph(
                f"The sentence '{' '.join(figures.WORDS)}' has the ids {sentence}. The model computes P: a row for "
                "each word, with a probability for each token of the vocabulary. The source prints some of its numbers:"
            ),
            Formula(row(script("P", "θ"), "=", SymbolMatrix(figures.P_PRINTED, figures.WORDS))),
            Paragraph(f"After The, cat is token 11987, and its probability is {figures.P_CAT}. The loss at t = 1 is"),
            Formula(loss),
            Paragraph(
                "The cross entropy with a target that is 1 for cat and 0 for every other token is the same number, "
                f"{values.cross_entropy_of_cat:.4f}, because all other terms are multiplied by 0."
            ),
            Paragraph(
                "DTraining sums this loss over the sequence and moves the parameters against its gradient: "
                f"θ ← θ - η ∇loss. With η = {ETA} on the {len(x)} tokens from above:"
            ),
            Table(("step", "loss"), rows),
            *D_TRAINING.parts(),
        ],
    )


def inference(values: DecoderValues) -> DocumentSection:
    tempered = labelled_table([f"τ = {tau}" for tau in TEMPERATURES], token_labels(5), np.array(values.tempered))
    generated = " ".join(map(str, values.generated))
    return DocumentSection(
        "5. Inference",
        [
            Paragraph(
                "DInference draws the next token from q ∝ p^(1/τ), appends it, and repeats. A low temperature τ makes "
                "likely tokens more likely, a high one makes all tokens more equal:"
            ),
            tempered,
            Paragraph(f"Four tokens drawn at τ = 1, after {' '.join(map(str, x))}: {generated}."),
            *D_INFERENCE.parts(),
        ],
    )


def models() -> DocumentSection:
    rows = []
    for name in MODELS:
        config = preset_config(name)
        banded = "dense and banded in turn" if any(config.windows) else "dense"
        norm = {"pre": "before", "post": "after"}[config.norm_placement]
        billions = f"{count_parameters(config) / 1e9:.3f}"
        rows.append((name, str(config.num_layers), str(config.num_heads), str(config.width), norm, banded, billions))
    return DocumentSection(
        "6. From GPT-1 to GPT-3",
        [
            Paragraph(
                "The decoder comes from the encoder-decoder for translation (Vaswani et al. 2017). Liu et al. 2018 "
                "left out the encoder: one decoder reads the input and writes the output, there for Wikipedia pages."
            ),
            Table(("model", "layers", "heads", "width", "norm", "attention", "billions"), rows),
            Paragraph(
                "GPT-1 normalises after each sublayer. For a task it gets one more layer at the end and is fine-tuned. "
                "GPT-2 normalises before each sublayer and is larger: Habernal's lecture gives 1.542 billion "
                "parameters, the shape has 1.558. GPT-3 has GPT-2's shape, and in every second layer a token sees only "
                "its nearest predecessors. Each model is a preset: foretell train --size gpt2-xl."
            ),
            Paragraph("What they were trained on (GPT-3: Brown et al. 2020):"),
            Table(("model", "text"), figures.CORPORA),
        ],
    )
