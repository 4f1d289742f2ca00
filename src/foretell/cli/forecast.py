"""`foretell forecast MODEL DATA`: quantiles of the next values of series; `train` and `evaluate` of a forecaster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, Unpack

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import LoadOptions, ProgressLine, note, open_model, print_json, report, results, write
from foretell.cli.training_verbs import DEFAULTS, Options, show_end, train_and_report
from foretell.errors import DataError, UsageError, counted, did_you_mean, shell_words
from foretell.typesetting.text import shorten

if TYPE_CHECKING:
    from foretell.forecasting.forecaster import Forecast, Forecaster
    from foretell.forecasting.rolling import RollingEvaluation
    from foretell.forecasting.series import Series, Window
    from foretell.forecasting.series_layout import SeriesFormat
    from foretell.forecasting.task import ForecastTask
    from foretell.language_model import LanguageModel
    from foretell.session.session import Session

Number = TypeVar("Number", int, float)
SERIES = Parameter(
    help="A file with series: CSV, TSV, JSON or Parquet, or a folder; - reads CSV.", converter=arguments.input_file
)
SeriesFile = Annotated[Path, SERIES]


@dataclass(frozen=True)
class FormatOptions:
    """The format of a file with series; by default found in the file, or as in the model's training."""

    column: Annotated[
        list[str] | None, Parameter(help="Read only this column, where every column is a series; may be repeated.")
    ] = None
    id_column: Annotated[str | None, Parameter(help="The column that names the series of a row.")] = None
    time_column: Annotated[str | None, Parameter(help="The column of times.")] = None
    target_column: Annotated[str | None, Parameter(help="The column of values; others are left out.")] = None
    separator: Annotated[str | None, Parameter(help="The character between cells.")] = None
    decimal: Annotated[Literal[".", ","] | None, Parameter(help="The decimal mark.")] = None
    date_format: Annotated[str | None, Parameter(help="Date format: %d.%m.%Y, %Y-Q%q, unix, unix_ms or number.")] = None

    def make(self) -> SeriesFormat:
        from foretell.forecasting.series_layout import SeriesFormat

        return SeriesFormat(**{name: getattr(self, name) for name in SeriesFormat.model_fields})


@dataclass(frozen=True)
class SeriesOptions(FormatOptions):
    """The choice of series in a file."""

    series: Annotated[list[str] | None, Parameter(help="Read only the series of this name; may be repeated.")] = None

    def read(self, path: Path, forecaster: Forecaster) -> list[Series]:
        """The chosen series of a file, read by the options and the format of the forecaster's training."""
        return self.read_data(path, forecaster)[0]

    def read_data(self, path: Path, forecaster: Forecaster) -> tuple[list[Series], SeriesFormat]:
        """Like `read`, and the format of the file."""
        from foretell.forecasting.series_file import read_series_data

        read, file_format = read_series_data(path, self.column or (), self.make(), forecaster.format)
        known = {each.unique_id: each for each in read}
        for name in self.series or []:
            if name not in known:
                near = did_you_mean(name, known) or shorten(f"; there is {', '.join(known)}", 200)
                raise DataError(f"no series '{name}'{near}")
        return [known[name] for name in dict.fromkeys(self.series)] if self.series else read, file_format

    def first(self, path: Path, forecaster: Forecaster) -> Series:
        """The first chosen series, with a note if there are several."""
        chosen = self.read(path, forecaster)
        if len(chosen) > 1:
            note(f"{chosen[0].unique_id} is the first of {len(chosen):,} series; --series chooses another")
        return chosen[0]

    def as_tokens(self, path: Path, model: LanguageModel, context: int | None) -> tuple[LanguageModel, str]:
        """A loaded forecaster as a model whose texts are ids, and the context of the first chosen series as a text."""
        from foretell.forecasting.forecaster import as_forecaster
        from foretell.forecasting.span_effects import as_tokens

        forecaster = as_forecaster(model)
        return as_tokens(forecaster, self.first(path, forecaster), context)


Reading = Annotated[SeriesOptions, Parameter(name="*")]
ALL_SERIES = SeriesOptions()
Season = Annotated[
    int | None, arguments.whole("Values per season (default: by times, or found).", validator=arguments.at_least_one)
]


def train_forecast(
    *data: Annotated[
        Path, Parameter(help="Files with series: CSV, TSV, JSON or Parquet, or folders; needed except to resume.")
    ],
    size: Annotated[str | None, Parameter(help="A preset: toy, tiny, small or medium (default: by the time).")] = None,
    horizon: Annotated[
        int | None, arguments.whole("Values to hold out at the end of each series (default: two seasons).")
    ] = None,
    hold_out: Annotated[
        bool, Parameter(negative="--no-hold-out", help="Hold out the last values; or train on all of them.")
    ] = True,
    season: Season = None,
    start_from: Annotated[str | None, Parameter(help="Continue from this forecaster (default: almanac).")] = None,
    from_scratch: Annotated[bool, Parameter(help="Start from random weights instead of almanac's.")] = False,
    file_format: Annotated[FormatOptions, Parameter(name="*")] = FormatOptions(),
    options: Options = DEFAULTS,
) -> None:
    """Train a decoder on series of numbers, to forecast with.

    It starts from the included forecaster almanac, which was trained on synthetic series; with --size, --codec... or
    another shape from random weights. The weights with the smallest loss on held-out values are kept, almanac's too.

    The file has a column of names, one of times and one of values; or one of times and a series in each other; or a
    series in each row after its name; or a single column. Empty cells are missing values. The run remembers how the
    file writes series, and reads other files in the same way.

    Sections of the configuration: model, codec, series, training, as in --series.noise 0.2.
    """
    out = options.directory(data)
    from foretell.forecasting.train import ForecastRequest, ForecastTraining, forecaster_start

    request = ForecastRequest(
        data=data or None,
        columns=tuple(file_format.column or ()),
        format=file_format.make(),
        size=size,
        horizon=horizon,
        season=season,
        start=forecaster_start(start_from) if start_from else None,
        is_from_scratch=from_scratch,
        overrides=options.sections({"series.hold_out": None if hold_out else False}),
        **options.shared(out),
    )
    train_and_report(ForecastTraining(request), options, finish)


def finish(session: Session[ForecastTask]) -> None:
    """Show the best loss, and the loss by the length of the context."""
    loss = session.run.best().training()["validation_loss"]
    best = "" if loss is None else f"validation loss {loss:.3f} nats per value"
    show_end(session, best, "forecast", shell_words(session.run.record().data[0]))
    if loss is not None:
        by_context, console = session.task.loss_by_context(session.dtype), results()
        console.print("values read " + " ".join(f"{context:>5}" for context in by_context))
        console.print("loss at end " + " ".join(f"{value:5.2f}" for value in by_context.values()))


Context = Annotated[int | None, arguments.whole("Read this many of the last values (default: as in forecast).")]
Levels = Annotated[str, Parameter(help="Intervals in percent, separated by commas.")]
Horizon = Annotated[
    int | None, arguments.whole("Values to forecast (default: the training's).", validator=arguments.at_least_one)
]
Samples = Annotated[int, arguments.whole("Number of sampled paths per series.", validator=arguments.at_least_one)]
Minimum = Annotated[
    str | None,
    Parameter(help="The least value of a forecast, or none (default: 0 for series that were never negative)."),
]


def forecast(
    model: arguments.Model,
    data: SeriesFile,
    /,
    *,
    horizon: Horizon = None,
    levels: Levels = "80,95",
    samples: Samples = 100,
    seed: Annotated[int, arguments.whole("The seed of the paths.")] = 1,
    minimum: Minimum = None,
    season: Season = None,
    out: Annotated[arguments.TextOutput, Parameter(help="CSV file for the table (default, and -: stdout).")] = None,
    paths: Annotated[arguments.Output, Parameter(help="Write every sampled path to this file (CSV).")] = None,
    plot: Annotated[arguments.Output, Parameter(help="Draw history, median and intervals to this file (PNG).")] = None,
    html: Annotated[arguments.Output, Parameter(help="Write a page: the past that each head attended to.")] = None,
    overwrite: arguments.Overwrite = False,
    json: arguments.Json = False,
    reading: Reading = ALL_SERIES,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Forecast the next values of series.

    The table has the columns unique_id, ds, mean, median, lo-80, hi-80, ...; with --json one object per series.
    """
    from foretell.forecasting import output

    percents, least = parse_levels(levels), parse_minimum(minimum)
    out = None if out == arguments.STANDARD_OUTPUT else out
    output.check_outputs(out, paths, plot, html, overwrite=overwrite)
    if json and out is not None:
        raise UsageError("--json prints the forecasts and --out writes them as a table; give one of them")
    forecaster = open_forecaster(model, **options.keywords())
    chosen, file_format = reading.read_data(data, forecaster)
    forecaster, usual = forecaster.for_series(chosen, season)
    steps = usual if horizon is None else horizon
    forecaster = replace(forecaster, minimum=least)
    forecasts = sample(forecaster, chosen, steps, samples, seed)
    if paths is not None:
        output.write_table(paths, output.path_rows(forecasts), file_format, overwrite=overwrite)
    if plot is not None:
        for line in output.draw_forecasts(plot, forecasts, percents, overwrite=overwrite):
            note(line)
    if html is not None:
        if len(forecasts) > 1:
            note(f"{html} shows {forecasts[0].series.unique_id}, the first series; --series chooses another")
        first = forecasts[0]
        note(str(output.write_forecast_page(first.forecaster or forecaster, first, html, overwrite=overwrite)))
    if json:
        for each in forecasts:
            print_json(output.forecast_json(each, percents))
    elif out is not None:
        output.write_table(out, output.table_rows(forecasts, percents), file_format, overwrite=overwrite)
        note(f"{out}: {counted(steps, 'value')} of {len(forecasts):,} series")
    else:
        write(output.written_like(output.table_rows(forecasts, percents), file_format).removesuffix("\n"))


def open_forecaster(model: str, **options: Unpack[LoadOptions]) -> Forecaster:
    """Load a forecaster, with lines on stderr as for other models."""
    loaded = open_model(model, **options)
    from foretell.forecasting.forecaster import as_forecaster

    return as_forecaster(loaded)


def parse_levels(text: str) -> tuple[float, ...]:
    """The numbers in `80,95`, in ascending order."""
    levels = sorted(set(parse_numbers("--levels", text, float, "percentages, such as 80,95")))
    for level in levels:
        if not 0 < level < 100:
            raise UsageError(f"a level must be between 0 and 100 percent, not {level:g}")
    return tuple(levels)


def parse_minimum(text: str | None) -> float | None:
    """None for the default; minus infinity for `none`."""
    if text in (None, "none"):
        return None if text is None else -math.inf
    try:
        least = float(text)
    except ValueError:
        least = math.nan
    if not math.isfinite(least):
        raise UsageError(f"--minimum '{text}' is not a number; write one, or none")
    return least


def parse_numbers(option: str, text: str, kind: Callable[[str], Number], expected: str) -> list[Number]:
    """Numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} '{text}' is not a list of {expected}") from None


def sample(forecaster: Forecaster, series: list[Series], horizon: int, samples: int, seed: int) -> list[Forecast]:
    """Compute the forecasts, with notes on special cases."""
    from foretell.forecasting.forecaster import forecast as forecast_series

    if horizon > 0 and forecaster.rolls(horizon):
        note(
            f"a horizon of {horizon} does not fit the context of {forecaster.context_length}: whenever it is full, its "
            "last half is read again (foretell evaluate MODEL DATA --horizon measures what that costs)"
        )
    note_clipped(forecaster, series)
    if forecaster.minimum is None and (bounded := sum(forecaster.least(each.values) == 0 for each in series)):
        note(f"minimum 0 for {bounded:,} of {len(series):,} series, which were never negative; --minimum changes it")
    note_combination(forecaster)
    if (calibration := forecaster.calibration) is None:
        note("intervals are quantiles of the paths: the model was not calibrated on held-out values")
    else:
        note(f"intervals are calibrated on {counted(calibration.windows, 'held-out window')} of the training")
    with ProgressLine("series") as progress:
        return forecast_series(forecaster, series, horizon, samples, seed=seed, progress=progress)


def note_combination(forecaster: Forecaster) -> None:
    """Note a combination with a naive forecast."""
    if forecaster.combination is not None:
        note(f"forecasts are {forecaster.combination.describe()}, as held-out values of the training chose")


def note_clipped(forecaster: Forecaster, series: list[Series]) -> None:
    """Note series with values beyond the last bin, which are clipped."""
    from foretell.forecasting.codec import scale_of

    clipped: list[str] = []
    for each, season in zip(series, forecaster.seasons_of(series), strict=True):
        values = each.values[-forecaster.context_length :]
        if len(indices := forecaster.codec.clipped(values, scale_of(values, season))):
            index = len(each) - len(values) + int(indices[0])
            clipped.append(f"{each.values[index]:g} of '{each.unique_id[:40]}' at {each.timeline.text(index)}")
    if clipped:
        limit = forecaster.codec.config.limit
        note(
            f"values over {limit:g} standard deviations out, read as if nearer, in {len(clipped):,} of "
            f"{len(series):,} series; the first is {clipped[0]}"
        )


def evaluate_forecast(
    model: arguments.Model,
    data: SeriesFile,
    /,
    *,
    horizon: Horizon = None,
    windows: Annotated[int, arguments.whole("Origins per series, counted from its end.")] = 1,
    stride: Annotated[int | None, arguments.whole("Values from one origin to the next (default: the horizon).")] = None,
    test: Annotated[
        Path | None,
        Parameter(help="A file with the values after DATA; one origin per series.", converter=arguments.input_file),
    ] = None,
    contexts: Annotated[
        str | None, Parameter(help="Evaluate with shorter histories too, of these numbers of values, such as 24,168.")
    ] = None,
    season: Season = None,
    levels: Levels = "80,95",
    samples: Samples = 100,
    seed: Annotated[int, arguments.whole("The seed of the paths.")] = 1,
    per_series: Annotated[bool, Parameter(help="Add a row per series, worst first.")] = False,
    out: Annotated[arguments.Output, Parameter(help="Write the rows of all series to this file (CSV).")] = None,
    overwrite: arguments.Overwrite = False,
    json: arguments.Json = False,
    reading: Reading = ALL_SERIES,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Errors of forecasts from rolling origins, compared with naive forecasts and AutoETS, if its package is installed.

    MASE and sMAPE of the paths' median are defined as in the M4 competition; WQL is the weighted quantile loss of the
    quantiles 0.1 to 0.9; MAE and RMSE are over all values together, in their unit; the last columns are the shares of
    values inside the intervals.
    """
    from foretell.forecasting import rolling
    from foretell.forecasting.output import check_outputs, write_table
    from foretell.forecasting.series import choose_seasons, single

    if test is not None and (horizon, stride, windows) != (None, None, 1):
        raise UsageError("--test gives the values to forecast, so --horizon, --stride and --windows have no effect")
    if stride is not None and windows == 1 and test is None:
        raise UsageError("--stride is the way from one origin to the next, and --windows is 1; give more windows")
    check_outputs(out, overwrite=overwrite)
    lengths, percents = parse_contexts(contexts), parse_levels(levels)
    forecaster = open_forecaster(model, **options.keywords())
    series, file_format = reading.read_data(data, forecaster)
    seasons, why = choose_seasons(series, season)
    forecaster, usual = forecaster.for_series(series, season)
    if test is None:
        steps = usual if horizon is None else horizon
        origins, where = choose_origins(series, steps, steps if stride is None else stride, windows, seasons)
    else:
        origins = rolling.given_origins(series, reading.read(test, forecaster), seasons)
        steps = max(len(origin.actual) for origin in origins)
        where = f"{counted(len(origins), 'origin')}, at the end of each series"
    if forecaster.rolls(steps):
        note(f"a horizon of {steps} rolls over the context of {forecaster.context_length}")
    note_combination(forecaster)
    measure = partial(rolling.evaluate_origins, forecaster, origins, levels=percents, samples=samples, seed=seed)
    evaluation, by_context = compare(measure, origins, lengths)
    if out is not None:
        write_table(out, rolling.series_rows(evaluation), file_format, names=1, overwrite=overwrite)
        note(f"{out}: {len(evaluation.by_series):,} series")
    overlap, season = rolling.overlap_of(forecaster, series, origins), single(seasons)
    report(rolling.ForecastReport(evaluation, by_context, season, why, steps, where, per_series, overlap), json)


def parse_contexts(text: str | None) -> list[int]:
    """The lengths of history in `24,168`."""
    lengths = parse_numbers("--contexts", text, int, "whole numbers, such as 24,168") if text else []
    if any(length < 1 for length in lengths):
        raise UsageError("a context must be at least 1")
    return lengths


def choose_origins(
    series: list[Series], horizon: int, stride: int, windows: int, seasons: list[int]
) -> tuple[list[Window], str]:
    """The rolling origins, and a description of them; notes origins for which the series are too short."""
    from foretell.forecasting.rolling import rolling_origins

    origins = rolling_origins(series, horizon, stride, windows, seasons)
    if len(origins) < (asked := windows * len(series)):
        note(f"only {len(origins):,} of {asked:,} origins have values before them and {horizon} to forecast after them")
    names = {each.name for each in origins}
    if absent := [each.unique_id for each in series if each.unique_id not in names]:
        note(f"left out, because they are too short: {shorten(', '.join(absent), 200)}")
    return origins, f"{counted(len(origins), 'origin')} in {len(names):,} series, stride {stride}"


def compare(
    measure: Callable[..., RollingEvaluation], origins: list[Window], contexts: list[int]
) -> tuple[RollingEvaluation, dict[int, RollingEvaluation]]:
    """The evaluation with the scores of other methods, and the evaluations with shorter contexts."""
    from foretell.forecasting.metrics import WITHOUT_PEER, has_peer
    from foretell.forecasting.rolling import score_others

    with ProgressLine("origins") as progress:
        evaluation = measure(progress=progress)
    with ProgressLine("origins by context") as progress:
        by_context = {length: measure(context=length, progress=progress) for length in contexts}
    if not has_peer():
        note(WITHOUT_PEER)
    with ProgressLine("origins, other methods") as progress:
        return replace(evaluation, others=score_others(origins, progress)), by_context
