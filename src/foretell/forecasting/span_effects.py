"""Effects of spans of past values on the forecast of the next value, as Shapley values.

The forecast is the expected value of the next value's distribution, so nothing is sampled. The values of an absent span
are replaced by the mean of the context. The scale is always that from the whole context, so the other spans keep their
ids. The effects add up to the forecast minus the forecast from only means (attribution/shapley.py).

Missing values would be a worse replacement, although the codec has an id for them: training hides at most 30% of a
window's values, and a forecast from a context without values is far off (docs/forecasting.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foretell.errors import UsageError
from foretell.forecasting.forecaster import Forecaster, Prompt
from foretell.forecasting.series import Series
from foretell.insight.attribution.shapley import Masks, WordEffects
from foretell.insight.attribution.word_effects import PASSES, word_effects
from foretell.language_model import LanguageModel
from foretell.text import id_tokenizer
from foretell.typesetting.document import DocumentSection, Paragraph, Table, bar, signed
from foretell.typesetting.html import Shown

SPANS = 12
TOKENS_AT_ONCE = 2**17  # context tokens of all rows together
SIGNIFICANT = 3  # significant digits of the largest effect


@dataclass(frozen=True)
class SpanEffect:
    """A span of values between two times: its effect, standard error, and the forecast without only this span."""

    first: str
    last: str
    effect: float
    error: float
    without: float


@dataclass(frozen=True)
class SpanEffects(Shown):
    """The effects of the spans of a series, in the order of time, on the forecast for `time`."""

    series: str
    time: str
    spans: list[SpanEffect]
    effects: WordEffects

    @property
    def largest(self) -> SpanEffect:
        return max(self.spans, key=lambda span: abs(span.effect))

    @property
    def digits(self) -> int:
        """The digits after the decimal point that give the largest effect three significant ones."""
        largest = abs(self.largest.effect)
        return max(0, SIGNIFICANT - 1 - math.floor(math.log10(largest))) if largest else SIGNIFICANT

    @property
    def others_change(self) -> float | None:
        """The mean absolute change of the forecast when another single span is left out; None for a single span."""
        changes = [abs(span.without - self.effects.full) for span in self.spans if span is not self.largest]
        return float(np.mean(changes)) if changes else None

    def to_json(self) -> dict[str, Any]:
        return {
            "unique_id": self.series,
            "ds": self.time,
            "forecast": self.effects.full,
            "spans": [vars(span) for span in self.spans],
            "without_largest": {"first": self.largest.first, "forecast": self.largest.without},
            "others_change": self.others_change,
            "effects": self.effects.to_json(),
        }

    def document(self) -> DocumentSection:
        """A bar per span (of half length, to leave room for times), the sum, and a check of the largest effect."""
        longest, digits = abs(self.largest.effect) or 1.0, self.digits
        has_errors = any(span.error for span in self.spans)
        rows = [
            (
                signed(span.effect, digits),
                *([f"{span.error:.{digits}f}"] if has_errors else []),
                bar(span.effect / longest / 2),
                f"{span.without:.{digits}f}",
                span.first,
                span.last,
            )
            for span in self.spans
        ]
        header = ("effect", *(["error"] if has_errors else []), "", "without", "from", "to")
        return DocumentSection(
            f"{self.series}: expected value of {self.time}, {self.effects.full:.{self.digits}f}",
            [Table(header, rows), self.sum_table(), Paragraph(self.method()), Paragraph(self.deletion())],
        )

    def sum_table(self) -> Table:
        effects, digits = self.effects, self.digits
        return Table(
            ("", ""),
            [
                (f"{effects.empty:.{digits}f}", "from the mean of the context alone"),
                (signed(sum(effects.values), digits), "the effects, added"),
                (f"{effects.full:.{digits}f}", "with every span"),
            ],
        )

    def method(self) -> str:
        count, orders = self.effects.passes, self.effects.permutations
        how = f"exact, from all {count:,} subsets of the spans" if orders == 0 else f"from {orders:,} random orders"
        return f"effect: Shapley value, {how}; without: the forecast if the mean replaces this span alone."

    def deletion(self) -> str:
        span, change = self.largest, self.largest.without - self.effects.full
        line = f"Without the span of the largest effect, from {span.first}, the forecast changes by "
        line += signed(change, self.digits)
        if self.others_change is not None:
            line += (
                f"; without one of the others, by {self.others_change:.{self.digits}f} on average, in either direction"
            )
        return line + "."


def span_effects(
    forecaster: Forecaster,
    series: Series,
    spans: int = SPANS,
    passes: int = PASSES,
    *,
    context: int | None = None,
    seed: int = 0,
) -> SpanEffects:
    """The effects of at most `spans` equally long spans of the values that a forecast reads, from at most `passes`
    passes.

    context: the number of last values to read; default: as in `forecast`. seed: for random orders, if `passes` does not
    allow all subsets. Raises UsageError for a number below 1 and too few passes.
    """
    if spans < 1:
        raise UsageError(f"--spans must be at least 1, not {spans}")
    prompt = last_values(forecaster, series, context)
    ids = np.array(prompt.ids)
    bounds = np.linspace(0, len(ids), min(spans, len(ids)) + 1).round().astype(int)
    players = len(bounds) - 1
    of_value = np.repeat(np.arange(players), np.diff(bounds))  # the span of each value
    bins = forecaster.codec.config.bins
    mean_id = bins // 2
    levels = forecaster.codec.decode(np.arange(bins)[:, None], prompt.scale)[:, 0]  # the bins' values at the next time
    levels = np.maximum(levels, forecaster.least(series.values))

    def value(masks: Masks) -> np.ndarray:
        rows = np.where(masks[:, of_value], ids, mean_id)
        return next_probabilities(forecaster, rows) @ levels

    effects = word_effects(value, players, passes, seed, "span")
    without = value(~np.eye(players, dtype=bool)).tolist()
    start = len(series) - len(ids)
    times = [series.timeline.text(start + index) for index in range(len(ids) + 1)]
    ends = zip(bounds[:-1], bounds[1:] - 1, strict=True)
    rows = [
        SpanEffect(times[first], times[last], effect, error, left)
        for (first, last), effect, error, left in zip(ends, effects.values, effects.errors, without, strict=True)
    ]
    return SpanEffects(series.unique_id, times[-1], rows, effects)


def last_values(forecaster: Forecaster, series: Series, context: int | None) -> Prompt:
    """The last `context` values of a series, at most the number that a forecast reads (the default)."""
    if context is not None and context < 1:
        raise UsageError(f"--context must be at least 1, not {context}")
    forecaster, horizon = forecaster.for_series([series])
    most = forecaster.context_for(horizon)
    return forecaster.prompt(series.values, min(context or most, most))


def as_tokens(forecaster: Forecaster, series: Series, context: int | None = None) -> tuple[LanguageModel, str]:
    """The decoder as a model whose texts are ids, and the context of a series as such a text."""
    tokenizer = id_tokenizer(forecaster.decoder.config.vocab_size)
    ids = last_values(forecaster, series, context).ids
    return LanguageModel(forecaster.decoder, tokenizer, forecaster.name), " ".join(map(str, ids))


@torch.inference_mode()
def next_probabilities(forecaster: Forecaster, ids: np.ndarray) -> np.ndarray:
    """The probabilities (N, bins) of the value after each row of ids (N, T), without the missing value."""
    decoder, count = forecaster.decoder, max(1, TOKENS_AT_ONCE // ids.shape[1])
    parts = []
    for first in range(0, len(ids), count):
        rows = torch.from_numpy(ids[first : first + count]).to(decoder.device)
        logits = decoder.head(decoder.hidden(rows)[:, -1])  # (N, V)
        parts.append(logits[:, : forecaster.codec.config.bins].double().softmax(-1).cpu().numpy())
    return np.concatenate(parts)
