"""The configuration of a run: what the request leaves open is chosen from the series and the machine, with reasons."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.errors import ConfigError
from foretell.forecasting.codec import CodecConfig, SeriesCodec, scale_of
from foretell.forecasting.config import (
    CONTEXT_LENGTH,
    DEFAULT_SIZE,
    MODEL,
    SIZES,
    TRAINING,
    ForecastConfig,
    SeriesConfig,
)
from foretell.forecasting.metrics import mase_scale, mean_of
from foretell.forecasting.request import ForecastRequest
from foretell.forecasting.season import choose_season
from foretell.forecasting.series import Series
from foretell.forecasting.task import ForecastTask, check_series_fit
from foretell.model.cost import count_parameters
from foretell.model.init import make_decoder
from foretell.session.environment import name_of
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

VERB = "train --task forecast"  # resumes a run
DEFAULT_MINUTES = 5.0
MOST_PASSES = 100  # over the values, unless the time is given
FEWEST_STEPS = 300  # if the time is not given
PROBE_SECONDS = 3.0
EVALUATIONS = 10  # per training
SEASONS_AHEAD = 2  # the default horizon
PROBED_VALUES = 512  # per series, for what the codec's rounding costs

logger = logging.getLogger(__name__)


def make_task(
    request: ForecastRequest, series: Sequence[Series], device: torch.device, dtype: torch.dtype
) -> ForecastTask:
    """The task with its whole configuration and a model before its first step; logs what was chosen and why."""
    season, why = choose_season(series, request.season)
    size = request.size or DEFAULT_SIZE
    series_config = make_series_config(request, series, season)
    codec = make_section(CodecConfig, request.section("codec"), "codec")
    model = make_model_config(request, series, codec, series_config, size)
    training = make_training_config(request, 1)
    about = {"verb": VERB, "data": [str(request.data)], "size": size, "columns": list(request.columns)}
    about |= {"season": season}
    config = ForecastConfig(model=model, codec=codec, series=series_config, training=training)
    check_series_fit(series, config)
    task = ForecastTask(config, series, make_decoder(model, training.seed), about)
    steps, reason = choose_steps(request, task, device, dtype)
    config = config.model_copy(update={"training": make_training_config(request, steps)})
    for line in describe(series, config, f"season      {season}: {why}", f"{size}, {reason}", season):
        logger.info(line)
    logger.info(f"machine     {device.type}, {torch.get_num_threads()} threads, {name_of(dtype)} products")
    return ForecastTask(config, series, make_decoder(model, training.seed), about)


def make_series_config(request: ForecastRequest, series: Sequence[Series], season: int) -> SeriesConfig:
    """The horizon is two seasons, but at most a quarter of the longest series, if it is not given."""
    longest = max(len(each) for each in series)
    horizon = request.horizon or max(1, min(SEASONS_AHEAD * max(season, 4), longest // 4))
    return make_section(SeriesConfig, {"horizon": horizon, **request.section("series")}, "series")


def make_model_config(
    request: ForecastRequest, series: Sequence[Series], codec: CodecConfig, config: SeriesConfig, size: str
) -> ModelConfig:
    """The shape of a size, with a context that is no longer than what the longest series teaches."""
    chosen = request.section("model")
    longest = max(len(each) for each in series) - (config.horizon if config.hold_out else 0)
    context = max(min(CONTEXT_LENGTH, longest), config.horizon + 1, 2)
    values = {**MODEL, **SIZES[size], "context_length": context, "vocab_size": SeriesCodec(codec).vocab_size, **chosen}
    model = make_section(ModelConfig, values, "model")
    if model.vocab_size != SeriesCodec(codec).vocab_size:
        raise ConfigError(f"model.vocab_size follows from codec.bins; leave it out, or set codec.bins = {codec.bins}")
    if model.context_length <= config.horizon:
        raise ConfigError(
            f"the horizon of {config.horizon} does not fit the context of {model.context_length}; make "
            "--model.context-length longer, or --horizon shorter: a forecast can be longer than that anyway"
        )
    return model


def make_training_config(request: ForecastRequest, steps: int) -> TrainingConfig:
    """The recipe, changed by what the user set."""
    chosen = request.section("training")
    steps = chosen.get("steps", steps)
    checked = make_section(TrainingConfig, {**chosen, "steps": steps}, "training")
    every = max(1, -(-checked.steps // EVALUATIONS))
    own = {"evaluate_every": every, "checkpoint_every": every, "warmup_steps": min(30, checked.steps // 10)}
    return make_section(TrainingConfig, {**TRAINING, **own, **chosen, "steps": steps}, "training")


def choose_steps(
    request: ForecastRequest, task: ForecastTask, device: torch.device, dtype: torch.dtype
) -> tuple[int, str]:
    """The number of steps for the time and the data, and the reason."""
    given = request.section("training").get("steps")
    if given is not None:
        return make_training_config(request, 1).steps, "steps as given"
    seconds = seconds_per_step(task, device, dtype)
    minutes = request.minutes or DEFAULT_MINUTES
    by_time = max(1, int(minutes * 60 / seconds))
    if request.minutes is not None:
        return by_time, f"{minutes:g} minutes at {seconds:.2f} s per step"
    values_per_step = task.config.training.batch_size * task.length
    by_data = max(FEWEST_STEPS, MOST_PASSES * task.source.values // values_per_step)
    if by_data < by_time:
        return by_data, f"{by_data * values_per_step / task.source.values:.0f} passes over the values"
    return by_time, f"{minutes:g} minutes at {seconds:.2f} s per step (--minutes gives more)"


def seconds_per_step(task: ForecastTask, device: torch.device, dtype: torch.dtype) -> float:
    """The time of a training step on this machine, measured for PROBE_SECONDS; the task's decoder is used up."""
    task.objective.to(device).train()
    task.choose_kernels(device, dtype)
    training = task.config.training
    optimizer = make_optimizer(task.decoder, training, dtype)
    _ = training_step(task.objective, optimizer, task.batch(0), 0, training, dtype).loss  # the first one warms up
    started, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < PROBE_SECONDS or steps == 0:
        _ = training_step(task.objective, optimizer, task.batch(steps), steps, training, dtype).loss  # waits for a GPU
        steps += 1
    return elapsed / steps


def describe(series: Sequence[Series], config: ForecastConfig, season_line: str, size: str, season: int) -> list[str]:
    """The data, the codec, the model and the recipe, in a few lines."""
    lengths = sorted(len(each) for each in series)
    missing = sum(int(np.isnan(each.values).sum()) for each in series)
    spread = f"{lengths[0]:,}" if lengths[0] == lengths[-1] else f"{lengths[0]:,} to {lengths[-1]:,}"
    held_out = f"the last {config.series.horizon} of each held out" if config.series.hold_out else "none held out"
    model, training = config.model, config.training
    return [
        f"series      {len(series):,} of {spread} values, steps of {series[0].timeline.frequency}; "
        f"{missing:,} missing, {held_out}",
        season_line,
        f"codec       {config.codec.bins} bins; {describe_rounding(series, config, season)}",
        f"model       {count_parameters(model):,} parameters: {model.num_layers} layers, {model.num_heads} heads, "
        f"width {model.width}, context {model.context_length}",
        f"recipe      {training.optimizer}, learning rate {training.learning_rate:g}, {training.steps:,} steps of "
        f"{training.batch_size} windows: {size}",
    ]


def describe_rounding(series: Sequence[Series], config: ForecastConfig, season: int) -> str:
    """What rounding values to bins costs, in units of the seasonal naive forecast's error (MASE)."""
    codec, costs = SeriesCodec(config.codec), []
    for each in series:
        values = each.values[-PROBED_VALUES:]
        costs.append(codec.rounding(values, scale_of(values)) / mase_scale(each.values, season))
    cost = mean_of(costs)
    return (
        "rounding to them cannot be compared, no seasonal error"
        if cost is None
        else f"rounding alone costs {cost:.3f} MASE"
    )
