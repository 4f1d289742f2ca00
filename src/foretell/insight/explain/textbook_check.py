"""`check`: the logits of the model compared with those of the textbook's forward pass, on any text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from foretell.insight.explain.recording import Array, check_steady, to_array
from foretell.insight.explain.steps import plain
from foretell.insight.wording import quoted
from foretell.language_model import LanguageModel
from foretell.textbook.family import decoder_forward
from foretell.textbook.vectors import softmax
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.notebook import Shown

# As shares of the largest logit; bfloat16 has no bound. tests/textbook measures the actual differences
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-3}
SHOWN = 5


@dataclass(frozen=True)
class LogitDifference:
    """The largest difference from the textbook's logits; `share` and `bound` are relative to the largest logit."""

    dtype: str
    largest: float
    share: float
    bound: float | None

    @property
    def holds(self) -> bool:
        """True if the difference is within its bound or has none; False for NaN."""
        return self.bound is None or self.share <= self.bound


@dataclass(frozen=True)
class CheckedToken:
    """A token with its probability by the textbook and by the model in each precision."""

    id: int
    text: str
    textbook: float
    model: dict[str, float]


@dataclass(frozen=True)
class TextbookCheck(Shown):
    """The textbook, in float64, compared with the model in its own precision and in float64."""

    text: str
    count: int
    tokens: tuple[CheckedToken, ...]
    differences: tuple[LogitDifference, ...]

    @property
    def holds(self) -> bool:
        """True if all differences are within their bounds."""
        return all(difference.holds for difference in self.differences)

    @property
    def verdict(self) -> str:
        """`holds` as a sentence."""
        if self.holds:
            return "The model computes what the textbook computes."
        broken = ", ".join(difference.dtype for difference in self.differences if not difference.holds)
        return f"The model does NOT compute what the textbook computes: the difference exceeds the bound in {broken}."

    def document(self) -> DocumentSection:
        kinds = [difference.dtype for difference in self.differences]
        header = ("token", "id", "textbook", *(f"model {kind}" for kind in kinds))
        rows = [
            (quoted(token.text), str(token.id), *(f"{value:.8f}" for value in (token.textbook, *token.model.values())))
            for token in self.tokens
        ]
        note = "Textbook: the algorithms of the literature in NumPy, one vector at a time, in float64."
        return DocumentSection(
            f"Textbook and model, after {self.count} token{'s' if self.count > 1 else ''}",
            [Table(header, rows), Paragraph(note), self._differences(), Paragraph(self.verdict)],
        )

    def to_json(self) -> dict[str, Any]:
        tokens = [asdict(token) for token in self.tokens]
        differences = [{**asdict(difference), "holds": difference.holds} for difference in self.differences]
        return plain({"text": self.text, "tokens": tokens, "differences": differences, "holds": self.holds})

    def _differences(self) -> Table:
        header = ("all logits, all positions", "largest difference", "share of the largest", "bound", "")
        rows = [
            (
                f"model in {difference.dtype}",
                f"{difference.largest:.1e}",
                f"{difference.share:.1e}",
                *bound_words(difference),
            )
            for difference in self.differences
        ]
        return Table(header, rows)


def bound_words(difference: LogitDifference) -> tuple[str, str]:
    """The bound and whether it is kept, as words."""
    if difference.bound is None:
        return "none", ""
    return f"{difference.bound:.0e}", "kept" if difference.holds else "BROKEN"


def check(model: LanguageModel, text: str) -> TextbookCheck:
    """Run a text through the textbook's decoder and through the model, and compare all logits.

    The model runs as it is and once more with its weights in float64. Raises `UsageError` for an empty text.
    """
    ids = model.encode_fitting(text)
    check_steady(model)
    weights = {path: to_array(weight) for path, weight in model.decoder.named_parameters()}
    textbook = decoder_forward(model.decoder.config, weights, ids)  # (T, V)
    logits = {model.dtype: model_logits(model, ids), torch.float64: logits_in_float64(model, ids)}
    differences = tuple(compare(dtype, own, textbook) for dtype, own in logits.items())
    named = {name_of(dtype): own for dtype, own in logits.items()}
    return TextbookCheck(text, len(ids), top_tokens(model, textbook, named), differences)


@torch.no_grad()
def model_logits(model: LanguageModel, ids: list[int]) -> Array:
    """The model's own logits, (T, V)."""
    return to_array(model.decoder(torch.tensor([ids], device=model.device))[0])


@torch.no_grad()
def logits_in_float64(model: LanguageModel, ids: list[int]) -> Array:
    """The logits (T, V) of the same modules with their weights in float64, on the CPU."""
    weights = {path: weight.detach().cpu().double() for path, weight in model.decoder.named_parameters()}
    return to_array(functional_call(model.decoder, weights, (torch.tensor([ids]),))[0])


def compare(dtype: torch.dtype, logits: Array, textbook: Array) -> LogitDifference:
    """The largest difference of logits (T, V) in one precision from the textbook's."""
    largest = float(np.abs(logits - textbook).max())
    scale = float(np.abs(textbook).max())
    share = largest / scale if largest else 0.0
    return LogitDifference(name_of(dtype), largest, share, BOUNDS.get(dtype))


def top_tokens(model: LanguageModel, textbook: Array, logits: dict[str, Array]) -> tuple[CheckedToken, ...]:
    """The most probable next tokens by the textbook, with the model's probabilities."""
    vocabulary = min(model.tokenizer.vocab_size, textbook.shape[1])
    expected = softmax(textbook[-1, :vocabulary])
    own = {kind: softmax(values[-1, :vocabulary]) for kind, values in logits.items()}
    best = np.argsort(-expected, kind="stable")[:SHOWN]
    return tuple(
        CheckedToken(
            token_id,
            model.tokenizer.text_of(token_id),
            float(expected[token_id]),
            {kind: float(probabilities[token_id]) for kind, probabilities in own.items()},
        )
        for token_id in best.tolist()
    )


def name_of(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")
