"""The logit lens: the prediction if the model stopped after the embedding or after a block.

Source: nostalgebraist, "interpreting GPT: the logit lens", 2020. The last norm and the head are applied to the stream
after every block. They were trained only on its end, so an early reading may be poor although the stream has the
information. The plain lens is an ablation of all later layers: they add zero. The mean-centred one lets them add their
mean over the earlier tokens of the text, which removes the largest error of the plain lens, a bias that all tokens
share (Belrose et al. 2023, "Eliciting Latent Predictions from Transformers with the Tuned Lens", section 3). The first
token is left out of the mean: as an attention sink, it has a stream unlike all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from foretell.config.section import check_known
from foretell.errors import check_count
from foretell.insight.attribution.ablation import FILLS
from foretell.insight.attribution.lens_arrays import LensArrays, read_lens
from foretell.insight.recorded_pass import record
from foretell.language_model import LanguageModel, TokenProbability, decoder_of
from foretell.model.decoder import Decoder, check_logits
from foretell.model.structure import model_structure
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table, ending, fitting, quoted
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import percent

TOP_TOKENS_WIDTH = 44  # columns for the top tokens, so that a row fits in 80
BAR_STEPS = " ▁▂▃▄▅▆▇█"
TITLES = {
    "zero": "logit lens: the last norm and the head applied to the stream",
    "mean": "logit lens: the last norm and the head, with the mean of later layers",
}
MEAN_NOTE = (
    "Later layers add their mean over the earlier tokens, without the first; positions 0 and 1 have none and are read "
    "plainly."
)
POOR_NOTE = (
    "The plain lens is of little use here: in {} of {} readings, the last one after {}, it predicts the winners worse "
    "than chance, one in {:,} for every token. With `mean` instead of `zero` it is mean-centred."
)
TINY = 1e-300  # a probability that is 0 in float64


@torch.no_grad()
def lens_logits(decoder: Decoder, stream: Tensor) -> Tensor:
    """The logits of a stream (..., D) after any layer, by the last norm and the head.

    After the last layer these are the model's logits. A post-norm model has no last norm.
    """
    return decoder.head(decoder.trunk.norm(stream))


def with_later_means(stream: Tensor, last: Tensor) -> Tensor:
    """The stream (T, D) plus the mean of what the later layers add at earlier tokens, without the first token.

    The first two positions have no such tokens and are unchanged, and so is the stream after the last layer.
    """
    added = (last - stream)[1:-1].to(torch.promote_types(stream.dtype, torch.float32)).cumsum(0)  # (T - 2, D)
    counts = torch.arange(1, len(added) + 1, device=stream.device)[:, None]
    return torch.cat([stream[:2], stream[2:] + (added / counts).to(stream.dtype)])


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
    """The logit lens at one or all positions of a text. fill: what the later layers add, `zero` or their `mean`."""

    positions: list[LensPosition]
    fill: str
    vocab_size: int

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
        if self.fill == "mean":
            parts.append(Paragraph(MEAN_NOTE))
        elif poor := self.poor_readings():
            parts.append(Paragraph(POOR_NOTE.format(len(poor), len(last.readings), poor[-1], self.vocab_size)))
        return DocumentSection(TITLES[self.fill], parts)

    def poor_readings(self) -> list[str]:
        """The points that predict worse than chance; empty unless these are most of all points.

        Their mean loss of the winners is larger than if all tokens had the same probability.
        """
        points = list(zip(*(position.readings for position in self.positions), strict=True))
        losses = (-sum(math.log(max(reading.probability, TINY)) for reading in point) for point in points)
        chance = len(self.positions) * math.log(self.vocab_size)
        poor = [point[0].name for point, loss in zip(points, losses, strict=True) if loss > chance]
        return poor if 2 * len(poor) > len(points) else []

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
def logit_lens(model: LanguageModel, text: str, at: int | None = None, top: int = 3, fill: str = "zero") -> LogitLens:
    """The readings after the embedding and after each block of one pass, at position `at` or at all (None).

    fill: what later layers add to the stream, `zero` or their `mean` over earlier tokens (see `with_later_means`).
    """
    check_count("top", top)
    check_known(fill, tuple(FILLS), "replacement")
    structure = model_structure(decoder_of(model))
    recording = record(model, text, structure.stream, structure=structure)
    positions = list(range(len(recording.ids))) if at is None else [recording.position(at)]

    def read(name: str, targets: Sequence[int] | None = None, count: int = top) -> LensArrays:
        """The lens at one point of the stream for all positions."""
        stream = recording.stored(name)
        if fill == "mean":
            stream = with_later_means(stream, recording.stored(structure.stream[-1]))
        arrays = read_lens(model.decoder, stream[positions], model.tokenizer.vocab_size, count, targets)
        check_logits(torch.from_numpy(arrays.logits))
        return arrays

    final = read(structure.stream[-1], count=1)
    winners = final.ids[:, 0].tolist()
    columns = [readings(model, name, read(name, winners)) for name in structure.stream]
    first = [tokens[0] for tokens in likeliest(model, final)]
    texts = [model.tokenizer.decode(recording.ids[: position + 1]) for position in positions]
    rows = map(list, zip(*columns, strict=True))
    read_at = [LensPosition(*parts) for parts in zip(positions, texts, first, rows, strict=True)]
    return LogitLens(read_at, fill, recording.vocabulary)


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
