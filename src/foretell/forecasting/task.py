"""The forecasting task: a decoder learns to continue series from contexts of any length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import Batch
from foretell.data.data_use import DataUse
from foretell.errors import DataError
from foretell.evaluation.loss import describe_first_loss, evaluate, first_loss
from foretell.evaluation.material import VALUES
from foretell.evaluation.replayed_row import ReplayedRow, ReplayedToken
from foretell.forecasting.calibration import Calibration, HeldOut, calibrate, choose_combination
from foretell.forecasting.codec import SeriesCodec, SeriesCodecPart
from foretell.forecasting.config import ForecastConfig
from foretell.forecasting.forecaster import PART, Forecaster
from foretell.forecasting.series import Series, Window, choose_seasons, fingerprint, hash_values, single, value_text
from foretell.forecasting.series_layout import recorded_format
from foretell.forecasting.windows import (
    WindowSource,
    check_no_look_ahead,
    held_out_values,
    held_out_windows,
    make_window_batch,
    scale_before,
)
from foretell.model.cost import training_flops_per_token
from foretell.model.decoder import Decoder
from foretell.saved_model.part import DECODER, DecoderPart
from foretell.saved_model.parts_on_disk import save_parts
from foretell.session.task import Sample, Task
from foretell.training.mask_check import check_mask
from foretell.training.objective import Objective, TokenLosses

REACH = 4  # standard deviations of the smoothed targets


class OrdinalLosses(TokenLosses):
    """Cross entropy with the target spread over nearby bins as a normal distribution, `smoothing` bins wide.

    This is possible because a codec's bins are ordered, unlike a text vocabulary. The evaluation loss is not smoothed.
    """

    offsets: Tensor
    shares: Tensor

    def __init__(self, decoder: Decoder, bins: int, smoothing: float):
        super().__init__(decoder)
        self.bins = bins
        reach = math.ceil(REACH * smoothing)
        offsets = torch.arange(-reach, reach + 1)
        density = torch.exp(-0.5 * (offsets / smoothing) ** 2) if reach else torch.ones(1)
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("shares", density / density.sum(), persistent=False)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The losses (N,) of targets (N,) from hidden states (N, D)."""
        if not self.training:
            return super().forward(hidden, targets)
        logits = self.logits(hidden)  # (N, V)
        near = (targets[:, None] + self.offsets).clamp(0, self.bins - 1)
        expected = (logits.gather(1, near) * self.shares.to(logits)).sum(-1)  # (N,)
        return logits.logsumexp(-1) - expected


SHOWN_VALUES, SAMPLE_PATHS = 6, 20
CALIBRATION_WINDOWS = 64  # gives a standard deviation of 1.4% for the coverage on M4 hourly's test part
CALIBRATION_PATHS = 50
# Sampling a value of a path takes as much CPU time as evaluating this number of tokens. One thread, series of days,
# context 448, horizons 14 and 48: almanac 22 and 17, toy 26 and 23, tiny 23 and 19, small 16 and 21.
SAMPLING_COST = 22.0


class ForecastTask(Task):
    """Next-value prediction on series."""

    material = VALUES
    held_out_setting = "series.hold_out"

    def __init__(self, config: ForecastConfig, series: Sequence[Series], decoder: Decoder):
        self.config, self.series = config, list(series)
        self.decoder = self.model = decoder
        self.codec = SeriesCodec(config.codec)
        self.objective = Objective(decoder)
        self.objective.losses = OrdinalLosses(decoder, config.codec.bins, config.series.smoothing)
        self.row_length = config.model.context_length
        self.flops_per_token = training_flops_per_token(config.model)
        horizon, seed = config.series.horizon, config.training.seed
        values = [each.values for each in series]
        windows = config.series.held_out_windows
        counts = [held_out_values(len(each), horizon, windows) if config.series.hold_out else 0 for each in values]
        self.has_held_out = any(counts)
        self.cycles = [config.series.cycle or season for season in choose_seasons(self.series, None)[0]]
        self.closing_evaluations = self.closing_cost() if self.has_held_out else 0.0
        self.taught = [each[: len(each) - count] for each, count in zip(values, counts, strict=True)]
        rows = config.training.batch_size
        self.source = WindowSource(self.taught, self.codec, config.series, self.row_length, rows, seed, self.cycles)

    @property
    def starts_trained(self) -> bool:
        return self.record.start is not None and self.config.series.hold_out

    def closing_cost(self) -> float:
        """The time of the closing report in evaluations: the losses by context, and the paths of the calibration."""
        evaluated = max(1, len(self.evaluated_windows))
        by_context = len(self.contexts()) * min(len(self.held_out), self.most_by_context)
        sampled = len(self.calibration_windows) * CALIBRATION_PATHS * self.config.series.horizon
        return (by_context + SAMPLING_COST * sampled / self.row_length) / evaluated

    def batch(self, step: int) -> Batch:
        return self.source.batch(step)

    def row_as_text(self, row: Batch, step: int, index: int) -> ReplayedRow:
        """The values in standard deviations of the context, with the losses of those after it."""
        assert isinstance(self.objective, Objective)
        losses = [None, *self.objective.token_losses(row)[0].tolist()]
        ids = [int(row.ids[0, 0]), *row.targets[0].tolist()]
        is_learned = [False, *(row.loss_weights[0] > 0).tolist()]
        count = max([1, *(position + 1 for position, learned in enumerate(is_learned) if learned)])
        tokens = [
            ReplayedToken(each, f" {self.codec.centers[each]:+.2f}", loss if learned else None, None)
            for each, loss, learned in zip(ids[:count], losses, is_learned, strict=False)
        ]
        return ReplayedRow(None, tokens)

    def evaluate(self, dtype: torch.dtype) -> Mapping[str, float]:
        """The loss on the held-out values of an evenly spread selection of series."""
        windows = self.evaluated_windows
        return {"validation_loss": self.loss_on(windows, dtype)} if windows else {}

    @cached_property
    def held_out(self) -> list[Window]:
        """The windows that end in held-out values."""
        return self.held_out_after() if self.has_held_out else []

    def held_out_after(self, context: int | None = None) -> list[Window]:
        """The windows with `context` values, or all that fit, before the held-out ones."""
        config, values = self.config.series, [each.values for each in self.series]
        return held_out_windows(values, self.row_length, config.horizon, context, config.held_out_windows, self.cycles)

    @property
    def evaluated_windows(self) -> list[Window]:
        """Windows with at most about `evaluation_tokens` tokens."""
        return evenly_chosen(self.held_out, self.config.training.evaluation_tokens // self.row_length)

    @cached_property
    def calibration_windows(self) -> list[Window]:
        """At most CALIBRATION_WINDOWS windows with known values in the context and after it."""
        readable = [each for each in self.held_out if np.isfinite(each.values[: each.context]).any()]
        return evenly_chosen([each for each in readable if each.is_measurable], CALIBRATION_WINDOWS)

    def calibration(self, forecaster: Forecaster, prior: Calibration | None = None) -> Calibration | None:
        """The combination and intervals chosen on held-out windows; None if these have no values.

        prior: the start model's calibration.
        """
        chosen = self.calibration_windows
        horizon = self.config.series.horizon
        if not chosen:
            return None
        histories, seasons = [each.history for each in chosen], [each.season for each in chosen]
        paths = forecaster.sample_paths(histories, horizon, CALIBRATION_PATHS, seasons=seasons)
        held_out = []
        for each, sampled in zip(chosen, paths, strict=True):
            spread = replace(forecaster, season=each.season).spread(each.history, horizon)
            held_out.append(HeldOut(**vars(each), paths=sampled, spread=spread))
        combination = choose_combination(held_out, self.record.task["season"]) if self.config.series.combine else None
        if combination is not None:
            held_out = [each.combined(combination) for each in held_out]
        return calibrate(held_out, combination, prior)

    def loss_on(self, windows: Sequence[Window], dtype: torch.dtype) -> float:
        """The mean loss in nats per value after the context of each window."""
        rows = self.config.training.batch_size
        parts = (windows[first : first + rows] for first in range(0, len(windows), rows))
        batches = (
            make_window_batch(part, self.codec, list(map(scale_before, part)), self.row_length) for part in parts
        )
        return evaluate(self.objective, batches, dtype).loss

    def loss_by_context(self, dtype: torch.dtype) -> dict[int, float]:
        """The loss on the held-out values by the length of the context: 1, 2, 4, ... and all that fit."""
        most = self.most_by_context
        windows = {context: evenly_chosen(self.held_out_after(context), most) for context in self.contexts()}
        return {context: self.loss_on(each, dtype) for context, each in windows.items() if each}

    @property
    def most_by_context(self) -> int:
        """Windows for each length of the context: a quarter of an evaluation, since there are about ten lengths."""
        return max(1, self.config.training.evaluation_tokens // self.row_length // 4)

    def contexts(self) -> list[int]:
        """The context lengths 1, 2, 4, ... and the number of values that fit before the horizon."""
        most = self.row_length - self.config.series.horizon
        return sorted({*(2**power for power in range(most.bit_length())), most})

    def samples(self) -> list[Sample]:
        """A few values of the forecast for the first series' held-out values."""
        series = self.series[0]
        horizon = min(self.config.series.horizon, SHOWN_VALUES, max(1, len(series) // 2))
        history = series.values[: len(series) - horizon]
        if np.isnan(history).all():
            return []
        forecaster = Forecaster(self.codec, horizon, season=self.cycles[0], decoder=self.decoder)
        (paths,) = forecaster.sample_paths([history], horizon, SAMPLE_PATHS)
        past, future = (" ".join(map(value_text, part)) for part in (history[-SHOWN_VALUES:], np.median(paths, 0)))
        return [Sample(f"{series.unique_id}: {past} ", f"forecast {future}")]

    def save_model(self, directory: Path) -> None:
        series = self.config.series
        windows = series.held_out_windows if series.hold_out else 0
        file_format = recorded_format(self.record.task)
        untimed = single(self.cycles) if series.cycle is None else None
        codec = SeriesCodecPart(self.codec, series.horizon, series.cycle, untimed, file_format, None, windows)
        save_parts(directory, {PART: codec, DECODER: DecoderPart(self.decoder)})

    def data_use(self) -> DataUse:
        pairs = list(zip(self.series, self.taught, strict=True))
        return DataUse.of(
            (hash_values(series, taught) for series, taught in pairs),
            (hash_values(series, series.values, len(taught)) for series, taught in pairs),
        )

    def fingerprints(self) -> dict[str, str]:
        return {"series": fingerprint(self.series)}

    def check(self, batch: Batch, dtype: torch.dtype) -> None:
        """Refuse a model or scales that see the future."""
        check_mask(self.decoder, batch, dtype)
        rng = np.random.default_rng(0)
        check_no_look_ahead([self.source.draw(rng, index) for index in range(4)], self.codec)

    def describe_start(self, batch: Batch, dtype: torch.dtype) -> list[str]:
        when = "at first" if self.starts_trained else "untrained"
        return [describe_first_loss(first_loss(self.objective, batch, dtype), self.codec.vocab_size, when)]


def evenly_chosen(windows: list[Window], most: int) -> list[Window]:
    """At most `most` windows, at least one, evenly spread."""
    return windows[:: max(1, -(-len(windows) // max(1, most)))]


def check_series_fit(series: Sequence[Series], config: ForecastConfig) -> None:
    """Refuse data of which nothing can be held out, if holding out is on."""
    if config.series.hold_out and all(len(each) <= config.series.horizon + 1 for each in series):
        longest = max(len(each) for each in series)
        raise DataError(
            f"the longest series has {longest} values, too few to hold out {config.series.horizon}; give a shorter "
            "--horizon, or --no-hold-out"
        )
