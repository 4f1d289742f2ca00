"""The textbook's forward pass beside the model's, on a user's own model and text: `check`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from foretell.insight.explain.arrays import Array, to_array
from foretell.insight.explain.recording import check_steady
from foretell.insight.explain.steps import plain
from foretell.insight.wording import quoted
from foretell.language_model import LanguageModel
from foretell.textbook.family.decoder import decoder_forward
from foretell.textbook.softmax import softmax
from foretell.typesetting.document import Paragraph, Section, Table
from foretell.typesetting.notebook import Shown

# As shares of the largest logit; in bfloat16 none is promised. How near they really come is in tests/textbook
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-3}
SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """The largest difference of any logit from the textbook's; `share` is of the largest logit, as is the bound."""

    dtype: str
    largest: float
    share: float
    bound: float | None

    @property
    def holds(self) -> bool:
        """Does it keep to the bound, where one is promised? NaN does not."""
        return self.bound is None or self.share <= self.bound


@dataclass(frozen=True)
class CheckedToken:
    """A token with its probability after the text by the textbook, and by the model in each precision."""

    id: int
    text: str
    textbook: float
    model: dict[str, float]


@dataclass(frozen=True)
class Check(Shown):
    """The textbook, in float64, beside the model in its own precision and in float64."""

    text: str
    count: int
    tokens: tuple[CheckedToken, ...]
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Do all differences keep to their bounds?"""
        return all(difference.holds for difference in self.differences)

    @property
    def verdict(self) -> str:
        """The same as a sentence."""
        if self.holds:
            return "The model computes what the textbook computes."
        broken = ", ".join(difference.dtype for difference in self.differences if not difference.holds)
        return f"The model does NOT compute what the textbook computes: the bound is broken in {broken}."

    def document(self) -> Section:
        kinds = [difference.dtype for difference in self.differences]
        header = ("token", "number", "textbook", *(f"model {kind}" for kind in kinds))
        rows = [
            (quoted(one.text), str(one.id), *(f"{value:.8f}" for value in (one.textbook, *one.model.values())))
            for one in self.tokens
        ]
        note = "Textbook: the algorithms of the literature in NumPy, one vector at a time, in float64."
        return Section(
            f"Textbook and model, after {self.count} token{'s' if self.count > 1 else ''}",
            [Table(header, rows), Paragraph(note), self._differences(), Paragraph(self.verdict)],
        )

    def to_json(self) -> dict[str, Any]:
        tokens = [asdict(token) for token in self.tokens]
        differences = [{**asdict(one), "holds": one.holds} for one in self.differences]
        return plain({"text": self.text, "tokens": tokens, "differences": differences, "holds": self.holds})

    def _differences(self) -> Table:
        header = ("all logits, all positions", "largest difference", "share of the largest", "bound", "")
        rows = [
            (f"model in {one.dtype}", f"{one.largest:.1e}", f"{one.share:.1e}", *bound_words(one))
            for one in self.differences
        ]
        return Table(header, rows)


def bound_words(difference: Difference) -> tuple[str, str]:
    """The bound, and whether it is kept."""
    if difference.bound is None:
        return "none", ""
    return f"{difference.bound:.0e}", "kept" if difference.holds else "BROKEN"


def check(model: LanguageModel, text: str) -> Check:
    """Run a text through the textbook's decoder and through the model, and compare all logits.

    The model runs as it is and once more with its weights in float64. Raises `UsageError` for an empty text.
    """
    ids = model.encode_fitting(text)
    check_steady(model)
    weights = {path: to_array(weight) for path, weight in model.decoder.named_parameters()}
    textbook = decoder_forward(model.decoder.config, weights, ids)  # (T, V)
    logits = {model.dtype: model_logits(model, ids), torch.float64: logits_in_float64(model, ids)}
    differences = tuple(compare(dtype, found, textbook) for dtype, found in logits.items())
    named = {name_of(dtype): found for dtype, found in logits.items()}
    return Check(text, len(ids), likeliest(model, textbook, named), differences)


@torch.no_grad()
def model_logits(model: LanguageModel, ids: list[int]) -> Array:
    """The model's own logits, (T, V)."""
    return to_array(model.decoder(torch.tensor([ids], device=model.device))[0])


@torch.no_grad()
def logits_in_float64(model: LanguageModel, ids: list[int]) -> Array:
    """The same forward of the same modules with their weights in float64, on the CPU, (T, V)."""
    weights = {path: weight.detach().cpu().double() for path, weight in model.decoder.named_parameters()}
    return to_array(functional_call(model.decoder, weights, (torch.tensor([ids]),))[0])


def compare(dtype: torch.dtype, found: Array, textbook: Array) -> Difference:
    """How far the logits (T, V) of a precision are from the textbook's."""
    largest = float(np.abs(found - textbook).max())
    scale = float(np.abs(textbook).max())
    share = largest / scale if largest else 0.0
    return Difference(name_of(dtype), largest, share, BOUNDS.get(dtype))


def likeliest(model: LanguageModel, textbook: Array, logits: dict[str, Array]) -> tuple[CheckedToken, ...]:
    """The likeliest tokens after the text by the textbook."""
    vocabulary = min(model.tokenizer.vocab_size, textbook.shape[1])
    expected = softmax(textbook[-1, :vocabulary])
    found = {kind: softmax(one[-1, :vocabulary]) for kind, one in logits.items()}
    best = np.argsort(-expected, kind="stable")[:SHOWN]
    return tuple(
        CheckedToken(
            int(token),
            model.tokenizer.text_of(int(token)),
            float(expected[token]),
            {kind: float(one[token]) for kind, one in found.items()},
        )
        for token in best
    )


def name_of(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")
