"""The formal algorithms: attention, mask, decoder, training, inference, and GPT-1 to GPT-3."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from foretell.config.weight_shapes import count_parameters
from foretell.lessons.algorithms_decoder import (
    ETA,
    SIZES,
    STEPS,
    TEMPERATURES,
    descend,
    draw_parameters,
    layer_means,
    model_probabilities,
    norm_in_loop,
    sampler_probabilities,
    x,
)
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, near, printed, same
from foretell.model.attention import hide
from foretell.model.mask import Mask
from foretell.model.presets import preset_config
from foretell.textbook import attention, training, transformer
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table, labelled_table
from foretell.typesetting.expression import Matrix, SymbolMatrix

# Printed in the source
QUERY = [11.0, 12.0]
KEYS = [[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]
DOT_PRODUCTS = [35, 104, 173]
LAST_WEIGHT = 0.999  # the softmax's 0.999..., without scaling

ASSOCIATIONS = [[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34], [41, 42, 43, 44]]
MASK = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]  # mask[tx, tz] = 1 if tz <= tx

WORDS, IDS = ("The", "cat", "sat"), [21, 11987, 5438]
P_CAT = 0.0041  # P[1, 11987], given "The"
P_PRINTED = [  # three rows of P for the sentence, with dots between the second and the last column
    ["0.001", "0.0007", "…", "0.0003"],
    ["0.0013", "0.0065", "…", "0.0001"],
    ["0.079", "0.015", "…", "0.0001"],
]

GPT1 = {"num_layers": 12, "num_heads": 12, "width": 768, "norm_placement": "post"}
GPT2 = {"num_layers": 48, "width": 1600, "norm_placement": "pre"}
GPT2_PARAMETERS = 1.542e9  # the shape with biases and positions has 1.558e9; the paper does not state how it counted
GPT3 = {"num_layers": 96, "width": 12288, "norm_placement": "pre"}

LENGTH = len(ASSOCIATIONS)
N_V = 12_000  # a vocabulary that contains the printed ids
TOKENS = [f"token {id}" for id in range(SIZES.N_V)]
SAME = 1e-12  # the same float64 sums in another order
DIFFERENT = 1e-3
MODELS = ("gpt1", "gpt2", "gpt2-xl", "gpt3-175b")
SHOWN_STEPS = (0, 5, 10, 20, STEPS - 1)
# A listing of the document -> the functions whose code it shows
LISTINGS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Basic single-query attention": (attention.single_query_attention,),
    "Masked self-attention": (attention.attention, attention.attention_weights, attention.masked_softmax),
    "DTransformer, next to the form of GPT-2": (transformer.d_transformer_gpt2, transformer.embed),
    "DTraining": (training.d_training, training.sgd_step, training.loss_and_gradient),
    "DInference": (transformer.d_inference,),
}


class AlgorithmsLesson(Lesson):
    """Attention, the mask, the decoder in two forms, training, inference, and the GPT models."""

    name = "algorithms"

    def __init__(self) -> None:
        self.compute_attention()
        self.compute_decoder()

    def compute_attention(self) -> None:
        """Attention on the printed numbers, by the textbook and by the model's own parts."""
        query, keys, raw = np.array(QUERY), np.array(KEYS), np.array(ASSOCIATIONS, dtype=float)
        columns = attention.unidirectional_mask(LENGTH)  # the textbook has one column per query, the source one row
        model_mask = Mask(LENGTH, LENGTH)
        masked = hide(torch.from_numpy(raw), model_mask)[0, 0]
        self.dot_products = attention.associations(query, keys.T)
        self.unscaled = attention.softmax(self.dot_products)
        self.weak = attention.softmax(self.dot_products / 10)  # with a tenth of the query
        self.weak_scaled = attention.softmax(self.dot_products / 10 / np.sqrt(len(query)))
        self.mixture = attention.single_query_attention(query / 10, list(keys), identity_parameters(len(query)))
        self.mask = columns.T.astype(int)  # the textbook's, one row per query
        self.model_mask = model_mask.allowed[0, 0].numpy().astype(int)
        self.masked = masked.numpy()  # the associations under the mask
        self.weights = attention.masked_softmax(raw.T, columns).T
        self.model_weights = masked.softmax(dim=-1).numpy()
        self.loop_weights = np.stack([loop_weights(scores, t + 1) for t, scores in enumerate(raw)])  # as in the source
        # For each position: does its output change when the last word does?
        self.unmasked_changes = changed_outputs(attention.bidirectional_mask(LENGTH, LENGTH))
        self.masked_changes = changed_outputs(columns)

    def compute_decoder(self) -> None:
        """The outputs P of the decoder algorithms, one row per position, and training and inference."""
        theta = draw_parameters()
        self.listing = norm_in_loop(x, theta).T  # as printed, with the last norm in the loop over the layers
        self.overwriting = transformer.d_transformer_overwriting(x, theta).T  # with the last norm after the loop
        self.residual = transformer.d_transformer_gpt2(x, theta).T
        self.model = model_probabilities(theta)
        P = np.full((N_V, 1), (1 - P_CAT) / (N_V - 1))  # after "The": the rest is spread evenly over the other tokens
        P[IDS[1]] = P_CAT
        one_hot = np.eye(1, N_V, IDS[1])[0]
        self.loss_of_cat = -transformer.conditional_log_probability(P, IDS[:2])  # at t = 1
        self.cross_entropy_of_cat = -float(one_hot @ np.log(P[:, 0]))
        self.losses = descend(theta)
        last = self.residual[-1]
        self.tempered = [transformer.tempered(last, tau) for tau in TEMPERATURES]
        self.sampler = [sampler_probabilities(last, tau) for tau in TEMPERATURES]  # the filters of generation
        model = partial(transformer.d_transformer_gpt2, theta=theta)
        self.generated = transformer.d_inference(x, model, 4, 1.0, np.random.default_rng(0))

    def shown(self) -> dict[str, Any]:
        forms = np.array([P[-1] for P in (self.listing, self.overwriting, self.residual, self.model)])
        loop = np.stack([self.loop_weights[-1], self.weights[-1]])
        return {
            "query": Matrix([QUERY], 0),
            "keys": Matrix(KEYS, 0),
            "transposed_keys": Matrix(np.array(KEYS).T, 0),
            "dot_products": Matrix(self.dot_products, 0),
            "unscaled": self.unscaled,
            "weak": self.weak,
            "weak_scaled": self.weak_scaled,
            "mixture": self.mixture,
            "mask": self.model_mask,
            "associations": ASSOCIATIONS,
            "masked": Matrix(self.masked, 0),
            "weights": self.weights,
            "changes": [
                (name, *("changes" if change else "same" for change in changes))
                for name, changes in (("unmasked", self.unmasked_changes), ("masked", self.masked_changes))
            ],
            "loop": labelled_table(
                ("the loop", "the softmax"), ("α₁", "α₂", "α₃", "α₄", "sum"), np.column_stack([loop, loop.sum(axis=1)])
            ),
            "in_loop": f"{np.abs(self.listing - self.overwriting).max():.2f}",
            "num_layers": SIZES.L,
            "num_tokens": len(x),
            "tokens": " ".join(map(str, x)),
            "forms": labelled_table(
                ("the listing as printed", "its last norm after the loop", "GPT-2's residual", "foretell's model"),
                TOKENS,
                forms,
                digits=6,
            ),
            "sentence": " ".join(WORDS),
            "ids": ", ".join(map(str, IDS)),
            "P_printed": SymbolMatrix(P_PRINTED, WORDS),
            "P_cat": str(P_CAT),
            "P_cat_number": P_CAT,
            "loss_of_cat": self.loss_of_cat,
            "cross_entropy_of_cat": f"{self.cross_entropy_of_cat:.4f}",
            "eta": str(ETA),
            "losses": [(step, f"{self.losses[step]:.4f}") for step in SHOWN_STEPS],
            "tempered": labelled_table([f"τ = {tau}" for tau in TEMPERATURES], TOKENS, np.array(self.tempered)),
            "generated": " ".join(map(str, self.generated)),
            "models": [model_row(name) for name in MODELS],
        }

    def checks(self) -> list[FigureCheck]:
        return [
            *self.check_single_query(),
            *self.check_mask(),
            *self.check_forms(),
            *self.check_training(),
            *self.check_inference(),
            *check_models(),
            *check_listings(self.document()),
        ]

    def solutions(self) -> list[Exercise]:
        p, score, width = self.residual[-1], self.dot_products[-1], len(QUERY)
        hidden = int((~attention.unidirectional_mask(100)).sum())
        cubes = " + ".join(f"{probability:.4f}^3" for probability in p)
        return [
            Exercise(float(score) / math.sqrt(width), f"{score:.0f} / √({width})", "section 1", 0.1),
            Exercise(hidden, "100 · 99 / 2", "the entries above the diagonal, where tz > tx"),
            Exercise(float(transformer.tempered(p, 1 / 3)[1]), f"{p[1]:.4f}^3 / ({cubes})", "section 5, line τ = 1.0"),
        ]

    def check_single_query(self) -> list[FigureCheck]:
        """The printed dot products, and the softmax that is nearly one-hot."""
        mixture = self.weak_scaled @ np.array(KEYS)
        return [
            same("q . k for the three keys", DOT_PRODUCTS, self.dot_products),
            above("weight of the last key, without scaling", LAST_WEIGHT, float(self.unscaled[-1])),
            near("attention weights sum to 1", 1.0, float(self.unscaled.sum()), SAME),
            near("single-query attention scales", mixture, self.mixture, SAME),
        ]

    def check_mask(self) -> list[FigureCheck]:
        """mask[tx, tz] = 1 if tz <= tx, in the textbook and in the model."""
        future = np.triu(np.ones((LENGTH, LENGTH)), k=1)
        only_last = [False] * (LENGTH - 1) + [True]
        return [
            same("the mask, textbook", MASK, self.mask),
            same("the mask, model", MASK, self.model_mask),
            near("masked softmax: rows sum to 1", np.ones(LENGTH), self.weights.sum(1), SAME),
            same("masked softmax: 0 above the diagonal", np.zeros((LENGTH, LENGTH)), self.weights * future),
            near("masked softmax: the textbook's and the model's", self.weights, self.model_weights, SAME),
            above("the loop's weights of the last word: their sum", 2.0, float(self.loop_weights[-1].sum())),
            near(
                "the loop is right for the last visible word alone",
                self.weights.diagonal(),
                self.loop_weights.diagonal(),
                SAME,
            ),
            same("unmasked: positions that change with the last word", [True] * LENGTH, self.unmasked_changes),
            same("masked: positions that change with the last word", only_last, self.masked_changes),
        ]

    def check_forms(self) -> list[FigureCheck]:
        """The listing and GPT-2 have different residuals; the model has GPT-2's."""
        difference, in_loop = (float(np.abs(self.overwriting - other).max()) for other in (self.residual, self.listing))
        return [
            above("the norm inside the loop changes P by", 0.01, in_loop),
            near("the model and GPT-2's residual", self.residual, self.model, SAME),
            above("the listing and GPT-2's residual differ by", DIFFERENT, difference),
            near("each P sums to 1", np.ones(len(self.model)), self.model.sum(1), SAME),
        ]

    def check_training(self) -> list[FigureCheck]:
        """The loss at t = 1, and a loss that falls by gradient descent."""
        return [
            printed("loss at t = 1", -math.log(P_CAT), self.loss_of_cat, digits=10),
            near("and the cross entropy with a one-hot target", self.loss_of_cat, self.cross_entropy_of_cat, SAME),
            same("the vocabulary holds the printed ids", True, max(IDS) < N_V),
            below("gradient descent: share of the loss that is left", 0.5, self.losses[-1] / self.losses[0]),
        ]

    def check_inference(self) -> list[FigureCheck]:
        """p^(1/temperature), in the textbook and in generation."""
        return [
            *(
                near(f"temperature {tau}: the textbook's and generation's", tempered, sampled, SAME)
                for tau, tempered, sampled in zip(TEMPERATURES, self.tempered, self.sampler, strict=True)
            ),
            near("temperature 0.5 squares the ratios", squared(self.tempered[1]), self.tempered[0], SAME),
            same("number of generated tokens", 4, len(self.generated)),
        ]


def squared(p: np.ndarray) -> np.ndarray:
    """p^2, scaled to sum to 1."""
    return p**2 / (p**2).sum()


def check_models() -> list[FigureCheck]:
    """The printed shapes of GPT-1 to GPT-3 equal the presets."""
    shapes = {"gpt1": GPT1, "gpt2-xl": GPT2, "gpt3-175b": GPT3}
    checks = [
        same(f"{name}: {field}", value, getattr(preset_config(name), field))
        for name, shape in shapes.items()
        for field, value in shape.items()
    ]
    windows = preset_config("gpt3-175b").windows
    alternating = all((window is None) == (layer % 2 == 0) for layer, window in enumerate(windows))
    return [
        *checks,
        near("gpt2-xl: parameters", GPT2_PARAMETERS, count_parameters(preset_config("gpt2-xl")), 0.02e9),
        same("gpt3-175b: dense and banded layers alternate", True, alternating),
    ]


def model_row(name: str) -> tuple[str | int, ...]:
    """A preset's shape."""
    config = preset_config(name)
    banded = "dense and banded in turn" if any(config.windows) else "dense"
    norm = {"pre": "before", "post": "after"}[config.norm_placement]
    billions = f"{count_parameters(config) / 1e9:.3f}"
    return name, config.num_layers, config.num_heads, config.width, norm, banded, billions


def check_listings(document: DocumentSection) -> list[FigureCheck]:
    """The code shown with a listing is the code that runs; BERT differs from GPT in three places."""
    classes = (transformer.DTransformerParameters, transformer.ETransformerParameters)
    names = [{field.name for field in dataclasses.fields(parameters)} for parameters in classes]
    means = layer_means()
    return [
        *(
            same(
                f"{title}: code shown that is not the textbook's", [], missing_code(find_listing(document, title), code)
            )
            for title, code in LISTINGS.items()
        ),
        same("BERT's parameters that GPT does not have", ["W_f", "b_f"], sorted(names[1] - names[0])),
        below("BERT normalises at the end of a layer: mean of a vector", SAME, means["BERT"]),
        above("GPT does not: mean of a vector", DIFFERENT, means["GPT"]),
    ]


def find_listing(document: DocumentSection, title: str) -> Table:
    """The table below the line that announces a listing."""
    parts: list[Part] = [
        part for section in document.parts if isinstance(section, DocumentSection) for part in section.parts
    ]
    listing = parts[parts.index(Paragraph(f"{title}, line by line:")) + 1]
    assert isinstance(listing, Table)
    return listing


def missing_code(listing: Table, functions: tuple[Callable[..., Any], ...]) -> list[str]:
    """The names of files and the fragments of code (… is left out) that are not in the functions' source."""
    files = ", ".join(dict.fromkeys(function.__module__.rpartition(".")[2] + ".py" for function in functions))
    source = squeezed("".join(map(inspect.getsource, functions)))
    fragments = [part for _, _, code in listing.rows for part in code.split("…") if squeezed(part) not in source]
    return fragments if listing.header[2] == f"textbook/{files}" else [listing.header[2], *fragments]


def squeezed(code: str) -> str:
    """The code without white space, so that line breaks do not matter."""
    return "".join(code.split())


def loop_weights(scores: attention.Vector, visible: int) -> attention.Vector:
    """The source's loop: exp(s_t) divided by the sum over u = 1 .. t for each visible t, and 0 for the others."""
    weights = np.zeros(len(scores))
    for t in range(visible):
        weights[t] = 1 / np.exp(scores[: t + 1] - scores[t]).sum()
    return weights


def identity_parameters(width: int) -> attention.AttentionParameters:
    """Attention parameters that make queries, keys and values equal to the input vectors."""
    identity, zero = np.eye(width), np.zeros(width)
    return attention.AttentionParameters(identity, zero, identity, zero, identity, zero)


def changed_outputs(mask: attention.BooleanMask) -> list[bool]:
    """For each column of attention's output: does it change when the last vector does?"""
    X = np.random.default_rng(0).normal(size=(2, LENGTH))
    other = np.concatenate([X[:, :-1], -X[:, -1:]], axis=1)
    before, after = (attention.attention(Z, Z, identity_parameters(2), mask) for Z in (X, other))
    return (before != after).any(axis=0).tolist()
