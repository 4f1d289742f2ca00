"""The codec: values of a series to token ids and back. It replaces the tokenizer of an otherwise unchanged decoder.

A cycle is subtracted from a series (`cycle_of`), so that the model need not learn the season; ES-RNN (Smyl 2020)
divides by it. The rest is scaled by the context, (value - mean) / standard deviation, and rounded to a bin. Bins are
equally wide after asinh: about 0.0066 standard deviations near the mean with the default settings, wider outside
(Ansari et al. 2024, "Chronos", section 3.1, with other bins and without scaling by the mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from foretell.config.model import Size
from foretell.config.section import Section, make_section
from foretell.forecasting.calibration import INTERVALS, Calibration, load_calibration
from foretell.forecasting.series import Earlier
from foretell.forecasting.series_layout import DETECT, SeriesFormat
from foretell.saved_model.part import Part, PartSource, register_part
from foretell.storage.files import write_json

CONSTANT = 1e-12  # a standard deviation below this share of the largest value is rounding noise of a constant series
SMALLEST_SPREAD = float(np.finfo(np.float64).tiny)  # without it, values near 5e-324 would have a spread of 0
STEADY_SPREAD = 0.01  # spread of a context that equals its cycle, as a share of the cycle's standard deviation
GUESSED_SPREAD = 0.25  # spread of a constant context, as a share of its value
CYCLES = 8  # a cycle is the mean of this number of last cycles
CYCLE_DECAY = 0.7  # the ratio of the weights of successive cycles in this mean
DAYS = (24, 48, 96)  # seasons of a day, in hours, half hours and quarter hours; weeks may modify them
DAYS_PER_WEEK = 7
CONFIRMED = 0.9  # subtracting a cycle must reduce the mean deviation in the last week to at most this share


class CodecConfig(Section):
    """The bins of the codec: their number, their limit, and the range in which they are equally wide."""

    bins: int = Field(1023, ge=3, le=2**16)  # odd, so that the mean is the middle of a bin
    limit: float = Field(15.0, gt=0, le=1e6)  # standard deviations from the mean; values further out are clipped
    linear_range: float = Field(1.0, ge=1e-6)  # standard deviations within which bins are about equally wide

    @model_validator(mode="after")
    def _check(self) -> CodecConfig:
        if self.bins % 2 == 0:
            raise ValueError(f"bins must be odd, not {self.bins}, so that the mean is the middle of a bin")
        return self


@dataclass(frozen=True)
class Scale:
    """The scale of a series: its cycle, and the mean and standard deviation of its context without the cycle."""

    location: float
    spread: float
    cycle: tuple[float, ...] = (0.0,)  # the first value is for the first time after the context

    def moved(self, shift: float, factor: float) -> Scale:
        """A scale that maps a value at z standard deviations from the mean to z * factor + shift."""
        return replace(self, location=self.location - shift * self.spread / factor, spread=self.spread / factor)

    def cycle_at(self, first: int, count: int) -> np.ndarray:
        """The cycle (count,) from time `first` on, counted from the end of the context."""
        return np.array(self.cycle)[(first + np.arange(count)) % len(self.cycle)]


def scale_of(values: np.ndarray, season: int = 1, before: Earlier = ()) -> Scale:
    """The scale of a context (T,), ignoring missing values (NaN). The cycle also depends on the values `before`.

    The spread is a quarter of the value for a constant context, 1 for zeros and for a context without values, and a
    hundredth of the cycle's standard deviation for a context that equals its cycle.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return Scale(0.0, 1.0)
    largest = float(np.abs(known).max()) or 1.0
    earlier = before[-(CYCLES + 1) * longest_cycle(season) :]
    whole = np.concatenate([earlier, values]) / largest  # avoids overflow: the square of 1e200 is infinite
    scale = Scale(0.0, 1.0, tuple(cycle_of(whole, season)))
    rest = values / largest - scale.cycle_at(-len(values), len(values))
    location, spread = float(np.nanmean(rest)), float(np.nanstd(rest))
    if spread <= CONSTANT:
        swing = float(np.std(scale.cycle))
        spread = STEADY_SPREAD * swing if swing > CONSTANT else GUESSED_SPREAD if known[0] else 1.0 / largest
    return Scale(
        location * largest, max(spread * largest, SMALLEST_SPREAD), tuple(largest * each for each in scale.cycle)
    )


def longest_cycle(season: int) -> int:
    """The number of values per week if the season is a day, else per season."""
    return DAYS_PER_WEEK * season if season in DAYS else season


def cycle_of(values: np.ndarray, season: int) -> np.ndarray:
    """The cycle (season,), or the cycle of a week if the season is a day, starting at the phase of the next value.

    A week's cycle is the day's cycle plus the mean week of the rest, if this improves the forecast of the last week
    from the weeks before.
    """
    day, week = mean_cycle(values, season), longest_cycle(season)
    if week == season:
        return day
    recent = values[-(CYCLES + 1) * week :]
    rest = recent - day[np.arange(-len(recent), 0) % season]
    if not is_confirmed(rest, week):
        return day
    return np.tile(day, DAYS_PER_WEEK) + mean_cycle(rest, week)


def is_confirmed(values: np.ndarray, period: int) -> bool:
    """True if the mean cycle before the last period forecasts this period better than its mean does."""
    last = values[-period:]
    if len(values) < 3 * period or np.isnan(last).all():
        return False
    rest = last - mean_cycle(values[:-period], period)
    return mean_deviation(rest) <= CONFIRMED * mean_deviation(last)


def mean_deviation(values: np.ndarray) -> float:
    return float(np.nanmean(np.abs(values - np.nanmean(values))))


def mean_cycle(values: np.ndarray, season: int) -> np.ndarray:
    """The mean deviation (season,) of each phase from the seasonal moving average, starting at the next value's phase.

    The last CYCLES cycles are weighted by CYCLE_DECAY. The cycle is shrunk by the share of its variance that noise
    explains, down to zero (James and Stein 1961). Zeros if there are fewer than two seasons of values.
    """
    recent = values[-(CYCLES + 1) * season :]
    known = np.flatnonzero(~np.isnan(recent))
    if season < 2 or len(known) < 2 * season:
        return np.zeros(max(1, season))
    recent = np.interp(np.arange(len(recent)), known, recent[known])
    half = season // 2
    window = np.ones(2 * half + 1)
    window[[0, -1]] = 1.0 if season % 2 else 0.5
    inner = np.arange(half, len(recent) - half) - len(recent)  # counted from the end
    deviation = recent[half : len(recent) - half] - np.convolve(recent, window / season, "valid")
    phase, weight = inner % season, CYCLE_DECAY ** (-inner // season)
    total = np.bincount(phase, weight, season)
    cycle = np.bincount(phase, weight * deviation, season) / total
    noise = float(np.average((deviation - cycle[phase]) ** 2, weights=weight))
    count = float(np.mean(total**2 / np.bincount(phase, weight**2, season)))  # effective number of equal weights
    explained = noise / max(count - 1, 0.05) / (float(cycle.var()) or 1.0)
    return max(0.0, 1 - explained) * (cycle - cycle.mean())


class SeriesCodec:
    """Values to token ids and back. Ids 0 to bins-1 are bins, and the next id is a missing value."""

    def __init__(self, config: CodecConfig = CodecConfig()):  # noqa: B008 - it is frozen
        self.config = config
        self.missing_id = config.bins
        self.vocab_size = config.bins + 1
        self._edge = math.asinh(config.limit / config.linear_range)
        self._width = 2 * self._edge / config.bins

    @cached_property
    def centers(self) -> np.ndarray:
        """The scaled value of each bin, then NaN for the missing value."""
        middle = self.config.bins // 2
        scaled = np.sinh((np.arange(self.config.bins) - middle) * self._width) * self.config.linear_range
        return np.append(scaled, np.nan)

    def encode(self, values: np.ndarray, scale: Scale, first: int = 0) -> np.ndarray:
        """The ids (T,) of values (T,), int64, clipped to the bins. first: the values' first time after the context."""
        scaled = (values - scale.cycle_at(first, len(values)) - scale.location) / (
            scale.spread * self.config.linear_range
        )
        bins = np.floor((np.arcsinh(scaled) + self._edge) / self._width)
        ids = np.clip(np.nan_to_num(bins, nan=0), 0, self.config.bins - 1).astype(np.int64)
        return np.where(np.isnan(values), self.missing_id, ids)

    def decode(self, ids: np.ndarray | Sequence[int], scale: Scale, first: int = 0) -> np.ndarray:
        """The values (..., T) of ids (..., T): the middles of their bins, or NaN for missing values."""
        centers = self.centers[np.asarray(ids)]
        return centers * scale.spread + scale.location + scale.cycle_at(first, centers.shape[-1])

    def rounding(self, values: np.ndarray, scale: Scale) -> float:
        """The mean absolute error of encoding and decoding; NaN without values."""
        errors = np.abs(self.decode(self.encode(values, scale), scale) - values)
        return float(np.nanmean(errors)) if np.isfinite(errors).any() else math.nan

    def clipped(self, values: np.ndarray, scale: Scale) -> np.ndarray:
        """The indices of the values beyond the last bin."""
        rest = values - scale.cycle_at(-len(values), len(values)) - scale.location
        return np.flatnonzero(np.abs(rest) > self.config.limit * scale.spread)


@dataclass(frozen=True)
class TrainedCodec:
    """A codec, and what a training on series has chosen with it."""

    codec: SeriesCodec
    horizon: int | None = None  # that was held out, the default of `forecast`; None: the series decide
    season: int | None = 1  # of the cycle that is subtracted; None: the times of the series decide
    untimed_season: int | None = None  # of values without times, where `season` is None; None: the values decide
    format: SeriesFormat = DETECT  # how the file that it was trained on writes series
    # Of forecasts and their intervals on held-out values; None: the model's own, with quantiles of the paths
    calibration: Calibration | None = None
    held_out_windows: int = 1  # of `horizon` values


@register_part
@dataclass(frozen=True)
class SeriesCodecPart(TrainedCodec, Part):
    """The codec in a saved model, with the calibration of its intervals if there is one."""

    kind: ClassVar[str] = "series_codec"
    file_names: ClassVar[tuple[str, ...]] = (INTERVALS,)

    def config(self) -> dict[str, Any]:
        written = self.format.model_dump(exclude_none=True)
        own = {"horizon": self.horizon, "season": self.season, "held_out_windows": self.held_out_windows}
        untimed = {} if self.untimed_season is None else {"untimed_season": self.untimed_season}
        return {**self.codec.config.model_dump(mode="json"), **own, **untimed, "format": written}

    def save_files(self, directory: Path) -> None:
        if self.calibration is not None:
            write_json(directory / INTERVALS, self.calibration.to_json())

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> SeriesCodecPart:
        saved = make_section(SavedCodecConfig, values)
        bins = CodecConfig(**saved.model_dump(include=set(CodecConfig.model_fields)))
        own = {name: value for name, value in saved if name not in CodecConfig.model_fields}
        return cls(SeriesCodec(bins), calibration=load_calibration(source.directory), **own)


class SavedCodecConfig(CodecConfig):
    """The entry of the codec in config.json."""

    horizon: int | None = Field(gt=0)
    season: Size | None = 1
    untimed_season: Size | None = None
    held_out_windows: int = Field(1, ge=0)  # 0: nothing was held out
    format: SeriesFormat = DETECT
