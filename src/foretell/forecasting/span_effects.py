"""Effects of spans of past values on the forecast of the next value.

The forecast is the expected value of the next value's distribution, so nothing is sampled. The values of an absent span
are replaced by the mean of the context. The scale is always that from the whole context, so the other spans keep their
ids. The effect of a span is the forecast minus the forecast without it.

Missing values would be a worse replacement, although the codec has an id for them: training hides at most 30% of a
window's values, and a forecast from a context without values is far off (docs/forecasting-reference.md).
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
from foretell.insight.attribution.word_effects import Masks, leave_out
from foretell.language_model import LanguageModel
from foretell.text import id_tokenizer
from foretell.typesetting.document import DocumentSection, Paragraph, Table, bar
from foretell.typesetting.html import Shown
from foretell.typesetting.numbers import signed

SPANS = 12
TOKENS_AT_ONCE = 2**17  # context tokens of all rows together
SIGNIFICANT = 3  # significant digits of the largest effect
METHOD = "effect: the forecast minus the one without, in which the mean of the context replaces this span."


@dataclass(frozen=True)
class SpanEffect:
    """A span of values between two times: its effect, and the forecast without it."""

    first: str
    last: str
    effect: float
    without: float


@dataclass(frozen=True)
class SpanEffects(Shown):
    """The effects of the spans of a series, in the order of time, on the `forecast` for `time`."""

    series: str
    time: str
    forecast: float
    spans: list[SpanEffect]

    @property
    def largest(self) -> SpanEffect:
        return max(self.spans, key=lambda span: abs(span.effect))

    @property
    def digits(self) -> int:
        """The digits after the decimal point that give the largest effect three significant ones."""
        largest = abs(self.largest.effect)
        return max(0, SIGNIFICANT - 1 - math.floor(math.log10(largest))) if largest else SIGNIFICANT

    def to_json(self) -> dict[str, Any]:
        return {
            "unique_id": self.series,
            "ds": self.time,
            "forecast": self.forecast,
            "spans": [vars(span) for span in self.spans],
        }

    def document(self) -> DocumentSection:
        """A bar per span, of half length to leave room for times."""
        longest, digits = abs(self.largest.effect) or 1.0, self.digits
        rows = [
            (
                signed(span.effect, digits),
                bar(span.effect / longest / 2),
                f"{span.without:.{digits}f}",
                span.first,
                span.last,
            )
            for span in self.spans
        ]
        return DocumentSection(
            f"{self.series}: expected value of {self.time}, {self.forecast:.{digits}f}",
            [Table(("effect", "", "without", "from", "to"), rows), Paragraph(METHOD)],
        )


def span_effects(
    forecaster: Forecaster, series: Series, spans: int = SPANS, *, context: int | None = None
) -> SpanEffects:
    """The effects of at most `spans` equally long spans of the values that a forecast reads.

    context: the number of last values to read; default: as in `forecast`. Raises UsageError for a number below 1.
    """
    if spans < 1:
        raise UsageError(f"--spans must be at least 1, not {spans}")
    prompt = last_values(forecaster, series, context)
    ids = np.array(prompt.ids)
    bounds = np.linspace(0, len(ids), min(spans, len(ids)) + 1).round().astype(int)
    count = len(bounds) - 1
    of_value = np.repeat(np.arange(count), np.diff(bounds))  # the span of each value
    bins = forecaster.codec.config.bins
    mean_id = bins // 2
    levels = forecaster.codec.decode(np.arange(bins)[:, None], prompt.scale)[:, 0]  # the bins' values at the next time
    levels = np.maximum(levels, forecaster.least(series.values))

    def value(masks: Masks) -> np.ndarray:
        rows = np.where(masks[:, of_value], ids, mean_id)
        return next_probabilities(forecaster, rows) @ levels

    forecast, without = leave_out(value, count)
    start = len(series) - len(ids)
    times = [series.timeline.text(start + index) for index in range(len(ids) + 1)]
    ends = zip(bounds[:-1], bounds[1:] - 1, strict=True)
    rows = [
        SpanEffect(times[first], times[last], forecast - left, left)
        for (first, last), left in zip(ends, without, strict=True)
    ]
    return SpanEffects(series.unique_id, times[-1], forecast, rows)


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
