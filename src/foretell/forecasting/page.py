"""The page of a forecast: a pass over the context and the forecast's median, with the time and value of each token.

It is the page of any model. What it shows of attention answers which past times each head looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from foretell.files import HTML_MARK, check_target
from foretell.forecasting.codec import Scale, SeriesCodec
from foretell.forecasting.forecaster import Forecast, Forecaster
from foretell.insight.page.collect import collect
from foretell.insight.page.write_page import PageReport, write_traced
from foretell.language_model import LanguageModel
from foretell.text import id_tokenizer

MOST_TOKENS = 192  # of a page; the attention of more does not fit a screen


def write_forecast_page(forecaster: Forecaster, forecast: Forecast, path: Path) -> PageReport:
    """Write the page of one forecast. The context is its last values and the first values of its median."""
    check_target(path, HTML_MARK)
    ids, texts, scale = tokens_of(forecaster, forecast)
    model = LanguageModel(forecaster.decoder, id_tokenizer(forecaster.decoder.config.vocab_size), forecaster.name)
    traced = collect(model, " ".join(str(each) for each in ids))
    vocabulary: list[str | None] = [*value_texts(forecaster.codec, scale)]
    return write_traced(replace(traced, text=forecast.series.unique_id, pieces=texts, vocabulary=vocabulary), path)


def tokens_of(forecaster: Forecaster, forecast: Forecast) -> tuple[list[int], list[str], Scale]:
    """Ids and texts of the last values and the first forecast ones, and the scale of the ids."""
    horizon = min(forecast.paths.shape[1], MOST_TOKENS // 4)
    most = min(MOST_TOKENS, forecaster.context_length) - horizon
    prompt = forecaster.prompt(forecast.series.values, most)
    ahead = forecaster.codec.encode(forecast.median[:horizon], prompt.scale).tolist()
    ids = [*prompt.ids, *ahead]
    start = len(forecast.series) - len(prompt.ids)
    values = forecaster.codec.decode(ids, prompt.scale)
    times = [forecast.series.timeline.text(start + index) for index in range(len(ids))]
    return ids, [f"{time} {value_text(value)}" for time, value in zip(times, values, strict=True)], prompt.scale


def value_texts(codec: SeriesCodec, scale: Scale) -> Sequence[str]:
    """The text of every id: its value."""
    return [value_text(value) for value in codec.decode(np.arange(codec.vocab_size), scale)]


def value_text(value: float) -> str:
    """A value in four digits; `missing` for none."""
    return "missing" if np.isnan(value) else f"{value:.4g}"
