"""A sampler that keeps a receipt of every token it draws."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foretell.config import SamplingConfig, Section, make_section
from foretell.errors import DataError
from foretell.generation.sampling import History, Sampler, pick
from foretell.generation.sequence import Sequence
from foretell.insight.wording import fitting, percent, quoted
from foretell.text import Tokenizer
from foretell.typesetting.document import Section as Document
from foretell.typesetting.document import Table
from foretell.typesetting.notebook import Shown

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16)}
DTYPES["float16"] = torch.float16
WORDS = {2: (torch.int16, "<i2"), 4: (torch.int32, "<i4"), 8: (torch.int64, "<i8")}  # by bytes: numpy has no bfloat16


class PackedVector(Section):
    """A vector in writing."""

    dtype: str
    data: str


def pack(vector: Tensor) -> dict[str, str]:
    """A vector (N,) of floating-point numbers as `{"dtype", "data"}`."""
    word, order = WORDS[vector.itemsize]
    numbers = vector.contiguous().view(word).numpy().astype(order)
    return {"dtype": str(vector.dtype).removeprefix("torch."), "data": base64.b64encode(numbers.tobytes()).decode()}


def unpack(packed: PackedVector) -> Tensor:
    """The vector with the bits that it had; what was not packed by `pack` is a `DataError`."""
    if packed.dtype not in DTYPES:
        raise DataError(f"packed numbers have the dtype '{packed.dtype}'; known are {', '.join(sorted(DTYPES))}")
    dtype = DTYPES[packed.dtype]
    word, order = WORDS[dtype.itemsize]
    try:
        data = base64.b64decode(packed.data, validate=True)
    except binascii.Error as error:
        raise DataError(f"packed numbers are not base64: {error}") from None
    if not data or len(data) % dtype.itemsize:
        raise DataError(f"packed numbers have {len(data)} bytes, which is not a whole number of {packed.dtype}")
    numbers = np.frombuffer(data, order)
    return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="))).to(word).view(dtype)


FORMAT = "foretell.receipt/1"
TOP = 5  # likeliest tokens of a stage that are named
LIKELIEST_WIDTH = 48  # columns for them, so that a receipt fits 80


@dataclass(frozen=True, eq=False)
class ReceiptStage:
    """The whole vocabulary after one filter: logits (V,) in float64, -infinity for what is ruled out.

    name is the filter's, `logits` before the first; setting is the number that it was given.
    """

    name: str
    setting: float | None
    logits: Tensor

    @property
    def probabilities(self) -> Tensor:
        """Of every token, (V,), if nothing else were to follow."""
        return self.logits.softmax(-1)

    @property
    def left(self) -> int:
        """How many tokens can still be drawn."""
        return int((self.logits > -torch.inf).sum())

    def top_tokens(self, count: int) -> list[tuple[int, float]]:
        """The first `count` of those left, as (id, probability), largest first; of equal ones the lower id first."""
        ordered, order = self.probabilities.sort(descending=True, stable=True)
        count = min(count, self.left)
        return list(zip(order[:count].tolist(), ordered[:count].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Receipt(Shown):
    """What decided one token: the model's logits (V,) as they came, all ids before it, the settings, the number drawn.

    Nothing else is kept. What each filter did is computed by the filters themselves whenever it is asked for: exactly
    as it was on the same kind of machine; elsewhere the last bits of a probability may differ, and with them a token
    whose draw falls within about 1e-15 of the edge of its interval.
    vocab_size: only the first so many ids could be drawn. sample: which stream of random numbers the draw is from.
    """

    logits: Tensor = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    sampling: SamplingConfig
    vocab_size: int | None
    sample: int
    draw: float
    token: int
    tokenizer: Tokenizer | None = field(default=None, repr=False)

    @property
    def position(self) -> int:
        """Where in the text the token stands; the draw is the one of this position."""
        return len(self.ids)

    def stages(self) -> Iterator[ReceiptStage]:
        """The vocabulary as the model left it, then after each filter in the order they ran."""
        sampler = Sampler(self.sampling, self.vocab_size)
        for name, logits in sampler.stages(self.logits[None], [list(self.ids)]):
            yield ReceiptStage(name, getattr(self.sampling, name, None), logits[0])

    def replay(self) -> int:
        """The token that the logits, the filters and the number drawn lead to."""
        return pick(self.drawn_from[None], [self.draw])[0]

    @property
    def drawn_from(self) -> Tensor:
        """The probability of every token (V,) after the last filter."""
        *_, last = self.stages()
        return last.probabilities

    @property
    def interval(self) -> tuple[float, float]:
        """From where to where the token lies in the cumulated probabilities of what was left, in the order of ids."""
        cumulated = self.drawn_from.cumsum(-1)
        before = float(cumulated[self.token - 1]) if self.token else 0.0
        return before / float(cumulated[-1]), float(cumulated[self.token] / cumulated[-1])

    def check(self) -> None:
        """A `DataError` of one line where the receipt does not lead to the token, or the draw, that it names."""
        sampler = Sampler(self.sampling, self.vocab_size)
        where = f"the receipt of position {self.position} does not hold"
        expected = sampler.draw(self.sample, self.position)
        if self.draw != expected:
            of = f"seed {self.sampling.seed}, sample {self.sample}, position {self.position}"
            raise DataError(f"{where}: it names the draw {self.draw!r}, and that of {of} is {expected!r}")
        token = self.replay()
        if token != self.token:
            raise DataError(f"{where}: it names {self._named(self.token)}, and replays to {self._named(token)}")

    def text_of(self, token: int) -> str:
        """A token as a person reads it; without a tokenizer its number."""
        return f"#{token}" if self.tokenizer is None else self.tokenizer.text_of(token)

    def document(self) -> Document:
        """A line for each filter: how many tokens it left, and the likeliest of them; then where the draw fell."""
        rows = [self._row(stage) for stage in self.stages()]
        low, high = self.interval
        drawn = f"{quoted(self.text_of(self.token))} {percent(high - low)}  from {low:.4f} to {high:.4f}"
        title = f"position {self.position}: {quoted(self.text_of(self.token))}"
        return Document(title, [Table(("", "", ""), [*rows, (f"draw {self.draw:.4f}", "1", drawn)])])

    def to_json(self) -> dict[str, Any]:
        """All that `from_json` needs, every bit of the logits, and for readers how many tokens each filter left."""
        return {
            "format": FORMAT,
            "position": self.position,
            "ids": list(self.ids),
            "sampling": self.sampling.model_dump(),
            "vocab_size": self.vocab_size,
            "sample": self.sample,
            "draw": self.draw,
            "token": {"id": self.token, "text": self.text_of(self.token)},
            "interval": list(self.interval),
            "stages": [self._summary(stage) for stage in self.stages()],
            "logits": pack(self.logits),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> Receipt:
        """The receipt that was written; `ConfigError` or `DataError` where it cannot be one. `check` says if it holds.

        Stages and interval in it are for readers: they are computed anew, not believed.
        """
        saved = make_section(SavedReceipt, values, where="receipt")
        logits = unpack(saved.logits)
        drawable = min(len(logits), saved.vocab_size or len(logits))
        for token in (*saved.ids, saved.token.id):
            if not 0 <= token < drawable:
                raise DataError(f"the receipt names the token {token}, and its logits are of 0 to {drawable - 1}")
        return cls(
            *(logits, saved.ids, saved.sampling, saved.vocab_size, saved.sample, saved.draw, saved.token.id, tokenizer)
        )

    def _summary(self, stage: ReceiptStage) -> dict[str, Any]:
        tokens = [
            {"id": token, "text": self.text_of(token), "probability": probability}
            for token, probability in stage.top_tokens(TOP)
        ]
        return {"filter": stage.name, "setting": stage.setting, "left": stage.left, "tokens": tokens}

    def _row(self, stage: ReceiptStage) -> tuple[str, str, str]:
        name = stage.name.replace("_", "-") + ("" if stage.setting is None else f" {stage.setting:g}")
        tokens = (f"{quoted(self.text_of(token))} {percent(share)}" for token, share in stage.top_tokens(TOP))
        return name, str(stage.left), fitting(tokens, LIKELIEST_WIDTH)

    def _named(self, token: int) -> str:
        return f"token {token}" if self.tokenizer is None else f"token {token} {self.text_of(token)!r}"


class SavedToken(Section):
    """A token in writing; its text is for readers."""

    id: int
    text: str = ""


class SavedReceipt(Section):
    """The JSON of a receipt. What is for readers alone may be left out."""

    format: Literal["foretell.receipt/1"]
    ids: tuple[int, ...]
    sampling: SamplingConfig
    vocab_size: int | None
    sample: int
    draw: float
    token: SavedToken
    logits: PackedVector
    position: int | None = None
    interval: Any = None
    stages: Any = None


class RecordingSampler(Sampler):
    """Draws what `Sampler` draws; a token costs V logits of memory."""

    def __init__(self, config: SamplingConfig, tokenizer: Tokenizer):
        super().__init__(config, tokenizer.vocab_size)
        self.tokenizer = tokenizer
        # By sample and ids, the token among them: rows that agree in all of it were given it for the same reason
        self._receipts: dict[tuple[int, tuple[int, ...]], Receipt] = {}

    def __call__(self, logits: Tensor, history: History, samples: list[int]) -> list[int]:
        tokens = super().__call__(logits, history, samples)
        for row, ids, sample, token in zip(logits.to("cpu", copy=True), history, samples, tokens, strict=True):
            self._receipts[sample, (*ids, token)] = Receipt(
                *(row, tuple(ids), self.config, self.vocab_size, sample, self.draw(sample, len(ids)), token),
                self.tokenizer,
            )
        return tokens

    def receipts_of(self, sequence: Sequence) -> list[Receipt]:
        """One for each token drawn for a sequence, in order."""
        ids = tuple(sequence.ids)
        return [self._receipts[sequence.sample, ids[: place + 1]] for place in range(len(sequence.prompt), len(ids))]
