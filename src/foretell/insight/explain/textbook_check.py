"""`check`: compares the model's logits with the textbook's on any text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretell.errors import counted
from foretell.insight.explain.steps import plain
from foretell.insight.recorded_pass import Array, steady_ids, to_array
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.quantized_linear import plain_weights
from foretell.system.device import dtype_name
from foretell.textbook.attention import softmax
from foretell.textbook.family import ModuleWeights, decoder_stream, unembed
from foretell.typesetting.document import DocumentSection, Paragraph, Table, quoted
from foretell.typesetting.html import Shown

# Relative to the largest logit; bfloat16 has no bound. tests/textbook measures the actual differences
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-3}
SHOWN = 5
LOGITS_AT_ONCE = 2**22  # elements: 32 MiB in float64


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

    def row(self) -> tuple[str, ...]:
        """The row of the table, with the bound and whether it holds."""
        bound = ("none", "") if self.bound is None else (f"{self.bound:.0e}", "kept" if self.holds else "BROKEN")
        return f"model in {self.dtype}", f"{self.largest:.1e}", f"{self.share:.1e}", *bound


@dataclass(frozen=True)
class CheckedToken:
    """A token with its probability according to the textbook and the model in each precision."""

    id: int
    text: str
    textbook: float
    model: dict[str, float]


@dataclass(frozen=True)
class TextbookCheck(Shown):
    """The comparison of the textbook, in float64, with the model in its own precision and in float64."""

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
        compared = ("all logits, all positions", "largest difference", "share of the largest", "bound", "")
        differences = Table(compared, [difference.row() for difference in self.differences])
        return DocumentSection(
            f"Textbook and model, after {counted(self.count, 'token')}",
            [Table(header, rows), Paragraph(note), differences, Paragraph(self.verdict)],
        )

    def to_json(self) -> dict[str, Any]:
        tokens = [asdict(token) for token in self.tokens]
        differences = [{**asdict(difference), "holds": difference.holds} for difference in self.differences]
        return plain({"text": self.text, "tokens": tokens, "differences": differences, "holds": self.holds})


@torch.no_grad()
def check(model: LanguageModel, text: str) -> TextbookCheck:
    """Run a text through the textbook's decoder and the model, and compare all logits.

    The model runs in its own precision and in float64. Logits are computed and compared a few positions at a time.
    Raises `UsageError` for an empty text.
    """
    ids = steady_ids(model, text)
    weights = {path: to_array(weight) for path, weight in plain_weights(model.decoder).items()}
    stream = decoder_stream(model.config, weights, ids)  # T vectors (D,)
    count = max(1, LOGITS_AT_ONCE // model.config.vocab_size)  # positions at a time
    passes = [ModelPass(model, dtype, ids) for dtype in dict.fromkeys((model.dtype, torch.float64))]
    scale = 0.0
    textbook = np.empty((0, 0))
    for start in range(0, len(ids), count):
        part = stream[start : start + count]
        textbook = np.stack([unembed(model.config, ModuleWeights(weights), x) for x in part])  # (n, V)
        scale = float(np.maximum(scale, np.abs(textbook).max()))  # keeps NaN
        for model_pass in passes:
            model_pass.compare(slice(start, start + count), textbook)
    last = {dtype_name(model_pass.dtype): model_pass.last_logits for model_pass in passes}
    differences = tuple(model_pass.difference(scale) for model_pass in passes)
    return TextbookCheck(text, len(ids), top_tokens(model, textbook[-1], last), differences)


class ModelPass:
    """A pass of the model's modules over ids (T,) with weights in one dtype, compared in parts.

    largest: the largest difference from the textbook's logits so far. last_logits: logits (V,) of the last position.
    """

    def __init__(self, model: LanguageModel, dtype: torch.dtype, ids: list[int]):
        self.decoder, self.dtype, self.largest = model.decoder, dtype, 0.0
        device = model.device if dtype == model.dtype else torch.device("cpu")
        tensors = (*model.decoder.named_parameters(), *model.decoder.named_buffers())
        self.weights = {
            f"decoder.{path}": tensor.detach().to(device, dtype if tensor.is_floating_point() else None)
            for path, tensor in tensors
        }
        self.hidden = self._call("hidden", torch.tensor([ids], device=device))[0]  # (T, D)
        self.last_logits: Array = np.empty(0)

    def _call(self, half: str, x: Tensor) -> Tensor:
        return functional_call(HalfOf(self.decoder, half), self.weights, (x,))

    def compare(self, positions: slice, textbook: Array) -> None:
        """Compare the logits of some positions with the textbook's (n, V)."""
        logits = to_array(self._call("head", self.hidden[positions]))  # (n, V)
        self.largest = float(np.maximum(self.largest, np.abs(logits - textbook).max()))  # NaN stays
        self.last_logits = logits[-1]

    def difference(self, scale: float) -> LogitDifference:
        """The largest difference so far; `scale` is the textbook's largest logit."""
        share = self.largest / scale if self.largest else 0.0
        return LogitDifference(dtype_name(self.dtype), self.largest, share, BOUNDS.get(self.dtype))


class HalfOf(nn.Module):
    """One half of a decoder's forward, `hidden` or `head`, as a module, which is what `functional_call` takes."""

    def __init__(self, decoder: Decoder, half: str):
        super().__init__()
        self.decoder, self.name = decoder, half

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.decoder, self.name)(x)


def top_tokens(model: LanguageModel, textbook: Array, logits: dict[str, Array]) -> tuple[CheckedToken, ...]:
    """The most probable next tokens by the textbook's last logits (V,), with the model's probabilities."""
    vocabulary = min(model.tokenizer.vocab_size, len(textbook))
    expected = softmax(textbook[:vocabulary])
    own = {kind: softmax(values[:vocabulary]) for kind, values in logits.items()}
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
