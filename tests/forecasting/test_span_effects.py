"""Effects of spans of past values on the next value's forecast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foretell.errors import UsageError
from foretell.forecasting import span_effects as module
from foretell.forecasting.series import Series
from foretell.forecasting.series_file import read_series
from foretell.forecasting.span_effects import as_tokens, next_probabilities, span_effects


@pytest.fixture
def series(series_file) -> Series:
    return read_series(series_file)[0]


def test_the_forecast_is_the_mean_of_sampled_paths(forecaster, series):
    found = span_effects(forecaster, series, spans=1)
    (paths,) = forecaster.sample_paths([series.values], forecaster.horizon, 2000)
    first = paths[:, 0]
    assert found.forecast == pytest.approx(first.mean(), abs=4 * first.std() / np.sqrt(len(first)))
    assert found.time == series.timeline.text(len(series))


def test_spans_cover_the_context_and_name_their_times(forecaster, series):
    found = span_effects(forecaster, series, spans=5, context=20)
    text = series.timeline.text
    assert [(span.first, span.last) for span in found.spans] == [
        (text(first), text(first + 3)) for first in range(len(series) - 20, len(series), 4)
    ]
    assert len(span_effects(forecaster, series, spans=12, context=3).spans) == 3


def test_the_one_span_that_matters_is_found(forecaster, series, monkeypatch):
    """A forecaster that repeats the value of six steps ago."""
    bins = forecaster.codec.config.bins
    monkeypatch.setattr(module, "next_probabilities", lambda forecaster, ids: np.eye(bins)[ids[:, -6]])
    found = span_effects(forecaster, series, spans=5, context=20)
    assert found.spans[3] is found.largest
    assert [span.effect for span in found.spans if span is not found.largest] == pytest.approx([0.0] * 4, abs=1e-12)
    assert found.largest.effect == pytest.approx(found.forecast - found.largest.without)
    assert found.largest.without == pytest.approx(series.values[-20:].mean(), abs=0.1)


def test_a_missing_value_is_not_forecast_and_no_forecast_is_below_the_minimum(forecaster, series):
    ids = np.full((2, 4), forecaster.codec.missing_id)
    probabilities = next_probabilities(forecaster, ids)
    assert probabilities.shape == (2, forecaster.codec.config.bins)
    assert probabilities.sum(1) == pytest.approx(1)
    least = float(series.values.max()) + 1
    assert span_effects(replace(forecaster, minimum=least), series, spans=2).forecast >= least


def test_the_report_fits_80_columns_and_json_has_the_same_numbers(forecaster, series):
    found = span_effects(forecaster, series, spans=4)
    assert max(map(len, str(found).splitlines())) <= 80
    assert f"{found.largest.without:.{found.digits}f}" in str(found)
    assert "…" not in str(found)
    written = found.to_json()
    assert written["forecast"] == found.forecast
    assert written["spans"] == [vars(span) for span in found.spans]
    assert all(span.effect == found.forecast - span.without for span in found.spans)


def test_the_context_as_text_has_the_ids_of_its_values(forecaster, series):
    model, text = as_tokens(forecaster, series, context=5)
    assert model.encode(text) == forecaster.prompt(series.values, 5).ids


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spans": 0}, "spans must be"),
        ({"context": 0}, "context must be"),
    ],
)
def test_wrong_numbers_are_refused(options, words, forecaster, series):
    with pytest.raises(UsageError, match=words):
        span_effects(forecaster, series, **options)
