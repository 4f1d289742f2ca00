"""What the head makes of a stream that is not at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.insight.attribution.prediction import make_prediction
from foretell.insight.trace import Trace
from foretell.insight.wording import ending, fitting, percent, quoted
from foretell.language_model import LanguageModel, TokenProbability, likeliest
from foretell.model.decoder import Decoder
from foretell.typesetting.document import Part, Section, Table
from foretell.typesetting.notebook import Shown


@torch.no_grad()
def lens_logits(decoder: Decoder, stream: Tensor) -> Tensor:
    """What the last norm and the head make of a stream (..., D) as it is after some layer: the logit lens.

    nostalgebraist 2020, "interpreting GPT: the logit lens". After the last layer these are the model's own logits.
    Where norms come after each sublayer, there is no last norm, and the head reads the stream as it is.
    """
    return decoder.head(decoder.trunk.norm(stream))


LIKELIEST_WIDTH = 44  # columns for them, so that a row fits 80
STEPS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class LensReading:
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
    readings: list[LensReading]

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
class LogitLens(Shown):
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
def logit_lens(model: LanguageModel, text: str, at: int | None = None, top: int = 3) -> LogitLens:
    """Read the stream after the embedding and after each block of one pass, at position `at` or (None) at all."""
    prediction = make_prediction(model, text, -1 if at is None else at)
    places = list(range(len(prediction.ids))) if at is None else [prediction.at]
    with Trace(model, ["embed", "trunk.blocks.*"]) as trace:
        prediction.logits()
    *_, last = trace.names()
    final = _read(model, trace[last][0, places])  # (P, V)
    winners = final.argmax(-1).tolist()
    readings: list[list[LensReading]] = [[] for _ in places]
    for name in trace.names():  # one at a time, since all of them are (L + 1, P, V)
        logprobs = _read(model, trace[name][0, places])
        for row, winner, found in zip(logprobs, winners, readings, strict=True):
            found.append(_reading(model, name, row, winner, top))
    texts = [model.tokenizer.decode(prediction.ids[: place + 1]) for place in places]
    first = [likeliest(model, row, 1)[0] for row in final]
    return LogitLens([LensPosition(*one) for one in zip(places, texts, first, readings, strict=True)])


def _read(model: LanguageModel, stream: Tensor) -> Tensor:
    """Log-probabilities (P, V) of what may follow, from places of the stream (P, D)."""
    return lens_logits(model.decoder, stream)[:, : model.tokenizer.vocab_size].double().log_softmax(-1)


def _reading(model: LanguageModel, name: str, logprobs: Tensor, winner: int, top: int) -> LensReading:
    rank = 1 + int((logprobs > logprobs[winner]).sum())
    return LensReading(name, likeliest(model, logprobs, top), float(logprobs[winner].exp()), rank)


def _step(probability: float) -> str:
    return STEPS[round(probability * (len(STEPS) - 1))]


def _row(reading: LensReading) -> tuple[str, str, str, str]:
    tokens = (f"{quoted(token.text)} {percent(token.probability)}" for token in reading.tokens)
    return reading.name, percent(reading.probability), str(reading.rank), fitting(tokens, LIKELIEST_WIDTH)
