"""What changes in a prediction when a part of the model says nothing, or says the same at every position.

Unlike a direct contribution this is an effect: all that comes later sees the difference. It is not all that a part is
good for: others may do the same and step in (McGrath et al. 2023, "The Hydra Effect"). And an output of zero is nothing
that later layers have learned to read; the mean over positions is nearer to what they know.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError, did_you_mean
from foretell.insight.attribution.address import FILLS, Target, find_targets
from foretell.insight.attribution.prediction import Prediction, choose_token, make_prediction
from foretell.insight.trace import Trace
from foretell.insight.wording import percent, quoted
from foretell.language_model import LanguageModel, TokenProbability
from foretell.typesetting.document import Paragraph, Section, Table
from foretell.typesetting.notebook import Shown

SHOWN = 24


@dataclass(frozen=True)
class Effect:
    """What one ablation does: the token's probability with it, and the distance from the distribution without.

    divergence is the Kullback-Leibler divergence in nats, of the distribution after from the one before:
    sum of before * ln(before / after). winner is the likeliest token now.
    """

    name: str
    probability: float
    divergence: float
    winner: TokenProbability


@dataclass(frozen=True)
class Ablation(Shown):
    """The effects of leaving out each of several parts by itself, the largest divergence first."""

    where: str
    token: TokenProbability
    winner: TokenProbability
    fill: str
    effects: list[Effect]

    def document(self) -> Section:
        """A line for each part."""
        token = quoted(self.token.text)
        before = f"{token} has {percent(self.token.probability)} {self.where}."
        rows = [
            (effect.name, percent(effect.probability), f"{effect.divergence:.4f}", quoted(effect.winner.text))
            for effect in self.effects[:SHOWN]
        ]
        left_out = self.effects[SHOWN:]
        more = f"{len(left_out)} more are at {left_out[0].divergence:.4f} nats or below." if left_out else ""
        header = (f"set to {self.fill}", token, "nats", "now likeliest")
        parts = [Paragraph(before), Table(header, rows), *([Paragraph(more)] if more else [])]
        return Section(f"{token} without a part of the model", parts)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["where"]
        return values


@torch.inference_mode()
def ablate(
    model: LanguageModel, text: str, address: str, token: str | int | None = None, at: int = -1, fill: str = "zero"
) -> Ablation:
    """Run the model once as it is and once for each part that the address names, that part's output replaced.

    address: as in `address.find_targets`. fill: `zero`, or `mean`, the mean over the positions of this text.
    token: text or id; None is the likeliest.
    """
    if fill not in FILLS:
        raise UsageError(f"unknown replacement '{fill}'{did_you_mean(fill, FILLS)}; known: {', '.join(FILLS)}")
    targets = find_targets(model.decoder, address)
    prediction = make_prediction(model, text, at)
    before = model.log_probabilities(prediction.logits())  # (V,)
    chosen = choose_token(model, token, before)
    effects = [_effect(prediction, target, fill, chosen, before) for target in targets]
    effects.sort(key=lambda effect: -effect.divergence)
    value = float(before[chosen])
    asked = TokenProbability(chosen, model.tokenizer.text_of(chosen), float(before[chosen].exp()), value)
    return Ablation(str(prediction), asked, model.top_tokens(before, 1)[0], fill, effects)


def _effect(prediction: Prediction, target: Target, fill: str, token: int, before: Tensor) -> Effect:
    with Trace(prediction.model, replace={target.name: target.change(FILLS[fill])}):
        after = prediction.model.log_probabilities(prediction.logits())
    divergence = float((before.exp() * (before - after)).sum())
    return Effect(str(target), float(after[token].exp()), divergence, prediction.model.top_tokens(after, 1)[0])
