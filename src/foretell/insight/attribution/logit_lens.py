"""The logit lens: what the model would predict if it stopped after the embedding or after a block.

Source: nostalgebraist, "interpreting GPT: the logit lens", 2020. The last norm and the head read the stream after every
block. They were trained on its end only: an early reading may be poor although the information is in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.insight.recording import make_prediction
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel, TokenProbability
from foretell.model.decoder import Decoder, TiedHead, check_logits
from foretell.model.kernels.dispatch import ALIGNMENT
from foretell.model.structure import model_structure
from foretell.typesetting.document import DocumentSection, Part, Table, ending, fitting, percent, quoted
from foretell.typesetting.html import Shown

TOP_TOKENS_WIDTH = 44  # columns for the top tokens, so that a row fits 80
BAR_STEPS = " ▁▂▃▄▅▆▇█"
LOGITS_AT_ONCE = 2**24  # of a product with the head, 64 MiB in float32: 333 rows of GPT-2's vocabulary
REDUCED_AT_ONCE = 2**20  # logits, 4 MiB in float32: four passes over more take three times as long, outside the cache
STRIDED_FROM = 2**13  # logits per row from which the top ones are looked for among the largest of each column
COLUMN = 64  # logits of a column
LEAST_LOGPROB = -200.0  # below it, a probability is 0 in float32


@torch.no_grad()
def lens_logits(decoder: Decoder, stream: Tensor) -> Tensor:
    """The logits of a stream (..., D) after any layer: the last norm and the head applied to it.

    After the last layer these are the model's own logits. A model with norms after each sublayer has no last norm.
    """
    return decoder.head(decoder.trunk.norm(stream))


@dataclass(frozen=True)
class LensArrays:
    """The lens at N points of the stream.

    ids, logits and logprobs (N, K) belong to the top tokens. target_logprobs and ranks (N,) belong to one token per
    point, rank 0 for the most probable; where there is none they are -infinity and -1. Log-probabilities and entropies
    (N,) are in nats.
    """

    ids: np.ndarray
    logits: np.ndarray
    logprobs: np.ndarray
    target_logprobs: np.ndarray
    ranks: np.ndarray
    entropies: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities (N, K) of the top tokens."""
        return np.exp(self.logprobs)

    @property
    def following(self) -> np.ndarray:
        """The probabilities (N,) of the target tokens, 0 where there is none."""
        return np.exp(self.target_logprobs)


@torch.no_grad()
def read_lens(
    decoder: Decoder, stream: Tensor, vocab_size: int, top: int, targets: Sequence[int] | None = None
) -> LensArrays:
    """The lens of a stream (N, D) over the first `vocab_size` tokens. targets: one id per point, -1 for none.

    Nearly all of the time is the head's product; its logits are reduced while they are in the cache.
    """
    ids = torch.tensor([-1] * len(stream) if targets is None else targets, device=stream.device)
    rows, reduced = (max(1, count // decoder.config.vocab_size) for count in (LOGITS_AT_ONCE, REDUCED_AT_ONCE))
    parts, product = [], head_product(decoder, min(rows, len(stream)))
    for some, own in zip(stream.split(rows), ids.split(rows), strict=True):
        logits = product(decoder.trunk.norm(some))[:, :vocab_size]
        precise = torch.promote_types(logits.dtype, torch.float32)
        pairs = zip(logits.split(reduced), own.split(reduced), strict=True)
        parts += [reduce_logits(part.to(precise), target, min(top, vocab_size)) for part, target in pairs]
    return LensArrays(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))


def head_product(decoder: Decoder, rows: int) -> Callable[[Tensor], Tensor]:
    """The head, for at most this number of rows (n, D). The next call may overwrite the logits (n, V) of the last one.

    With GPT-2's 50,257 tokens each row of logits begins at another alignment. In rows of a multiple of ALIGNMENT the
    product takes two thirds of the time on a CPU.
    """
    head, V = decoder.head, decoder.config.vocab_size
    if type(head) is not TiedHead or head.bias is not None or V % ALIGNMENT == 0:
        return head
    weight = head.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return head
    aligned = torch.empty(rows, V + -V % ALIGNMENT)
    return lambda hidden: torch.mm(hidden, weight.T, out=aligned[: len(hidden), :V])


def reduce_logits(logits: Tensor, targets: Tensor, top: int) -> tuple[Tensor, ...]:
    """The fields of `LensArrays` of logits (n, V), which are overwritten."""
    values, ids = top_logits(logits, top)
    largest, has_target = values[:, :1], targets >= 0
    target = logits.gather(1, targets.clamp(min=0)[:, None])  # (n, 1)
    buffer = torch.empty_like(logits)
    # Comparing to bool and adding in integers takes three times as long; float32 counts exactly up to 2^24
    ranks = torch.gt(logits, target, out=buffer).sum(-1).long()
    below = logits.sub_(largest).clamp_(min=LEAST_LOGPROB)  # -infinity times 0 would be NaN
    odds = torch.exp(below, out=buffer)
    total = odds.sum(-1, keepdim=True)  # (n, 1)
    entropies = total.log()[:, 0] - torch.linalg.vecdot(odds, below) / total[:, 0]
    logprobs, target_logprobs = (number - largest - total.log() for number in (values, target))
    target_logprobs = target_logprobs[:, 0].masked_fill(~has_target, -torch.inf)
    return ids, values, logprobs, target_logprobs, ranks.masked_fill(~has_target, -1), entropies


def top_logits(logits: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest logits (n, V) and their ids, as `topk` returns them, in a quarter of its time.

    The largest are in the columns of COLUMN logits, V / COLUMN apart, that have the largest maxima.
    """
    n, V = logits.shape
    width = V // COLUMN
    if V < STRIDED_FROM or top > width:
        return tuple(logits.topk(top))
    whole = width * COLUMN
    columns = logits[:, :whole].unflatten(1, (COLUMN, width)).amax(1).topk(top).indices  # (n, top)
    places = torch.arange(0, whole, width, device=logits.device)
    chosen = (columns[:, :, None] + places).flatten(1)  # (n, top * COLUMN)
    ids = torch.cat((chosen, torch.arange(whole, V, device=logits.device).expand(n, -1)), 1)
    best = logits.gather(1, ids).topk(top)
    return best.values, ids.gather(1, best.indices)


@dataclass(frozen=True)
class LensReading:
    """The prediction from one point of the stream: its top tokens, and probability and rank of the final winner.

    rank 1 is the most probable token.
    """

    name: str
    tokens: list[TokenProbability]
    probability: float
    rank: int


@dataclass(frozen=True)
class LensPosition:
    """All readings at one position, from the embedding to the last block, which gives the model's own prediction."""

    position: int
    context: str
    winner: TokenProbability
    readings: list[LensReading]

    @property
    def settled(self) -> str:
        """The name of the point from which on the winner ranks first."""
        settled = self.readings[-1].name
        for reading in reversed(self.readings):
            if reading.rank > 1:
                break
            settled = reading.name
        return settled


@dataclass(frozen=True)
class LogitLens(Shown):
    """The logit lens at one position of a text or at each."""

    positions: list[LensPosition]

    def document(self) -> DocumentSection:
        """One line per position if there are several, then all readings of the last one."""
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
    """Read the stream after the embedding and after each block of one pass, at position `at` or at all (None)."""
    prediction = make_prediction(model, text, -1 if at is None else at)
    positions = list(range(len(prediction.ids))) if at is None else [prediction.at]
    with Trace(model, model_structure(model.decoder).stream) as trace:
        prediction.logits()

    *_, last = trace.names()

    def read(name: str, targets: Sequence[int] | None = None, count: int = top) -> LensArrays:
        """The lens of one point of the stream at all positions."""
        arrays = read_lens(model.decoder, trace[name][0, positions], model.tokenizer.vocab_size, count, targets)
        check_logits(torch.from_numpy(arrays.logits))
        return arrays

    final = read(last, count=1)
    winners = final.ids[:, 0].tolist()
    columns = [readings(model, name, read(name, winners)) for name in trace.names()]
    first = [tokens[0] for tokens in likeliest(model, final)]
    texts = [model.tokenizer.decode(prediction.ids[: position + 1]) for position in positions]
    rows = map(list, zip(*columns, strict=True))
    return LogitLens([LensPosition(*parts) for parts in zip(positions, texts, first, rows, strict=True)])


def likeliest(model: LanguageModel, lens: LensArrays) -> list[list[TokenProbability]]:
    """The top tokens of each point."""
    rows = zip(lens.ids.tolist(), lens.probabilities.tolist(), lens.logprobs.tolist(), strict=True)
    return [
        [TokenProbability(token, model.tokenizer.text_of(token), *rest) for token, *rest in zip(*row, strict=True)]
        for row in rows
    ]


def readings(model: LanguageModel, name: str, lens: LensArrays) -> list[LensReading]:
    """The readings at all positions of one point of the stream."""
    rows = zip(likeliest(model, lens), lens.following.tolist(), (lens.ranks + 1).tolist(), strict=True)
    return [LensReading(name, *row) for row in rows]
