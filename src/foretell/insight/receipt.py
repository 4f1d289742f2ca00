"""Receipts of sampled tokens: the logits and the random number, with which sampling can be replayed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.config.section import Section, make_section
from foretell.errors import DataError
from foretell.generation.filters import SHAPING, Prefix, Prefixes, odds
from foretell.generation.logprobs import top_of
from foretell.generation.sampling import Sampler, pick
from foretell.generation.sequence import Sequence
from foretell.system.device import WEIGHT_DTYPES, dtype_name
from foretell.text import Tokenizer
from foretell.typesetting.document import DocumentSection as Document
from foretell.typesetting.document import Table, fitting, quoted
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import percent

WORDS = {2: (torch.int16, "<i2"), 4: (torch.int32, "<i4"), 8: (torch.int64, "<i8")}  # by size: NumPy has no bfloat16


class PackedVector(Section):
    """A vector in JSON: the dtype's name, and base64 of the little-endian numbers."""

    dtype: str
    data: str


def pack(vector: Tensor) -> dict[str, str]:
    """A floating-point vector (N,) as `{"dtype", "data"}`, without loss."""
    word, order = WORDS[vector.itemsize]
    numbers = vector.cpu().contiguous().view(word).numpy().astype(order, copy=False)
    return {"dtype": dtype_name(vector.dtype), "data": base64.b64encode(numbers.tobytes()).decode()}


def unpack(packed: PackedVector) -> Tensor:
    """The exact vector given to `pack`. Raises `DataError` for invalid data."""
    if packed.dtype not in WEIGHT_DTYPES:
        known = ", ".join(sorted(WEIGHT_DTYPES))
        raise DataError(f"packed numbers have the dtype '{packed.dtype}'; known dtypes are {known}")
    dtype = WEIGHT_DTYPES[packed.dtype]
    word, order = WORDS[dtype.itemsize]
    try:
        data = base64.b64decode(packed.data, validate=True)
    except binascii.Error as error:
        raise DataError(f"packed numbers are not base64: {error}") from None
    if not data or len(data) % dtype.itemsize:
        raise DataError(f"packed numbers have {len(data)} bytes, which is not a whole number of {packed.dtype}")
    numbers = np.frombuffer(data, order)
    return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="))).to(word).view(dtype)


FORMAT = "foretell.receipt/2"  # 1 had no prompt_length and no end_ids
TOP = 5  # tokens listed per stage
TOP_TOKENS_WIDTH = 48  # columns for the tokens, so that a receipt fits in 80


@dataclass(frozen=True, eq=False)
class ReceiptStage:
    """The whole vocabulary after one sampling filter: logits (V,) in float64, -infinity for excluded tokens.

    name: the filter's name, or `logits` before the first. setting: its value in the sampling configuration.
    before: the logits (V,) before the filter, if it excludes tokens regardless of their probability.
    """

    name: str
    setting: Any
    logits: Tensor
    before: Tensor | None = None

    @property
    def probabilities(self) -> Tensor:
        """The probabilities (V,) if no further filter followed."""
        return self.logits.softmax(-1)

    @property
    def left(self) -> int:
        """The number of remaining tokens."""
        return int((self.logits > -torch.inf).sum())

    def top_tokens(self, count: int) -> list[tuple[int, float]]:
        """The `count` most probable remaining tokens as (id, probability); lower ids first if tied."""
        return top_of(self.probabilities.numpy(), min(count, self.left))

    @property
    def removed(self) -> Tensor:
        """The probabilities (V,) before this filter of tokens that it excluded regardless of them; 0 for others."""
        if self.before is None:
            return torch.zeros_like(self.logits)
        return self.before.softmax(-1).masked_fill(self.logits > -torch.inf, 0.0)

    @property
    def num_removed(self) -> int:
        """The number of tokens that this filter excluded regardless of their probability."""
        return 0 if self.before is None else int(((self.before > -torch.inf) & (self.logits == -torch.inf)).sum())

    def top_removed(self, count: int) -> list[tuple[int, float]]:
        """The most probable tokens among these, as (id, probability before)."""
        return top_of(self.removed.numpy(), min(count, self.num_removed))


@dataclass(frozen=True, eq=False)
class Receipt(Shown):
    """The record of a sampled token: logits (V,), all ids before it, the settings, and the random number `draw`.

    Nothing else is stored; the filters run again on access. On the same kind of machine the result is identical. On
    others the last bits of a probability may differ, and so may a token whose draw is within about 1e-15 of an end of
    its interval.
    vocab_size: only ids below it could be sampled. sample: the index of the random stream of the draw. prompt_length:
    the number of ids in the prompt. end_ids: the tokens that would have ended the sequence.
    """

    logits: Tensor = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    sampling: SamplingConfig
    vocab_size: int | None
    sample: int
    draw: float
    token: int
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    prompt_length: int = 0
    end_ids: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """The position of the token in the sequence, which also determines the draw."""
        return len(self.ids)

    def stages(self) -> Iterator[ReceiptStage]:
        """The vocabulary before the first filter, then after each filter in order."""
        token_bytes = None if self.tokenizer is None else self.tokenizer.token_bytes
        sampler = Sampler(self.sampling, self.vocab_size, token_bytes)
        prefix, before = Prefix(list(self.ids), self.prompt_length, frozenset(self.end_ids)), None
        for name, logits in sampler.stages(self.logits[None], [prefix]):
            excludes = name not in SHAPING and before is not None
            yield ReceiptStage(name, getattr(self.sampling, name, None), logits[0], before if excludes else None)
            before = logits[0]

    def replay(self) -> int:
        """The token id that results from the logits, the filters and the draw."""
        *_, last = self.stages()
        return pick(odds(last.logits)[None], [self.draw])[0]

    @property
    def interval(self) -> tuple[float, float]:
        """Start and end of the token's interval in the cumulative probabilities (by id) after the last filter."""
        *_, last = self.stages()
        return self._interval_in(last)

    def _interval_in(self, last: ReceiptStage) -> tuple[float, float]:
        cumulated = last.probabilities.cumsum(-1)
        before = float(cumulated[self.token - 1]) if self.token else 0.0
        return before / float(cumulated[-1]), float(cumulated[self.token] / cumulated[-1])

    def check(self) -> None:
        """Raise `DataError` if replaying does not give the receipt's token and draw."""
        where = f"the receipt of position {self.position} is not valid"
        expected = Sampler(SamplingConfig(seed=self.sampling.seed)).draw(self.sample, self.position)
        if self.draw != expected:
            of = f"seed {self.sampling.seed}, sample {self.sample}, position {self.position}"
            raise DataError(f"{where}: its draw is {self.draw!r}, but the draw of {of} is {expected!r}")
        token = self.replay()
        if token != self.token:
            raise DataError(f"{where}: it is for {self._named(self.token)} but replays to {self._named(token)}")

    def text_of(self, token: int) -> str:
        """The text of a token id; `#id` without a tokenizer."""
        return f"#{token}" if self.tokenizer is None else self.tokenizer.text_of(token)

    def document(self) -> Document:
        """One line per filter, with the remaining tokens and the most probable of them; then draw and interval."""
        stages = list(self.stages())
        rows = [row for stage in stages for row in self._rows(stage)]
        low, high = self._interval_in(stages[-1])
        drawn = f"{quoted(self.text_of(self.token))} {percent(high - low)}  from {low:.4f} to {high:.4f}"
        title = f"position {self.position}: {quoted(self.text_of(self.token))}"
        return Document(title, [Table(("", "", ""), [*rows, (f"draw {self.draw:.4f}", "1", drawn)])])

    def to_json(self) -> dict[str, Any]:
        """The data for `from_json`, with exact logits, and a summary of each filter for readers."""
        stages = list(self.stages())
        return {
            "format": FORMAT,
            "position": self.position,
            "ids": list(self.ids),
            "prompt_length": self.prompt_length,
            "end_ids": list(self.end_ids),
            "sampling": self.sampling.model_dump(mode="json"),
            "vocab_size": self.vocab_size,
            "sample": self.sample,
            "draw": self.draw,
            "token": {"id": self.token, "text": self.text_of(self.token)},
            "interval": list(self._interval_in(stages[-1])),
            "stages": [self._summary(stage) for stage in stages],
            "logits": pack(self.logits),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> Receipt:
        """Read a receipt from JSON. Raises `ConfigError` or `DataError` if malformed; `check` tests its validity.

        The stages and interval in the JSON are for readers; they are ignored here and recomputed on access.
        """
        saved = make_section(SavedReceipt, values, where="receipt")
        logits = unpack(saved.logits)
        drawable = min(len(logits), saved.vocab_size or len(logits))
        for token in (*saved.ids, *saved.end_ids, saved.token.id):
            if not 0 <= token < drawable:
                raise DataError(f"the receipt names token {token}, but its logits are for tokens 0 to {drawable - 1}")
        return cls(
            *(logits, saved.ids, saved.sampling, saved.vocab_size, saved.sample, saved.draw, saved.token.id, tokenizer),
            prompt_length=saved.prompt_length,
            end_ids=saved.end_ids,
        )

    def _summary(self, stage: ReceiptStage) -> dict[str, Any]:
        setting = self.sampling.model_dump(mode="json").get(stage.name)
        summary = {"filter": stage.name, "setting": setting, "left": stage.left}
        if stage.num_removed:
            tokens, share = self._named_tokens(stage.top_removed(TOP)), float(stage.removed.sum())
            summary["removed"] = {"count": stage.num_removed, "probability": share, "tokens": tokens}
        return {**summary, "tokens": self._named_tokens(stage.top_tokens(TOP))}

    def _named_tokens(self, tokens: list[tuple[int, float]]) -> list[dict[str, Any]]:
        return [{"id": token, "text": self.text_of(token), "probability": probability} for token, probability in tokens]

    def _rows(self, stage: ReceiptStage) -> Iterator[tuple[str, str, str]]:
        """The row of a stage, and one for the tokens that it removed regardless of their probability."""
        shown = f" {stage.setting:g}" if isinstance(stage.setting, int | float) else ""
        yield stage.name.replace("_", "-") + shown, str(stage.left), self._line(stage.top_tokens(TOP))
        if stage.num_removed:
            removed = self._line(stage.top_removed(TOP))
            yield f"  removed {percent(float(stage.removed.sum()))}", str(stage.num_removed), removed

    def _line(self, tokens: list[tuple[int, float]]) -> str:
        return fitting((f"{quoted(self.text_of(token))} {percent(share)}" for token, share in tokens), TOP_TOKENS_WIDTH)

    def _named(self, token: int) -> str:
        return f"token {token}" if self.tokenizer is None else f"token {token} {self.text_of(token)!r}"


class SavedToken(Section):
    """A token in the JSON of a receipt; its text is for readers."""

    id: int
    text: str = ""


class SavedReceipt(Section):
    """The JSON of a receipt. The last three fields are for readers and optional."""

    format: Literal["foretell.receipt/1", "foretell.receipt/2"]
    ids: tuple[int, ...]
    sampling: SamplingConfig
    vocab_size: int | None
    sample: int
    draw: float
    token: SavedToken
    logits: PackedVector
    prompt_length: int = Field(0, ge=0)
    end_ids: tuple[int, ...] = ()
    position: int | None = None
    interval: Any = None
    stages: Any = None


class RecordingSampler(Sampler):
    """A sampler that chooses the same tokens as `Sampler` and keeps a receipt with V logits for each."""

    def __init__(self, config: SamplingConfig, tokenizer: Tokenizer):
        super().__init__(config, tokenizer.vocab_size, tokenizer.token_bytes)
        self.tokenizer = tokenizer
        # Keys: sample, prompt length, and ids up to and including the token; rows with equal keys have the same receipt
        self._receipts: dict[tuple[int, int, tuple[int, ...]], Receipt] = {}

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        tokens = super().__call__(logits, prefixes, samples)
        for row, prefix, sample, token in zip(logits.to("cpu", copy=True), prefixes, samples, tokens, strict=True):
            ids, draw = tuple(prefix.ids), self.draw(sample, len(prefix.ids))
            self._receipts[sample, prefix.prompt_length, (*ids, token)] = Receipt(
                *(row, ids, self.config, self.vocab_size, sample, draw, token, self.tokenizer),
                prompt_length=prefix.prompt_length,
                end_ids=tuple(sorted(prefix.end_ids)),
            )
        return tokens

    def receipts_of(self, sequence: Sequence) -> list[Receipt]:
        """The receipts of all tokens sampled for a sequence, in order."""
        ids, prompt_length = tuple(sequence.ids), len(sequence.prompt)
        return [
            self._receipts[sequence.sample, prompt_length, ids[: position + 1]]
            for position in range(prompt_length, len(ids))
        ]
