"""The logit lens: the prediction if the model stopped after the embedding or after a block.

Source: nostalgebraist, "interpreting GPT: the logit lens", 2020. The last norm and the head are applied to the stream
after every block. They were trained only on its end, so an early reading may be poor although the stream has the
information.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.errors import check_count
from foretell.insight.attribution.lens_arrays import LensArrays, read_lens
from foretell.insight.recorded_pass import record
from foretell.language_model import LanguageModel, TokenProbability, decoder_of
from foretell.model.decoder import Decoder, check_logits
from foretell.model.structure import model_structure
from foretell.typesetting.document import DocumentSection, Part, Table, ending, fitting, quoted
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import percent

TOP_TOKENS_WIDTH = 44  # columns for the top tokens, so that a row fits in 80
BAR_STEPS = " ▁▂▃▄▅▆▇█"


@torch.no_grad()
def lens_logits(decoder: Decoder, stream: Tensor) -> Tensor:
    """The logits of a stream (..., D) after any layer, by the last norm and the head.

    After the last layer these are the model's logits. A post-norm model has no last norm.
    """
    return decoder.head(decoder.trunk.norm(stream))


@dataclass(frozen=True)
class LensReading:
    """The prediction from a point of the stream: the top tokens, and probability and rank of the final winner.

    rank 1 is the most probable token.
    """

    name: str
    tokens: list[TokenProbability]
    probability: float
    rank: int


@dataclass(frozen=True)
class LensPosition:
    """All readings at a position, from the embedding to the last block (the model's prediction)."""

    position: int
    context: str
    winner: TokenProbability
    readings: list[LensReading]

    @property
    def settled(self) -> str:
        """The name of the first point from which the winner always ranks first."""
        settled = self.readings[-1].name
        for reading in reversed(self.readings):
            if reading.rank > 1:
                break
            settled = reading.name
        return settled


@dataclass(frozen=True, repr=False)
class LogitLens(Shown):
    """The logit lens at one or all positions of a text."""

    positions: list[LensPosition]

    @property
    def subject(self) -> str:
        return ending(self.positions[-1].context)

    def document(self) -> DocumentSection:
        """One line per position if there are several, then all readings of the last position."""
        parts: list[Part] = [self._overview()] if len(self.positions) > 1 else []
        last = self.positions[-1]
        rows = []
        for reading in last.readings:
            tokens = (f"{quoted(token.text)} {percent(token.probability)}" for token in reading.tokens)
            top = fitting(tokens, TOP_TOKENS_WIDTH)
            rows.append((reading.name, percent(reading.probability), str(reading.rank), top))
        detail = Table(("read after", quoted(last.winner.text), "rank", "top tokens"), rows)
        parts.append(DocumentSection(f"after {ending(last.context)} (position {last.position})", [detail]))
        return DocumentSection("logit lens: the last norm and the head applied to the stream", parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _overview(self) -> Table:
        rows = []
        for lens in self.positions:
            steps = (BAR_STEPS[round(reading.probability * (len(BAR_STEPS) - 1))] for reading in lens.readings)
            winner, probability = quoted(lens.winner.text), percent(lens.winner.probability)
            rows.append((str(lens.position), winner, probability, f"▏{''.join(steps)}▕", lens.settled))
        return Table(("after", "wins", "with", "by layer", "first since"), rows)


@torch.inference_mode()
def logit_lens(model: LanguageModel, text: str, at: int | None = None, top: int = 3) -> LogitLens:
    """The readings after the embedding and after each block of one pass, at position `at` or at all (None)."""
    check_count("top", top)
    structure = model_structure(decoder_of(model))
    recording = record(model, text, structure.stream, structure=structure)
    positions = list(range(len(recording.ids))) if at is None else [recording.position(at)]

    def read(name: str, targets: Sequence[int] | None = None, count: int = top) -> LensArrays:
        """The lens at one point of the stream for all positions."""
        arrays = read_lens(model.decoder, recording.stored(name)[positions], model.tokenizer.vocab_size, count, targets)
        check_logits(torch.from_numpy(arrays.logits))
        return arrays

    final = read(structure.stream[-1], count=1)
    winners = final.ids[:, 0].tolist()
    columns = [readings(model, name, read(name, winners)) for name in structure.stream]
    first = [tokens[0] for tokens in likeliest(model, final)]
    texts = [model.tokenizer.decode(recording.ids[: position + 1]) for position in positions]
    rows = map(list, zip(*columns, strict=True))
    return LogitLens([LensPosition(*parts) for parts in zip(positions, texts, first, rows, strict=True)])


def likeliest(model: LanguageModel, lens: LensArrays) -> list[list[TokenProbability]]:
    rows = zip(lens.ids.tolist(), lens.probabilities.tolist(), lens.logprobs.tolist(), strict=True)
    return [
        [TokenProbability(token, model.tokenizer.text_of(token), *rest) for token, *rest in zip(*row, strict=True)]
        for row in rows
    ]


def readings(model: LanguageModel, name: str, lens: LensArrays) -> list[LensReading]:
    """The readings at one point of the stream for all positions."""
    rows = zip(likeliest(model, lens), lens.following.tolist(), (lens.ranks + 1).tolist(), strict=True)
    return [LensReading(name, *row) for row in rows]
