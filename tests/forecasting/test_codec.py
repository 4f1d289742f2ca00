"""The codec: what goes in comes out, within the width of a bin, for any values."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import ConfigError
from foretell.forecasting.codec import CodecConfig, Scale, SeriesCodec, scale_of

CODEC = SeriesCodec()
NAN = np.nan
CONTEXTS = {
    "ordinary": [1.0, 2.0, 5.0, 3.0],
    "negative": [-4.0, -9.0, -2.0],
    "huge": [1e300, 1.5e300, -1.2e300],
    "tiny": [1e-300, 3e-300, 2e-300],
    "large mean": [1e9, 1e9 + 1, 1e9 + 3],
    "missing": [NAN, 2.0, NAN, 4.0, 8.0],
}


@pytest.mark.parametrize("values", CONTEXTS.values(), ids=CONTEXTS)
def test_values_come_back_within_half_a_bin(values):
    values = np.array(values)
    scale = scale_of(values)
    decoded = CODEC.decode(CODEC.encode(values, scale), scale)
    known = ~np.isnan(values)
    assert np.abs(decoded - values)[known].max() < 0.02 * scale.spread
    assert np.isnan(decoded[~known]).all()


@pytest.mark.parametrize("value", [0.0, 7.0, -3e200])
def test_a_constant_series_comes_back_exactly(value):
    scale = scale_of(np.full(9, value))
    assert CODEC.decode(CODEC.encode(np.full(2, value), scale), scale).tolist() == [value, value]


@pytest.mark.parametrize("level", [0.0, 5.0, 1e12])
def test_a_context_that_equals_its_cycle_has_a_spread_far_below_the_cycles(level):
    values = level + np.tile([0.0, 1.0, 2.0, 5.0], 12)
    scale = scale_of(values, season=4)
    assert 0 < scale.spread <= 0.011 * values.std()
    np.testing.assert_allclose(scale.location + scale.cycle_at(0, 4), values[:4], rtol=0, atol=0.01 + 1e-15 * level)


def test_a_context_without_values_is_scaled_by_one():
    assert scale_of(np.full(3, NAN)) == Scale(0.0, 1.0)


def test_bins_are_ordered_and_symmetric_around_the_mean():
    centers = CODEC.centers[:-1]
    assert (np.diff(centers) > 0).all()
    np.testing.assert_allclose(centers, -centers[::-1])


def test_values_beyond_the_limit_go_to_the_last_bins_and_are_counted():
    values = np.array([-1e9, 0.0, 1e9])
    assert CODEC.encode(values, Scale(0.0, 1.0)).tolist() == [0, 511, 1022]
    assert CODEC.clipped(values, Scale(0.0, 1.0)).tolist() == [0, 2]


def test_a_moved_scale_shifts_and_stretches_what_the_model_sees():
    scale = Scale(10.0, 2.0)
    moved = scale.moved(shift=0.5, factor=3.0)
    z = (13.0 - scale.location) / scale.spread
    assert (13.0 - moved.location) / moved.spread == pytest.approx(z * 3.0 + 0.5)


def test_rounding_is_the_mean_error_of_the_codec_alone():
    values = np.linspace(-2, 2, 999)
    assert CODEC.rounding(values, scale_of(values)) == pytest.approx(0.0025, rel=0.5)
    assert SeriesCodec(CodecConfig(bins=63)).rounding(values, scale_of(values)) > 0.02


def test_an_even_number_of_bins_is_refused():
    with pytest.raises(ConfigError, match="odd"):
        CodecConfig(bins=64)
