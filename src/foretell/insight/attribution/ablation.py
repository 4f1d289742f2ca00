"""What is to be left out, in writing: globs of trace names, with an index for one head, or each, behind it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError, did_you_mean
from foretell.insight.attribution.prediction import Prediction, choose_token, make_prediction
from foretell.insight.points import Point, make_catalog
from foretell.insight.replacement import Change
from foretell.insight.trace import Trace
from foretell.insight.wording import percent, quoted
from foretell.language_model import LanguageModel, TokenProbability, likeliest
from foretell.model.decoder import Decoder
from foretell.paths import matches, select
from foretell.typesetting.document import Paragraph, Section, Table
from foretell.typesetting.notebook import Shown

ADDRESS = re.compile(r"(?P<glob>[^\[\]]+)(?:\[(?P<index>\d+|\*)\])?")
HEADED = ("core", "query", "key", "value")  # a core and what goes into it are (B, H or G, T, E)


@dataclass(frozen=True)
class AblationTarget:
    """A value of the pass, or one head of it."""

    name: str
    head: int | None = None

    def __str__(self) -> str:
        return self.name if self.head is None else f"{self.name}[{self.head}]"

    def change(self, fill: Change) -> Change:
        """The replacement: what `fill` makes of the value, in this head alone where there is one."""
        if self.head is None:
            return fill

        def of_one_head(value: Tensor) -> Tensor:
            changed = value.clone()
            changed[:, self.head] = fill(value)[:, self.head]
            return changed

        return of_one_head


FILLS: dict[str, Change] = {
    "zero": torch.zeros_like,
    "mean": lambda value: value.mean(-2, keepdim=True).expand_as(value),  # over the positions of the text
}


def find_targets(decoder: Decoder, address: str) -> list[AblationTarget]:
    """All that an address names: `trunk.blocks.*.feedforward`; one head, `**.attention.core[0]`; each, `**.core[*]`."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(f"'{address}' is no address; write a name or glob, and [0] or [*] behind it for heads")
    names = select(found["glob"], replaceable(decoder, found["glob"]))
    if found["index"] is None:
        return [AblationTarget(name) for name in names]
    return [AblationTarget(name, head) for name in names for head in _heads(decoder, name, found["index"])]


def replaceable(decoder: Decoder, glob: str) -> list[str]:
    """The names of what modules hand out, all of which a pass can be made to go on without.

    A glob that matches only what is computed beside the pass is a `UsageError`.
    """
    entries = make_catalog(decoder).entries
    names = [name for name, entry in entries.items() if isinstance(entry, Point)]
    matched = [name for name in entries if matches(glob, name)]
    if matched and not any(name in names for name in matched):
        first = matched[0]
        raise UsageError(
            f"{first} is computed beside the pass, which does not read it; leave out {first.rpartition('.')[0]} instead"
        )
    return names


def _heads(decoder: Decoder, name: str, index: str) -> range:
    parents, last = name.rpartition(".")[0], _last(name)
    if last not in HEADED or (last != "core" and _last(parents) != "core"):
        raise UsageError(f"{name} has no heads to choose from; attention.core and what is named below it have")
    config = decoder.config
    count = config.num_kv_heads if last in ("key", "value") else config.num_heads
    if index == "*":
        return range(count)
    if int(index) >= count:
        raise UsageError(f"{name} has no head {index}; its heads are 0 to {count - 1}")
    return range(int(index), int(index) + 1)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


SHOWN = 24


@dataclass(frozen=True)
class AblationEffect:
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
    effects: list[AblationEffect]

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
    before = prediction.logits().double().log_softmax(-1)  # (V,)
    chosen = choose_token(model, token, before)
    effects = [_effect(prediction, target, fill, chosen, before) for target in targets]
    effects.sort(key=lambda effect: -effect.divergence)
    value = float(before[chosen])
    asked = TokenProbability(chosen, model.tokenizer.text_of(chosen), float(before[chosen].exp()), value)
    return Ablation(str(prediction), asked, likeliest(model, before, 1)[0], fill, effects)


def _effect(prediction: Prediction, target: AblationTarget, fill: str, token: int, before: Tensor) -> AblationEffect:
    with Trace(prediction.model, replace={target.name: target.change(FILLS[fill])}):
        after = prediction.logits().double().log_softmax(-1)
    divergence = float((before.exp() * (before - after)).sum())
    return AblationEffect(str(target), float(after[token].exp()), divergence, likeliest(prediction.model, after, 1)[0])
