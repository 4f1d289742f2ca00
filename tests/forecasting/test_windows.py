"""Windows: their scale comes from their first values alone, and a look-ahead is caught."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretell.errors import DataError, TrainingError
from foretell.forecasting.codec import SeriesCodec, scale_of
from foretell.forecasting.config import SeriesConfig
from foretell.forecasting.series import Window
from foretell.forecasting.windows import (
    WindowSource,
    check_no_look_ahead,
    held_out_values,
    held_out_windows,
    make_window_batch,
    scale_before,
)

CODEC = SeriesCodec()
RAMP = np.arange(20.0)
PLAIN = SeriesConfig(horizon=4, noise=0, missing_rate=0)


def make_source(*series: np.ndarray, config: SeriesConfig = PLAIN, rows: int = 16, length: int = 12) -> WindowSource:
    return WindowSource(series, CODEC, config, length, rows, 3, [config.cycle or 1] * len(series))


def test_a_row_is_scaled_by_its_context_and_the_loss_counts_after_it():
    window = Window(np.array([1.0, 3.0, 5.0, np.nan, 100.0]), context=2)
    batch = make_window_batch([window], CODEC, [scale_before(window)], 7)
    expected = CODEC.encode(window.values, scale_of(window.values[:2]))
    assert batch.ids[0, :5].tolist() == expected.tolist()
    assert batch.loss_weights.tolist() == [[0, 1, 0, 1, 0, 0]]  # 5, not the missing value, 100, not the padding
    assert batch.tokens == 5


def test_the_windows_of_a_step_depend_on_seed_and_step_alone():
    first, again = make_source(RAMP).batch(5), make_source(RAMP).batch(5)
    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, make_source(RAMP).batch(6).ids)


def test_every_length_of_context_is_drawn():
    source, rng = make_source(RAMP), np.random.default_rng(0)
    assert {source.draw(rng, 0).context for _ in range(300)} == set(range(1, 9))


@pytest.mark.parametrize("length", [2, 3, 11, 12, 13, 40])
def test_series_of_any_length_make_windows_with_a_target(length):
    source, rng = make_source(np.arange(float(length))), np.random.default_rng(0)
    for _ in range(30):
        window = source.draw(rng, 0)
        assert 1 <= window.context < len(window.values) <= 12


def test_some_windows_hide_values():
    config = SeriesConfig(horizon=4, missing_rate=0.5)
    assert (make_source(RAMP, config=config).batch(0).ids == CODEC.missing_id).any()
    assert not (make_source(RAMP).batch(0).ids == CODEC.missing_id).any()


def test_a_source_without_anything_to_learn_is_refused():
    with pytest.raises(DataError, match="no series has two values"):
        make_source(np.array([1.0, np.nan]))


def test_a_long_series_holds_out_several_windows_and_a_short_one_the_last():
    series = [np.arange(100.0), np.arange(30.0), np.arange(3.0)]
    windows = held_out_windows(series, length=12, horizon=4, most=2)
    assert [each.values[each.context :].tolist() for each in windows] == [
        [96, 97, 98, 99],
        [92, 93, 94, 95],
        [26, 27, 28, 29],
    ]
    assert [held_out_values(len(each), 4, 2) for each in series] == [8, 4, 0]


def test_held_out_windows_end_with_the_series_and_know_a_given_context():
    (window,) = held_out_windows([RAMP, RAMP[:4]], length=12, horizon=4)
    assert (window.values.tolist(), window.context) == (RAMP[8:].tolist(), 8)
    assert [each.context for each in held_out_windows([RAMP, RAMP[:6]], 12, 4, context=2)] == [2, 2]
    assert held_out_windows([RAMP[:5]], 12, 4, context=2) == []


def test_a_scale_that_looks_ahead_is_caught(monkeypatch):
    source, rng = make_source(RAMP**2), np.random.default_rng(0)
    windows = [source.draw(rng, 0) for _ in range(4)]
    check_no_look_ahead(windows, CODEC)
    monkeypatch.setattr("foretell.forecasting.windows.scale_before", lambda window: scale_of(window.values))
    with pytest.raises(TrainingError, match="looks ahead"):
        check_no_look_ahead(windows, CODEC)
