"""The codec: values of a series as token ids and back. It takes a tokenizer's place around an unchanged decoder.

A series is scaled by its context, (value - mean) / standard deviation, and the scaled value is rounded to a bin. Bins
are equally wide after asinh: about 0.0066 standard deviations near the mean with the default settings, wider outside
(Ansari et al. 2024, "Chronos", section 3.1, with other bins and without scaling by the mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from foretell.config import Section, make_section
from foretell.forecasting.calibration import INTERVALS, Calibration, load_calibration, save_calibration
from foretell.forecasting.series_layout import DETECT, SeriesFormat
from foretell.saved_model.part import Part, PartSource, register_part

CONSTANT = 1e-9  # a standard deviation below this share of the largest value is rounding noise of a constant series
GUESSED_SPREAD = 0.25  # of a constant context, as a share of its value


class CodecConfig(Section):
    """The bins of the codec: how many, how far out, and up to where they are equally wide."""

    bins: int = Field(1023, ge=3, le=2**16)  # odd, so that the mean is the middle of a bin
    limit: float = Field(15.0, gt=0)  # standard deviations from the mean; values further out go to the last bin
    linear_range: float = Field(1.0, gt=0)  # standard deviations within which bins are about equally wide

    @model_validator(mode="after")
    def _check(self) -> CodecConfig:
        if self.bins % 2 == 0:
            raise ValueError(f"bins must be odd, not {self.bins}, so that the mean is the middle of a bin")
        return self


@dataclass(frozen=True)
class Scale:
    """The scale of a series: its mean and its standard deviation over some of its values."""

    location: float
    spread: float

    def moved(self, shift: float, factor: float) -> Scale:
        """The scale under which a value that was z standard deviations from the mean is z * factor + shift."""
        return Scale(self.location - shift * self.spread / factor, self.spread / factor)


def scale_of(values: np.ndarray) -> Scale:
    """The scale of a context (T,); missing values (NaN) do not count.

    A constant context is scaled by a quarter of its value, zeros and a context without any value by 1.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return Scale(0.0, 1.0)
    largest = float(np.abs(known).max()) or 1.0
    relative = known / largest  # the square of 1e200 would overflow
    location, spread = float(relative.mean()), float(relative.std())
    if spread <= CONSTANT:
        return Scale(float(known[0]), GUESSED_SPREAD * largest if known[0] else 1.0)
    return Scale(location * largest, spread * largest)


class SeriesCodec:
    """Values to token ids and back. Ids 0 to bins-1 are bins, the id after them is a missing value."""

    def __init__(self, config: CodecConfig = CodecConfig()):  # noqa: B008 - it is frozen
        self.config = config
        self.missing_id = config.bins
        self.vocab_size = config.bins + 1
        self._edge = math.asinh(config.limit / config.linear_range)
        self._width = 2 * self._edge / config.bins

    @cached_property
    def centers(self) -> np.ndarray:
        """The scaled value (bins,) of each bin; the missing value, after them, is NaN."""
        middle = self.config.bins // 2
        scaled = np.sinh((np.arange(self.config.bins) - middle) * self._width) * self.config.linear_range
        return np.append(scaled, np.nan)

    def encode(self, values: np.ndarray, scale: Scale) -> np.ndarray:
        """The ids (T,) of values (T,), int64; beyond the limit the last bin."""
        scaled = (values - scale.location) / (scale.spread * self.config.linear_range)
        bins = np.floor((np.arcsinh(scaled) + self._edge) / self._width)
        ids = np.clip(np.nan_to_num(bins, nan=0), 0, self.config.bins - 1).astype(np.int64)
        return np.where(np.isnan(values), self.missing_id, ids)

    def decode(self, ids: np.ndarray | Sequence[int], scale: Scale) -> np.ndarray:
        """The values of ids, of the same shape: the middles of their bins; NaN where one is missing."""
        return self.centers[np.asarray(ids)] * scale.spread + scale.location

    def rounding(self, values: np.ndarray, scale: Scale) -> float:
        """The mean absolute error that encoding and decoding alone make, NaN without values."""
        errors = np.abs(self.decode(self.encode(values, scale), scale) - values)
        return float(np.nanmean(errors)) if np.isfinite(errors).any() else math.nan

    def clipped(self, values: np.ndarray, scale: Scale) -> int:
        """The number of values beyond the last bin."""
        return int((np.abs(values - scale.location) > self.config.limit * scale.spread).sum())


@register_part
@dataclass(frozen=True)
class SeriesCodecPart(Part):
    """The codec in a saved model, with the calibration of its intervals if there is one."""

    kind: ClassVar[str] = "series_codec"
    file_names: ClassVar[tuple[str, ...]] = (INTERVALS,)
    codec: SeriesCodec
    horizon: int  # how far ahead the model was trained to look, the default of `forecast`
    format: SeriesFormat = DETECT  # how the file that it was trained on writes series
    calibration: Calibration | None = None

    def config(self) -> dict[str, Any]:
        written = self.format.model_dump(exclude_none=True)
        return {**self.codec.config.model_dump(mode="json"), "horizon": self.horizon, "format": written}

    def save_files(self, directory: Path) -> None:
        if self.calibration is not None:
            save_calibration(directory, self.calibration)

    @classmethod
    def load(cls, values: Mapping[str, Any], source: PartSource) -> SeriesCodecPart:
        saved = make_section(SavedCodecConfig, values)
        return cls(
            SeriesCodec(CodecConfig(**saved.model_dump(exclude={"horizon", "format"}))),
            saved.horizon,
            saved.format,
            load_calibration(source.directory),
        )


class SavedCodecConfig(CodecConfig):
    """The entry of the codec in config.json."""

    horizon: int = Field(gt=0)
    format: SeriesFormat = DETECT
