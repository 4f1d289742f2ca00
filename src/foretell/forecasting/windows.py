"""Training windows: a stretch of a series, scaled by its first values, with the later values as targets.

A forecast scales a series by its context and continues it. Training does the same with random context lengths: in each
window the first `context` values determine the scale, and the loss is on the later values. So no target affects its own
scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from foretell.data.batch import Batch, make_batch, pad
from foretell.errors import DataError, TrainingError
from foretell.forecasting.codec import Scale, SeriesCodec, scale_of
from foretell.forecasting.config import SeriesConfig
from foretell.forecasting.series import Earlier, Window
from foretell.forecasting.synthetic import synthetic_series
from foretell.numerics.randomness import stream_key

MOST_HIDDEN = 0.3  # the largest share of hidden values in a window


def scale_before(window: Window) -> Scale:
    """The scale of a window, which depends only on values before the forecast."""
    return scale_of(window.values[: window.context], window.season, window.before)


def make_window_batch(windows: Sequence[Window], codec: SeriesCodec, scales: Sequence[Scale], length: int) -> Batch:
    """Windows as one batch of rows (B, length - 1); the loss is on known values after the context."""
    ids, mask = [], torch.zeros(len(windows), length - 1)
    for row, window, scale in zip(mask, windows, scales, strict=True):
        ids.append(codec.encode(window.values, scale, -window.context).tolist())
        row[window.context - 1 : len(window.values) - 1] = torch.from_numpy(~np.isnan(window.actual))
    rows, lengths = pad(ids, length)
    return replace(make_batch(rows, lengths), loss_weights=mask)


class WindowSource:
    """Random windows of series; the windows of a step depend only on (seed, step)."""

    def __init__(
        self,
        series: Sequence[np.ndarray],
        codec: SeriesCodec,
        config: SeriesConfig,
        length: int,
        rows: int,
        seed: int,
        seasons: Sequence[int],
    ):
        learned = [pair for pair in zip(series, seasons, strict=True) if (~np.isnan(pair[0])).sum() > 1]
        self.series, self.seasons = [values for values, _ in learned], [season for _, season in learned]
        if not self.series:
            raise DataError("no series has two values to learn from, after those that are held out")
        self.codec, self.config, self.length, self.rows, self.seed = codec, config, length, rows, seed
        lengths = np.array([len(values) for values in self.series], dtype=float)
        self.shares = lengths / lengths.sum()

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng(stream_key("windows", self.seed, step))
        windows = [self.draw(rng, step * self.rows + row) for row in range(self.rows)]
        scales = [self.change(scale_before(window), rng) for window in windows]
        return make_window_batch(windows, self.codec, scales, self.length)

    def draw(self, rng: np.random.Generator, index: int) -> Window:
        """A random stretch of a random series, or synthetic series `index`, with a random context."""
        values, before, season = self.stretch(rng)
        if rng.random() < self.config.synthetic:
            values, before, season = synthetic_series(self.seed, index, self.length), (), 1
        target = min(self.config.horizon, len(values) // 2)
        context = int(rng.integers(1, max(1, len(values) - target) + 1))
        return Window(self.hide(values, rng), context, season, before)

    def stretch(self, rng: np.random.Generator) -> tuple[np.ndarray, Earlier, int]:
        """A random stretch of a random series, the values before it, and the season. From a series shorter than a row,
        it is the end from a random start."""
        chosen = rng.choice(len(self.series), p=self.shares)
        values = self.series[chosen]
        last_start = len(values) - self.length if len(values) > self.length else len(values) // 2
        start = int(rng.integers(0, last_start + 1)) if len(values) > 2 else 0
        return values[start : start + self.length], values[:start], self.seasons[chosen]

    def hide(self, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Hide a random share of the values in some windows, so that the model learns missing values."""
        if rng.random() >= self.config.missing_rate:
            return values
        hidden = rng.random(len(values)) < MOST_HIDDEN * rng.random()
        return np.where(hidden, np.nan, values)

    def change(self, scale: Scale, rng: np.random.Generator) -> Scale:
        """A scale close to the given one, so that the model learns more bins than these series use."""
        shift, stretch = self.config.noise * rng.standard_normal(2)
        return scale.moved(float(shift), float(np.exp(stretch)))


def held_out_windows(
    series: Sequence[np.ndarray],
    length: int,
    horizon: int,
    context: int | None = None,
    most: int = 1,
    seasons: Sequence[int] | None = None,
) -> list[Window]:
    """Windows of the last values of each series, `horizon` at a time, after `context` values or all that fit."""
    windows = []
    for values, season in zip(series, seasons or [1] * len(series), strict=True):
        for end in range(len(values), len(values) - held_out_values(len(values), horizon, most), -horizon):
            before = end - horizon
            known = min(before, length - horizon if context is None else context)
            if known >= max(1, context or 1):
                earlier = () if context is not None else values[: before - known]
                windows.append(Window(values[before - known : end], known, season, earlier))
    return windows


def held_out_values(length: int, horizon: int, windows: int) -> int:
    """The number of values held out of a series: `windows` windows, or one if they exceed a tenth of the series.

    0 for a series that is not longer than the horizon; it is used for training as a whole.
    """
    if length <= horizon:
        return 0
    return horizon * (windows if 10 * windows * horizon <= length else 1)


def check_no_look_ahead(windows: Sequence[Window], codec: SeriesCodec) -> None:
    """Change every value after the context. Raises TrainingError if that changes an id before it."""
    for window in windows:
        future = 3 * np.abs(window.actual) + 1
        changed = replace(window, values=np.concatenate([window.values[: window.context], future]))
        length = len(window.values)
        before, after = (make_window_batch([each], codec, [scale_before(each)], length) for each in (window, changed))
        if not torch.equal(before.ids[:, : window.context], after.ids[:, : window.context]):
            raise TrainingError("values after the context of a window change the ids before: its scale looks ahead")
