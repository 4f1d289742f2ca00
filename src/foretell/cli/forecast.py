"""`foretell forecast MODEL DATA`: quantiles of the next values of series; `train` and `evaluate` of a forecaster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.explain import Questions
from foretell.cli.terminal import ProgressLine, note, open_model, print_json, report, results, write
from foretell.cli.trace import ALL_NAMES, Names
from foretell.cli.training_verbs import DEFAULTS, Options, show_end, train_and_report
from foretell.config.options import help_of, option
from foretell.errors import DataError, UsageError, counted, did_you_mean, shell_words
from foretell.forecasting.options import ForecastOptions, FormatOptions
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


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(FormatOptions):
    """The choice of series in a file."""

    series: Annotated[list[str] | None, Parameter(help="Read only the series of this name; may be repeated.")] = None

    def read(self, path: Path, forecaster: Forecaster) -> list[Series]:
        """The chosen series of a file, read by the options and the format of the forecaster's training."""
        return self.read_data(path, forecaster)[0]

    def read_data(self, path: Path, forecaster: Forecaster) -> tuple[list[Series], SeriesFormat]:
        """Like `read`, and the format of the file."""
        from foretell.forecasting.series_file import read_series_data

        read, file_format = read_series_data(path, self.columns, self.format, forecaster.format)
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


Reading = Annotated[SeriesOptions, arguments.ONE_COLUMN]
ALL_SERIES = SeriesOptions()


def train_forecast(
    *data: Annotated[
        Path, Parameter(help="Files with series: CSV, TSV, JSON or Parquet, or folders; needed except to resume.")
    ],
    hold_out: Annotated[
        bool, Parameter(negative="--no-hold-out", help="Hold out the last values; or train on all of them.")
    ] = True,
    start_from: Annotated[str | None, Parameter(help="Continue from this forecaster (default: almanac).")] = None,
    chosen: Annotated[ForecastOptions, arguments.ONE_COLUMN] = ForecastOptions(),
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

    if not hold_out:
        options = replace(options, settings=[*(options.settings or []), "series.hold_out=false"])
    start = forecaster_start(start_from) if start_from else None
    request = ForecastRequest(data=data or None, start=start, **options.request(out, chosen))
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


Context = Annotated[int | None, Parameter(help="Read this many of the last values (default: as in forecast).")]
Minimum = Annotated[
    str | None,
    Parameter(help="The least value of a forecast, or none (default: 0 for series that were never negative)."),
]


@dataclass(frozen=True, kw_only=True)
class PathOptions:
    """The forecasts to sample."""

    horizon: Annotated[int | None, Parameter(validator=arguments.at_least_one)] = option(
        "Values to forecast (default: the training's)."
    )
    levels: str = option("Intervals in percent, separated by commas.", default="80,95")
    samples: Annotated[int, Parameter(validator=arguments.at_least_one)] = option(
        "Number of sampled paths per series.", default=100
    )
    seed: int = option("The seed of the paths.", default=1)
    season: Annotated[int | None, Parameter(validator=arguments.at_least_one)] = option(
        help_of(ForecastOptions, "season")
    )


Sampled = Annotated[PathOptions, arguments.FLAT]
SAMPLED = PathOptions()


def forecast(
    model: arguments.Model,
    data: SeriesFile,
    /,
    *,
    sampled: Sampled = SAMPLED,
    minimum: Minimum = None,
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

    percents, least = parse_levels(sampled.levels), parse_minimum(minimum)
    out = None if out == arguments.STANDARD_OUTPUT else out
    output.check_outputs(out, paths, plot, html, overwrite=overwrite)
    if json and out is not None:
        raise UsageError("--json prints the forecasts and --out writes them as a table; give one of them")
    forecaster = open_forecaster(model, **vars(options))
    chosen, file_format = reading.read_data(data, forecaster)
    forecaster, usual = forecaster.for_series(chosen, sampled.season)
    steps = usual if sampled.horizon is None else sampled.horizon
    forecaster = replace(forecaster, minimum=least)
    forecasts = sample(forecaster, chosen, steps, sampled.samples, sampled.seed)
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


def open_forecaster(model: str, **options: Any) -> Forecaster:
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
    sampled: Sampled = SAMPLED,
    windows: Annotated[int, Parameter(help="Origins per series, counted from its end.")] = 1,
    stride: Annotated[int | None, Parameter(help="Values from one origin to the next (default: the horizon).")] = None,
    test: Annotated[
        Path | None,
        Parameter(help="A file with the values after DATA; one origin per series.", converter=arguments.input_file),
    ] = None,
    contexts: Annotated[
        str | None, Parameter(help="Evaluate with shorter histories too, of these numbers of values, such as 24,168.")
    ] = None,
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

    if test is not None and (sampled.horizon, stride, windows) != (None, None, 1):
        raise UsageError("--test gives the values to forecast, so --horizon, --stride and --windows have no effect")
    if stride is not None and windows == 1 and test is None:
        raise UsageError("--stride is the way from one origin to the next, and --windows is 1; give more windows")
    check_outputs(out, overwrite=overwrite)
    lengths, percents = parse_contexts(contexts), parse_levels(sampled.levels)
    forecaster = open_forecaster(model, **vars(options))
    series, file_format = reading.read_data(data, forecaster)
    seasons, why = choose_seasons(series, sampled.season)
    forecaster, usual = forecaster.for_series(series, sampled.season)
    if test is None:
        steps = usual if sampled.horizon is None else sampled.horizon
        origins, where = choose_origins(series, steps, steps if stride is None else stride, windows, seasons)
    else:
        origins = rolling.given_origins(series, reading.read(test, forecaster), seasons)
        steps = max(len(origin.actual) for origin in origins)
        where = f"{counted(len(origins), 'origin')}, at the end of each series"
    if forecaster.rolls(steps):
        note(f"a horizon of {steps} rolls over the context of {forecaster.context_length}")
    note_combination(forecaster)
    drawn = {"samples": sampled.samples, "seed": sampled.seed}
    measure = partial(rolling.evaluate_origins, forecaster, origins, levels=percents, **drawn)
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


def explain_forecast(
    model: arguments.Model,
    data: SeriesFile,
    /,
    *,
    spans: Annotated[int | None, Parameter(help="The largest number of spans, of equal length (default: 12).")] = None,
    context: Context = None,
    questions: Annotated[Questions, Parameter(name="*")] = Questions(),
    json: arguments.Json = False,
    reading: Reading = ALL_SERIES,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """The effects of spans of past values on the forecast of the next value.

    The forecast is the expected value of the next one. An effect is its change when the mean of the context
    replaces the values of a span. The other questions are about the pass over the context, in which a token is the
    number of a bin.
    """
    question, details = questions.chosen()
    if spans is not None and questions.given():
        raise UsageError(f"--spans has no effect on --{next(iter(questions.given()))}; leave one out")
    forecaster = open_forecaster(model, **vars(options))
    chosen = reading.first(data, forecaster)
    from foretell.forecasting.span_effects import SPANS, as_tokens, span_effects

    if not questions.given():
        report(span_effects(forecaster, chosen, SPANS if spans is None else spans, context=context), json)
    else:
        question.show(*as_tokens(forecaster, chosen, context), details, json)


def trace_forecast(
    model: arguments.Model,
    data: Annotated[Path | None, SERIES] = None,
    /,
    *,
    context: Context = None,
    names: Names = ALL_NAMES,
    json: arguments.Json = False,
    reading: Reading = ALL_SERIES,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Any value of a pass over the last values of a series, by name.

    The ids in the file are the numbers of the bins that the values are in.
    """
    names.check(
        data, {"context": context, **{name.replace("_", "-"): value for name, value in vars(reading).items()}}, "DATA"
    )
    if names.list_ and options == arguments.LOADING_DEFAULTS and names.list_stored(model, json):
        return
    loaded, text = open_model(model, **vars(options)), ""
    if data is not None:
        loaded, text = reading.as_tokens(data, loaded, context)
    names.show(loaded, text, json)
