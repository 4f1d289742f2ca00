"""`ForecastTraining`: the declaration of training on series, and its request."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import Section, check_known, make_section
from foretell.config.training import TrainingConfig
from foretell.data.memory import check_some
from foretell.errors import ConfigError, counted, expanded
from foretell.finding import run_directory
from foretell.forecasting.calibration import FEWEST_WINDOWS, INTERVALS
from foretell.forecasting.codec import CodecConfig, SeriesCodec, scale_of
from foretell.forecasting.config import CONTEXT_LENGTH, MODEL, SIZES, TRAINING, TUNING, ForecastConfig, SeriesConfig
from foretell.forecasting.forecaster import as_forecaster, load_forecaster
from foretell.forecasting.metrics import mase_scale, over_known
from foretell.forecasting.options import ForecastOptions
from foretell.forecasting.series import Series, choose_seasons, default_horizon, frequencies, single
from foretell.forecasting.series_file import SeriesSource, list_sources, read_series, read_series_data, write_frame
from foretell.forecasting.series_layout import DETECT, recorded_format
from foretell.forecasting.task import CALIBRATION_WINDOWS, ForecastTask, check_series_fit
from foretell.forecasting.windows import held_out_values
from foretell.model.decoder import Decoder
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.saved_model.parts_on_disk import load_decoder
from foretell.session.budget import SERIES
from foretell.session.declaration import ChosenConfig, Machine, Training, describe_model, kept_data
from foretell.session.protocol import load_start
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest, read_keywords
from foretell.session.start import Start
from foretell.session.state import SessionState
from foretell.system import DeviceName

logger = logging.getLogger(__name__)
INCLUDED = "almanac"  # the forecaster in the package, trained on synthetic series
FRAME_NAME = "frame.csv"  # the run's copy of a frame
MOST_PASSES = 100  # maximum passes over the values, unless the number of steps is given
FEWEST_STEPS = 300  # always allowed, for short series
EVALUATIONS = 10  # per training
HELD_OUT_SHARE = 10  # at most a tenth of a series is held out, or one horizon
PROBED_VALUES = 512  # values per series to measure the codec's rounding error


@dataclass(frozen=True, kw_only=True)
class ForecastRequest(ForecastOptions, TrainingRequest):
    config_type: ClassVar[type[Section]] = ForecastConfig

    data: SeriesSource | None = None  # None only to resume
    free_with_start: ClassVar[tuple[str, ...]] = ("dropout", "context_length")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_from_scratch and self.start is not None:
            raise ConfigError(f"--from-scratch makes a new model; leave out --start-from {self.start.name}")
        if self.size is not None:
            check_known(self.size, tuple(SIZES), "size")
        if self.horizon is not None and self.horizon < 1:
            raise ConfigError(f"horizon must be at least 1, not {self.horizon}")
        self.format  # noqa: B018 - refuses wrong values

    def other_shape(self) -> str:
        """The first option that would change the shape or the bins of the start model."""
        return super().other_shape() or next((f"codec.{key}" for key in self.section("codec")), "")

    @property
    def described(self) -> list[str]:
        return described(self.data)

    @property
    def choices(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "season": self.season, **self.format.model_dump()}

    def check_same_run(self, config: ForecastConfig, record: RunRecord) -> None:
        super().check_same_run(config, record)
        if self.horizon not in (None, config.series.horizon):
            raise self.changed("horizon", config.series.horizon, self.horizon)


class ForecastTraining(Training[ForecastRequest, ForecastTask]):
    """Training on series of numbers. The run stores a copy of the file."""

    verb = "train --task forecast"
    default_minutes = 5.0
    curve = SERIES
    format = DETECT  # the format of the file, set when it is read

    def words_to_extend(self, record: RunRecord, run: str) -> list[str]:
        return [*self.verb.split(), *record.data, "--start-from", run]

    def choose_start(self) -> None:
        request = self.request
        if request.is_from_scratch or request.start is not None:
            return
        if given := request.other_shape():
            logger.info(f"from        random weights: {INCLUDED}, the included forecaster, does not fit {given}")
            return
        self.request = replace(request, start=forecaster_start(INCLUDED))

    def read(self, run: Run, reporter: Reporter) -> list[Series]:
        request = self.request
        assert request.data is not None
        series, self.format = read_series_data(request.data, request.columns, request.format)
        sources = list_sources(request.data)
        for index, source in enumerate(sources):
            part = "data" if len(sources) == 1 else f"data/{index:06}"  # two may have the same name
            if isinstance(source, Path):
                run.keep_file(source, part)
            else:
                write_frame(source, run.folder_of(part) / FRAME_NAME)
        return series

    def reopen(self, run: Run, record: RunRecord) -> list[Series]:
        files = sorted(path for path in kept_data(run).parent.rglob("*") if path.is_file())
        return read_series(files, tuple(record.task["columns"]), recorded_format(record.task))

    def choose(self, data: list[Series], machine: Machine) -> ChosenConfig:
        seasons, why = choose_seasons(data, self.request.season)
        season = single(seasons)
        reasons = [f"season      {season or 'by interval'}: {why}"]
        series = self.series_config(data, seasons)
        if season is None and self.request.horizon is None:
            reasons.append(f"horizon     {series.horizon} for all: two seasons of the shortest; --horizon changes it")
        size, start = self.request.size, self.request.start
        codec = self.request.configured("codec")
        if start is not None:
            size, codec = start.name, as_forecaster(start.model).codec.config
        configs = {
            name: ForecastConfig(
                model=self.model_config(data, codec, series, name),
                codec=codec,
                series=series,
                training=self.training_config(1),
            )
            for name in ((size,) if size else SIZES)
        }
        check_series_fit(data, next(iter(configs.values())))
        values = sum(map(len, data))
        if size is None:
            size, reason = self.timed_size(configs, data, machine, values)
            reasons.append(reason)
        config = configs[size]
        values_per_step = config.training.batch_size * config.model.context_length
        own_values = values_per_step * (1 - config.series.synthetic)
        most = max(FEWEST_STEPS, int(MOST_PASSES * values / max(own_values, 1)))
        steps, reason = self.timed_steps(config, data, machine, most)
        if self.request.given_steps is None:
            reason += f"; {steps * values_per_step / values:.0f} passes over the values"
        config = config.model_copy(update={"training": self.training_config(steps)})
        cost = f"codec       {codec.bins} bins; {describe_rounding(data, config, seasons)}"
        reasons += [cost, f"steps       {steps:,}: {reason}"]
        record = {"columns": list(self.request.columns), "season": season, **self.format.model_dump()}
        return ChosenConfig(config, size, reasons, record, most)

    def series_config(self, series: Sequence[Series], seasons: Sequence[int]) -> SeriesConfig:
        longest = max(len(each) for each in series)
        horizon = self.request.horizon or default_horizon(series, seasons)
        fitting = max(1, longest // (HELD_OUT_SHARE * horizon))
        windows = min(-(-CALIBRATION_WINDOWS // len(series)), fitting)
        # A season that times do not determine is stored; otherwise the times of the forecast series determine it
        is_usual = self.request.season is None and any(each.timeline.season for each in series)
        cycle = None if is_usual else single(seasons)
        values = {"horizon": horizon, "held_out_windows": windows, "cycle": cycle}
        return make_section(SeriesConfig, {**values, **self.request.section("series")}, "series")

    def model_config(
        self, series: Sequence[Series], codec: CodecConfig, config: SeriesConfig, size: str
    ) -> ModelConfig:
        """The shape of a size or of the start model, with a context no longer than the training part of the longest
        series."""
        chosen = self.request.section("model")
        longest = max(len(each) for each in series) - (config.horizon if config.hold_out else 0)
        context = max(min(CONTEXT_LENGTH, longest), config.horizon + 1, 2)
        vocab_size = SeriesCodec(codec).vocab_size
        start = self.request.start
        shape = {**MODEL, **SIZES[size]} if start is None else start.config.model_dump()
        values = {**shape, "context_length": context, "vocab_size": vocab_size, **chosen}
        model = make_section(ModelConfig, values, "model")
        if model.vocab_size != vocab_size:
            raise ConfigError(
                f"model.vocab_size follows from codec.bins; leave it out, or set codec.bins = {codec.bins}"
            )
        if model.context_length <= config.horizon:
            raise ConfigError(
                f"the horizon of {config.horizon} does not fit the context of {model.context_length}; make "
                "--model.context-length longer, or --horizon shorter: a forecast can be longer than that anyway"
            )
        return model

    def training_config(self, steps: int) -> TrainingConfig:
        """The recipe with the user's settings."""
        chosen = self.request.section("training")
        steps = chosen.get("steps", steps)
        checked = make_section(TrainingConfig, {**chosen, "steps": steps}, "training")
        every = max(1, -(-checked.steps // EVALUATIONS))
        own = {"evaluate_every": every, "checkpoint_every": every, "warmup_steps": min(30, checked.steps // 10)}
        defaults = TRAINING if self.request.start is None else {**TRAINING, **TUNING}
        return make_section(TrainingConfig, {**defaults, **own, **chosen, "steps": steps}, "training")

    def load_model(self, directory: Path, device: torch.device) -> Decoder:
        return load_decoder(directory, device)

    def make_task(self, config: ForecastConfig, data: list[Series], model: Decoder) -> ForecastTask:
        return ForecastTask(config, data, model)

    def closed(self, session: SessionState[ForecastTask]) -> None:
        """Choose the combination and calibrate the intervals of the best checkpoint on held-out windows."""
        if not session.world.is_first or not session.task.has_held_out:
            return
        began = time.monotonic()
        best = session.run.best()
        forecaster = load_forecaster(best.directory, cast(DeviceName, session.device.type))
        start = session.task.record.start
        prior = None if start is None else load_forecaster(start.model, "cpu").calibration
        calibration = session.task.calibration(replace(forecaster, calibration=None), prior)
        if calibration is None:
            return
        best.replace_json(INTERVALS, calibration.to_json())
        if (chosen := calibration.combination) is not None:
            logger.info(
                f"forecasts   {chosen.describe()}; error on held-out values {chosen.error:.3f} standard deviations, "
                f"{chosen.model_error:.3f} of the model alone"
            )
        elif session.task.config.series.combine and calibration.windows < FEWEST_WINDOWS:
            logger.info(f"forecasts   the model's alone: a blend takes {FEWEST_WINDOWS} held-out windows or more")
        logger.info(
            f"intervals   calibrated on {counted(calibration.windows, 'held-out window')} of "
            f"{session.task.config.series.horizon} in {time.monotonic() - began:.0f} s"
            f"{', as wide as recent changes' * (calibration.unit == 'changes')}"
        )

    def describe(self, task: ForecastTask) -> list[str]:
        series, config = task.series, task.config
        lengths = sorted(len(each) for each in series)
        missing = sum(int(np.isnan(each.values).sum()) for each in series)
        spread = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[0]:,} to {lengths[-1]:,}"
        windows = config.series.held_out_windows
        count = f"{windows} x {config.series.horizon}" if windows > 1 else f"{config.series.horizon}"
        counts = {held_out_values(length, config.series.horizon, windows) for length in lengths}
        most = "at most " if len(counts) > 1 else ""  # short series hold out one window, or nothing
        held_out = f"{most}the last {count} of each held out" if config.series.hold_out else "none held out"
        training = config.training
        return [
            f"series      {len(series):,} of {spread} values, steps of {', '.join(frequencies(series))}; "
            f"{missing:,} missing, {held_out}",
            *task.record.reasons,
            describe_model(task.record.size, config.model),
            f"recipe      {training.optimizer}, learning rate {training.learning_rate:g}, {training.batch_size} "
            "windows per step",
        ]


def forecaster_start(argument: str | Path) -> Start:
    """A trained forecaster to start from; a CheckpointError for another kind of model."""
    start = load_start(argument)
    as_forecaster(start.model)
    return replace(start, model=replace(start.model, notes=()))  # drop notes about the missing tokenizer


def described(data: SeriesSource | None) -> list[str]:
    """The names of the data in run.json."""
    if data is None:
        return []
    paths = [data] if isinstance(data, str | Path) else data if isinstance(data, list | tuple) else [FRAME_NAME]
    return [expanded(str(path)) for path in paths]


def make_training(
    data: SeriesSource | None,
    out: str | Path | None,
    resume: bool,
    start_from: str | Path | None,
    keywords: Mapping[str, Any],
) -> ForecastTraining:
    """The training of `foretell.train(task="forecast")`."""
    options = read_keywords("train", ForecastOptions, keywords)
    check_some(data, "files")
    out = run_directory(out, described(data), resume)
    start = None if start_from is None else forecaster_start(start_from)
    return ForecastTraining(ForecastRequest(data=data, out=out, start=start, **options))


def describe_rounding(series: Sequence[Series], config: ForecastConfig, seasons: Sequence[int]) -> str:
    """The error of rounding values to bins, in units of the seasonal naive forecast's error (MASE)."""
    codec, costs = SeriesCodec(config.codec), []
    for each, season in zip(series, seasons, strict=True):
        values = each.values[-PROBED_VALUES:]
        costs.append(codec.rounding(values, scale_of(values)) / mase_scale(each.values, season))
    cost = over_known(np.mean, costs)
    if cost is None:
        return "rounding to them cannot be compared, no seasonal error"
    return f"rounding alone costs {cost:.3f} MASE"


def resuming(out: Path) -> ForecastTraining:
    """The training that can resume a run."""
    return ForecastTraining(ForecastRequest(out=out))
