"""`Forecaster`: a decoder with its codec, which samples continuations of series with the usual generation."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import cast

import numpy as np

from foretell.config.quantization import Scheme
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.data.data_use import DataUse
from foretell.data.memory import Frame
from foretell.errors import CheckpointError, DataError, UsageError, check_type, counted
from foretell.evaluation.loss import Progress, silent
from foretell.forecasting.calibration import Bounds, Combination, interval_of
from foretell.forecasting.codec import Scale, SeriesCodecPart, TrainedCodec, scale_of
from foretell.forecasting.series import Series, check_size, choose_seasons, default_horizon, single, value_text
from foretell.forecasting.series_file import read_series
from foretell.forecasting.series_layout import SeriesFormat
from foretell.generation.batch_generation import result_of, run
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules
from foretell.generation.sequence import Sequence as TokenSequence
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.decoder import Decoder
from foretell.numerics.randomness import stream_key
from foretell.system import DeviceName, DtypeName
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown, ShownList

PART = "codec"  # the name of the codec among the parts of a saved model
MOST_STEPS, MOST_SAMPLES = 100_000, 10_000  # limits of a forecast
ROWS_AT_ONCE = 64  # paths; with more, a CPU copies the keys of every path in every step (kernels/fast_decoder.py)
FEWEST_EQUAL = 8  # a constant series of this length is continued as is; the spread of its paths would be a guess
SERIES_AT_ONCE = 8  # series between two progress reports
SHOWN_STEPS, SHOWN_LEVEL = 24, 80  # steps and interval level of a forecast shown in a notebook


@dataclass(frozen=True)
class Prompt:
    """The start of a forecast: the ids of a context, their scale, and the stream of random numbers."""

    ids: list[int]
    scale: Scale
    stream: int = 0


@dataclass(frozen=True)
class Forecaster(TrainedCodec):
    """A decoder trained on series, and the codec between values and ids."""

    decoder: Decoder = field(kw_only=True)
    name: str = "model"
    data_use: DataUse | None = None  # None for a model that did not record its data
    minimum: float | None = None  # lower limit of forecasts; None: 0 for series without negative values (`minimum_of`)

    @property
    def context_length(self) -> int:
        """The maximum number of values that the decoder reads at once, including the forecast."""
        return self.decoder.config.context_length

    def for_series(self, series: Sequence[Series], season: int | None = None) -> tuple[Forecaster, int]:
        """The forecaster with the season as given, from training, or from the series; and the default horizon."""
        seasons = self.seasons_of(series) if season is None else choose_seasons(series, season)[0]
        return replace(self, season=single(seasons)), self.horizon or default_horizon(series, seasons)

    def seasons_of(self, series: Sequence[Series]) -> list[int]:
        """The season of each series: this forecaster's, or else the series'."""
        if self.season is not None:
            return [self.season] * len(series)
        pairs = zip(series, choose_seasons(series, None)[0], strict=True)
        untimed = self.untimed_season
        return [untimed if untimed and each.timeline.unit == "number" else season for each, season in pairs]

    @property
    def cycle(self) -> int:
        """The season for values without further information."""
        return self.season or self.untimed_season or 1

    def context_for(self, horizon: int) -> int:
        """The number of values to read before a forecast, so that both fit the context; at least half the context.

        A longer horizon rolls: when the context is full, its last half is read again.
        """
        return max(1, self.context_length // 2, self.context_length - horizon)

    def rolls(self, horizon: int) -> bool:
        """True if the horizon and the values before it do not fit the context."""
        return self.context_for(horizon) + horizon > self.context_length + 1

    def prompt(self, history: np.ndarray, context: int) -> Prompt:
        """The last `context` values of a history, scaled by their own statistics and the cycle of the whole history."""
        check_size(history, "a series")
        values = history[-context:]
        if np.isnan(values).all():
            raise DataError(
                f"the last {counted(len(values), 'value')} of a series are all missing, so there is nothing to continue"
            )
        scale = scale_of(values, self.cycle, history[:-context])
        return Prompt(self.codec.encode(values, scale, -len(values)).tolist(), scale)

    def sample_paths(
        self,
        histories: Sequence[np.ndarray],
        horizon: int,
        samples: int,
        *,
        seed: int = 1,
        context: int | None = None,
        seasons: Sequence[int] | None = None,
        progress: Progress = silent,
    ) -> list[np.ndarray]:
        """Sampled continuations (samples, horizon) of each history, independent of the other histories.

        The draws depend on the seed, the values of the history and the sample, so that the paths of different series
        are independent. A repeated history has different draws.
        context: the number of last values to read, at most the number that fits (the default). seasons: the season of
        each history; default: the forecaster's.
        """
        options = {"seed": seed, "context": context, "seasons": seasons, "progress": progress}
        return result_of(self.sampling_paths(histories, horizon, samples, **options))

    def sampling_paths(
        self,
        histories: Sequence[np.ndarray],
        horizon: int,
        samples: int,
        *,
        seed: int = 1,
        context: int | None = None,
        seasons: Sequence[int] | None = None,
        progress: Progress = silent,
    ) -> Generator[None, None, list[np.ndarray]]:
        """`sample_paths`, which can be interrupted after each value."""
        check_type("horizon", horizon, Integral, "a whole number")
        check_type("samples", samples, Integral, "a whole number")
        if not (1 <= horizon <= MOST_STEPS and 1 <= samples <= MOST_SAMPLES):
            raise UsageError(
                f"horizon must be from 1 to {MOST_STEPS:,} and samples from 1 to {MOST_SAMPLES:,}, not {horizon:,} and "
                f"{samples:,}"
            )
        length = self.context_for(horizon)
        seasonal = [replace(self, season=season) for season in seasons or [self.season] * len(histories)]
        prompts = [
            replace(each.prompt(history[-context:] if context else history, length), stream=stream)
            for each, history, stream in zip(seasonal, histories, streams_of(histories), strict=True)
        ]
        paths = yield from self.continue_prompts(prompts, horizon, samples, seed, progress)
        return [each.combined(*pair) for each, *pair in zip(seasonal, histories, paths, strict=True)]

    @property
    def combination(self) -> Combination | None:
        """The combination with a naive forecast; None if there is none."""
        return None if self.calibration is None else self.calibration.combination

    def combined(self, history: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Paths combined with the naive forecast, and at least the minimum. Constant series are continued unchanged."""
        known = history[~np.isnan(history)]
        is_constant = len(known) >= FEWEST_EQUAL and (known == known[0]).all()
        paths = np.full_like(paths, known[0]) if is_constant else paths
        combination = None if is_constant else self.combination
        moved = paths if combination is None else combination.apply(history, paths, self.cycle)
        return np.maximum(moved, self.least(history))

    def least(self, history: np.ndarray) -> float:
        return minimum_of(history) if self.minimum is None else self.minimum

    def spread(self, history: np.ndarray, horizon: int, context: int | None = None) -> float:
        """The standard deviation of the values that a forecast reads."""
        known, length = history[-context:] if context else history, self.context_for(horizon)
        return scale_of(known[-length:], self.cycle, known[:-length]).spread

    def interval(self, history: np.ndarray, paths: np.ndarray, level: float, context: int | None = None) -> Bounds:
        """The bounds (H,), (H,) of a level in percent after a history, from its paths (samples, H)."""
        if self.calibration is None:
            return interval_of(paths, level)
        low, high = self.calibration.interval(history, paths, level, self.spread(history, paths.shape[1], context))
        least = self.least(history)
        return np.maximum(low, least), np.maximum(high, least)

    def continue_prompts(
        self, prompts: Sequence[Prompt], horizon: int, samples: int, seed: int, progress: Progress = silent
    ) -> Generator[None, None, list[np.ndarray]]:
        """The paths (samples, horizon) for prompts. A missing value is never sampled."""
        scheduler = Scheduler(self.decoder, max_rows=ROWS_AT_ONCE, expected_tokens=horizon)
        sampling = SamplingConfig(temperature=1.0, top_p=1.0, seed=seed)
        rules = Rules(Sampler(sampling, self.codec.config.bins), horizon, slide=self.rolls(horizon))
        paths: list[np.ndarray] = []
        for first in range(0, len(prompts), SERIES_AT_ONCE):
            part = prompts[first : first + SERIES_AT_ONCE]
            sequences = [
                TokenSequence(prompt.ids, stream_key("path", prompt.stream, sample), rules=rules)
                for prompt in part
                for sample in range(samples)
            ]
            for _ in run(scheduler, sequences):  # the sequences store the results
                yield
            ids = np.array([sequence.generated for sequence in sequences]).reshape(len(part), samples, horizon)
            paths += [self.codec.decode(each, prompt.scale) for each, prompt in zip(ids, part, strict=True)]
            progress(len(paths), len(prompts))
        return paths


@dataclass(frozen=True)
class Forecast(Shown):
    """Sampled paths (samples, H) of a series' next values. forecaster: for its calibrated intervals."""

    series: Series
    paths: np.ndarray
    forecaster: Forecaster | None = None

    @property
    def times(self) -> list[str]:
        return [self.series.timeline.text(len(self.series) + step) for step in range(self.paths.shape[1])]

    def document(self) -> DocumentSection:
        """Medians and intervals of the first steps."""
        low, high = self.interval(SHOWN_LEVEL)
        columns = (list(map(value_text, each)) for each in (self.median, low, high))
        rows = list(zip(self.times, *columns, strict=True))
        header = ("time", "median", f"{SHOWN_LEVEL}% from", "to")
        about = f"{counted(len(self.paths), 'sampled path')} of {counted(len(rows), 'step')}"
        more = [Paragraph(f"{len(rows) - SHOWN_STEPS} more steps are left out.")] if len(rows) > SHOWN_STEPS else []
        return DocumentSection(self.series.unique_id, [Paragraph(about), Table(header, rows[:SHOWN_STEPS]), *more])

    @property
    def mean(self) -> np.ndarray:
        """(H,) the mean of the paths."""
        return self.paths.mean(0)

    @property
    def median(self) -> np.ndarray:
        """(H,) the median of the paths: the forecast with the smallest expected absolute error."""
        return np.median(self.paths, 0)

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The bounds (H,), (H,) between which `level` percent of the values are expected, around the median."""
        if self.forecaster is None:
            return interval_of(self.paths, level)
        return self.forecaster.interval(self.series.values, self.paths, level)


def minimum_of(history: np.ndarray) -> float:
    """0 for values (T,) that were never negative, else -inf."""
    return -math.inf if (history < 0).any() else 0.0


def streams_of(histories: Sequence[np.ndarray]) -> list[int]:
    """The random stream of each history: a hash of its values and of their number of earlier occurrences."""
    occurrences: Counter[str] = Counter()
    streams = []
    for history in histories:
        values = hashlib.blake2b(np.asarray(history, np.float64).tobytes()).hexdigest()
        streams.append(stream_key("series", values, occurrences[values]))
        occurrences[values] += 1
    return streams


def forecast(
    forecaster: Forecaster | LanguageModel | str | Path,
    series: Sequence[Series] | str | Path | Frame,
    horizon: int | None = None,
    samples: int = 100,
    *,
    seed: int = 1,
    progress: Progress = silent,
    **file_format: str,
) -> ShownList[Forecast]:
    """The next `horizon` values of each series, as sampled paths; default: the training's horizon, or two seasons.

    series: also a file, or a DataFrame of pandas or polars, read in the training data's format. file_format: fields of
    `SeriesFormat`, such as date_format.
    """
    if isinstance(forecaster, str | Path):
        forecaster = load_forecaster(forecaster)
    elif isinstance(forecaster, LanguageModel):
        forecaster = as_forecaster(forecaster)
    check_type("the forecaster", forecaster, Forecaster, "a Forecaster", "foretell.load_forecaster makes one")
    if not isinstance(series, list | tuple):
        given = make_section(SeriesFormat, file_format, "format")
        series = read_series(cast("Frame", series), given=given, remembered=forecaster.format)
    if not all(isinstance(each, Series) for each in series):
        raise UsageError("series are a path, a DataFrame, or a list from read_series; name a file or make a DataFrame")
    steps = forecaster.for_series(series)[1] if horizon is None else horizon
    return result_of(forecasting(forecaster, series, steps, samples, seed, progress))


def forecasting(
    forecaster: Forecaster, series: Sequence[Series], horizon: int, samples: int, seed: int, progress: Progress = silent
) -> Generator[None, None, ShownList[Forecast]]:
    """`forecast`, which can be interrupted after each value."""
    histories, seasons = [each.values for each in series], forecaster.seasons_of(series)
    paths = yield from forecaster.sampling_paths(
        histories, horizon, samples, seed=seed, seasons=seasons, progress=progress
    )
    return ShownList(
        Forecast(each, sampled, replace(forecaster, season=season))
        for each, sampled, season in zip(series, paths, seasons, strict=True)
    )


def load_forecaster(
    argument: str | Path,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    *,
    verify: bool | None = False,
    quantize: Scheme | None = None,
) -> Forecaster:
    """The forecaster for a MODEL argument; a CheckpointError for another kind of model.

    verify, quantize: as in `load`.
    """
    return as_forecaster(load(argument, device, dtype, verify=verify, quantize=quantize))


def as_forecaster(model: LanguageModel) -> Forecaster:
    """A loaded model with a codec, as a forecaster."""
    part = model.parts.get(PART)
    if not isinstance(part, SeriesCodecPart):
        raise CheckpointError(
            f"{model.name} was not trained on series; train a forecaster: foretell train --task forecast DATA.csv"
        )
    return Forecaster(decoder=model.decoder, name=model.name, data_use=model.data_use, **vars(part))
