"""The logit lens: what the model would say if it stopped after the embedding, or after a block.

Source: nostalgebraist, "interpreting GPT: the logit lens", 2020. The stream is read by the model's own last norm and
head, which were trained to read it at its end only: an early reading may be poor although what it needs is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.insight.attribution.prediction import make_prediction
from foretell.insight.early import logits_after
from foretell.insight.trace import Trace
from foretell.insight.wording import ending, fitting, percent, quoted
from foretell.language_model import LanguageModel, TokenProbability
from foretell.typesetting.document import Part, Section, Table
from foretell.typesetting.notebook import Shown

LIKELIEST_WIDTH = 44  # columns for them, so that a row fits 80
STEPS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Reading:
    """One place of the stream, read: the likeliest tokens, and how the token that wins at the end stands here.

    rank 1 is the likeliest.
    """

    name: str
    tokens: list[TokenProbability]
    probability: float
    rank: int


@dataclass(frozen=True)
class LensPosition:
    """All readings at one position, from the embedding to the last block, whose reading is the model's prediction."""

    position: int
    context: str
    winner: TokenProbability
    readings: list[Reading]

    @property
    def settled(self) -> str:
        """Where the winner came first and stayed so."""
        settled = self.readings[-1].name
        for reading in reversed(self.readings):
            if reading.rank > 1:
                break
            settled = reading.name
        return settled


@dataclass(frozen=True)
class Lens(Shown):
    """A text read by the lens, at one position or at each."""

    positions: list[LensPosition]

    def document(self) -> Section:
        """A line for each position where there are several; then the last one place by place."""
        parts: list[Part] = [self._overview()] if len(self.positions) > 1 else []
        last = self.positions[-1]
        title = f"after {ending(last.context)} (position {last.position})"
        header = ("read after", quoted(last.winner.text), "rank", "likeliest")
        detail = Table(header, [_row(reading) for reading in last.readings])
        return Section("the stream, read by the last norm and the head", [*parts, Section(title, [detail])])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _overview(self) -> Table:
        rows = [
            (
                str(one.position),
                quoted(one.winner.text),
                percent(one.winner.probability),
                f"▏{''.join(_step(reading.probability) for reading in one.readings)}▕",
                one.settled,
            )
            for one in self.positions
        ]
        return Table(("after", "wins", "with", "place by place", "first since"), rows)


@torch.inference_mode()
def logit_lens(model: LanguageModel, text: str, at: int | None = None, top: int = 3) -> Lens:
    """Read the stream after the embedding and after each block of one pass, at position `at` or (None) at all."""
    prediction = make_prediction(model, text, -1 if at is None else at)
    places = list(range(len(prediction.ids))) if at is None else [prediction.at]
    with Trace(model, ["embed", "trunk.blocks.*"]) as trace:
        prediction.logits()
    *_, last = trace.names()
    final = _read(model, trace[last][0, places])  # (P, V)
    winners = final.argmax(-1).tolist()
    readings: list[list[Reading]] = [[] for _ in places]
    for name in trace.names():  # one at a time, since all of them are (L + 1, P, V)
        logprobs = _read(model, trace[name][0, places])
        for row, winner, found in zip(logprobs, winners, readings, strict=True):
            found.append(_reading(model, name, row, winner, top))
    texts = [model.tokenizer.decode(prediction.ids[: place + 1]) for place in places]
    first = [model.top_tokens(row, 1)[0] for row in final]
    return Lens([LensPosition(*one) for one in zip(places, texts, first, readings, strict=True)])


def _read(model: LanguageModel, stream: Tensor) -> Tensor:
    """Log-probabilities (P, V) of what may follow, from places of the stream (P, D)."""
    return model.log_probabilities(logits_after(model.decoder, stream))


def _reading(model: LanguageModel, name: str, logprobs: Tensor, winner: int, top: int) -> Reading:
    rank = 1 + int((logprobs > logprobs[winner]).sum())
    return Reading(name, model.top_tokens(logprobs, top), float(logprobs[winner].exp()), rank)


def _step(probability: float) -> str:
    return STEPS[round(probability * (len(STEPS) - 1))]


def _row(reading: Reading) -> tuple[str, str, str, str]:
    tokens = (f"{quoted(token.text)} {percent(token.probability)}" for token in reading.tokens)
    return reading.name, percent(reading.probability), str(reading.rank), fitting(tokens, LIKELIEST_WIDTH)
