"""The lesson on the formal algorithms."""

from __future__ import annotations

import math

import numpy as np

from foretell.lessons.check import Check, above, below, near, printed, same
from foretell.lessons.formal_algorithms import printed as figures
from foretell.lessons.formal_algorithms.attention import LENGTH, AttentionFacts, attention_facts
from foretell.lessons.formal_algorithms.decoder import N_V, TEMPERATURES, DecoderFacts, decoder_facts
from foretell.lessons.formal_algorithms.page import make_page
from foretell.lessons.lesson import Lesson
from foretell.model.cost import count_parameters
from foretell.model.presets import preset_config
from foretell.typesetting.document import DocumentSection

SAME = 1e-12  # two ways of adding up the same float64 products
APART = 1e-3


class FormalAlgorithms(Lesson):
    """Attention, the mask, the decoder twice, training, inference, and the models that came of it."""

    def __init__(self, attention: AttentionFacts | None = None, decoder: DecoderFacts | None = None):
        self.attention = attention or attention_facts()
        self.decoder = decoder or decoder_facts()

    def document(self) -> DocumentSection:
        return make_page(self.attention, self.decoder)

    def checks(self) -> list[Check]:
        return [
            *check_single_query(self.attention),
            *check_mask(self.attention),
            *check_forms(self.decoder),
            *check_training(self.decoder),
            *check_inference(self.decoder),
            *check_models(),
        ]


def check_single_query(found: AttentionFacts) -> list[Check]:
    """The printed dot products, and the softmax that is all but one-hot."""
    return [
        same("q . k for the three keys", figures.DOT_PRODUCTS, found.dot_products),
        above("share of the last key, without scaling", figures.LAST_SHARE, float(found.unscaled[-1])),
        near("shares sum to 1", 1.0, float(found.unscaled.sum()), SAME),
        near("single-query attention scales", found.weak_scaled @ np.array(figures.KEYS), found.mixture, SAME),
    ]


def check_mask(found: AttentionFacts) -> list[Check]:
    """mask[tx, tz] = 1 if tz <= tx, in the textbook and in the model."""
    future = np.triu(np.ones((LENGTH, LENGTH)), k=1)
    alone = [False] * (LENGTH - 1) + [True]
    return [
        same("the mask, textbook", figures.MASK, found.mask),
        same("the mask, model", figures.MASK, found.model_mask),
        near("masked softmax: rows sum to 1", np.ones(LENGTH), found.weights.sum(1), SAME),
        same("masked softmax: 0 above the diagonal", np.zeros((LENGTH, LENGTH)), found.weights * future),
        near("masked softmax: the textbook's and the model's", found.weights, found.model_weights, SAME),
        same("unmasked: positions that move with the last word", [True] * LENGTH, found.open_moves),
        same("masked: positions that move with the last word", alone, found.masked_moves),
    ]


def check_forms(found: DecoderFacts) -> list[Check]:
    """The listing and GPT-2 differ in the residual; the model is the second."""
    return [
        near("the model and GPT-2's residual", found.residual, found.model, SAME),
        above(
            "the listing and GPT-2's residual differ by", APART, float(np.abs(found.overwriting - found.residual).max())
        ),
        near("each P sums to 1", np.ones(len(found.model)), found.model.sum(1), SAME),
    ]


def check_training(found: DecoderFacts) -> list[Check]:
    """The loss at t = 1 and what descent makes of a loss."""
    return [
        printed("loss at t = 1", -math.log(figures.P_CAT), found.loss_of_cat, digits=10),
        near("and the cross entropy with a one-hot target", found.loss_of_cat, found.cross_entropy_of_cat, SAME),
        same("the vocabulary holds the printed ids", True, max(figures.IDS) < N_V),
        below("gradient descent: share of the loss that is left", 0.5, found.losses[-1] / found.losses[0]),
    ]


def check_inference(found: DecoderFacts) -> list[Check]:
    """p^(1/temperature), here and in generation."""
    return [
        *(
            near(f"temperature {tau}: the textbook's and generation's", one, other, SAME)
            for tau, one, other in zip(TEMPERATURES, found.tempered, found.sampler, strict=True)
        ),
        near("temperature 0.5 squares the ratios", squared(found.tempered[1]), found.tempered[0], SAME),
        same("tokens that were asked for", 4, len(found.generated)),
    ]


def squared(p: np.ndarray) -> np.ndarray:
    """p^2, summing to 1 again."""
    return p**2 / (p**2).sum()


def check_models() -> list[Check]:
    """The shapes of GPT-1 to GPT-3 as their presets have them."""
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
