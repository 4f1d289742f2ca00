"""Direct logit attribution: the direct contribution of each part of a model to the logit of one token.

A logit is a dot product of the stream with one vector of the head, and the stream is the sum of what the embedding,
each head and each feed-forward layer added. So the logit is a sum of one number per part (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"). The norms on the way are frozen: with the statistics of this pass
they are linear.

A direct contribution is what a part added to the logit with no other part in between. It is not the effect of
removing the part, since later layers read what it wrote and the norms would divide by something else; `ablation`
measures that. It is not evidence for a token by itself either: a number that is added to all logits changes no
probability. A comparison with another token (`against`) removes what is common to both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.attribution.prediction import Prediction, choose_token, make_prediction
from foretell.insight.attribution.stream_parts import StreamDecomposition, StreamParts
from foretell.insight.trace import Trace
from foretell.insight.wording import quoted, signed
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.structure import Structure, model_structure
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.notebook import Shown

BAR_WIDTH = 24
RAISES, LOWERS = "█", "▒"  # bars of parts that raise or lower the logit
SHOWN = 16  # parts listed individually

# The sum is computed in float64 from values that the model has rounded. So it may differ from the logit by up to
# SUM_BOUND * epsilon of the model's dtype * the largest absolute logit; measured: at most 5.1, primer 0.7
SUM_BOUND = 16


@dataclass(frozen=True)
class DirectContribution:
    """The direct contribution of one part, by its address, to the logit."""

    name: str
    value: float


@dataclass(frozen=True)
class DirectLogitAttribution(Shown):
    """All parts in the order of the model; `total` is their sum, `logit` the model's own value.

    With `against`, all numbers are differences: the logit of `token` minus that of `against`.
    """

    where: str
    token: int
    text: str
    against: int | None
    against_text: str | None
    parts: list[DirectContribution]
    total: float
    logit: float

    def largest(self, count: int) -> list[DirectContribution]:
        """The `count` largest parts by absolute value."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:count]

    def document(self) -> DocumentSection:
        """The largest parts with bars, the sum of the others, then the total and the logit."""
        shown = self.largest(SHOWN if len(self.parts) > SHOWN + 1 else len(self.parts))
        longest = abs(shown[0].value) or 1.0
        rows = [(signed(part.value), _bar(part.value / longest), part.name) for part in shown]
        others = len(self.parts) - len(shown)
        if others:
            rest = self.total - sum(part.value for part in shown)
            rows.append((signed(rest), "", f"the other {others} together"))
        ends = [(signed(self.total), "", "their sum"), (signed(self.logit), "", "the model's own")]
        return DocumentSection(
            self._title(), [Paragraph(self.where), Table(("", "", ""), [*rows, ("", "", ""), *ends])]
        )

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["where"]
        return values

    def _title(self) -> str:
        title = f"direct contributions to the logit of {quoted(self.text)}"
        return title if self.against_text is None else f"{title} minus that of {quoted(self.against_text)}"


@torch.inference_mode()
def direct_logit_attribution(
    model: LanguageModel, text: str, token: str | int | None = None, at: int = -1, against: str | int | None = None
) -> DirectLogitAttribution:
    """The direct contribution of every part to a token's logit at position `at` of the text.

    token: text or id; None for the most probable one. Parts are the token and position embeddings, each head
    (`trunk.blocks.3.attention.core[0]`), the biases of attention outputs, each feed-forward layer, the biases of norms
    (`trunk.norm.bias`) and of the head. Their sum equals the logit within SUM_BOUND.
    """
    prediction = make_prediction(model, text, at)
    structure = model_structure(model.decoder)
    weight, bias = head_weights(model.decoder, structure)
    stream = StreamDecomposition(model.decoder, structure).stream(*structure["head"].reads)
    with Trace(model, stream.names()) as trace:
        logits = prediction.logits().double()
    chosen = choose_token(model, token, logits)
    other = None if against is None else choose_token(model, against, logits)
    direction, shift = _readout(weight, bias, [chosen] if other is None else [chosen, other])
    contributions = _multiplied(stream.parts(trace, prediction.at), direction, shift)
    logit = logits[chosen] - (0 if other is None else logits[other])
    return _result(prediction, chosen, other, contributions, float(logit))


def _result(
    prediction: Prediction, token: int, against: int | None, parts: list[DirectContribution], logit: float
) -> DirectLogitAttribution:
    text_of = prediction.model.tokenizer.text_of
    against_text = None if against is None else text_of(against)
    total = sum(part.value for part in parts)
    return DirectLogitAttribution(str(prediction), token, text_of(token), against, against_text, parts, total, logit)


def _multiplied(parts: StreamParts, direction: Tensor, bias: float | None) -> list[DirectContribution]:
    values = (parts.stacked() @ direction).tolist()
    contributions = [DirectContribution(name, value) for name, value in zip(parts.names, values, strict=True)]
    return contributions if bias is None else [*contributions, DirectContribution("head.bias", bias)]


def head_weights(decoder: Decoder, structure: Structure) -> tuple[Tensor, Tensor | None]:
    """The weight (V, D) and bias (V,) of the head. Raises `UsageError` for a head that is not one linear layer."""
    if structure["head"].formula not in ("linear", "tied linear"):
        kind = type(decoder.head).__name__
        raise UsageError(f"head is a {kind}, which is not a linear layer: a logit is not a sum of contributions")
    weight, bias = decoder.head.weight, decoder.head.bias
    assert isinstance(weight, Tensor), "a linear layer has a weight"
    return weight, bias if isinstance(bias, Tensor) else None


def _readout(weight: Tensor, bias: Tensor | None, rows: list[int]) -> tuple[Tensor, float | None]:
    """The vector (D,) whose dot product with the stream is the logit or difference of logits, and the bias term."""
    first, *others = weight[rows].double()
    direction = first - others[0] if others else first
    if bias is None:
        return direction, None
    first, *others = bias[rows].double().tolist()
    return direction, first - sum(others)


def _bar(share: float) -> str:
    """A bar of up to BAR_WIDTH columns, at least one unless the share is zero."""
    return (RAISES if share > 0 else LOWERS) * max(1 if share else 0, round(BAR_WIDTH * abs(share)))
