"""`foretell forecast MODEL DATA`: the next values of series, as quantiles of sampled paths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, Quantize, Verify, Whole
from foretell.cli.terminal import ProgressLine, loaded_line, note, precision_of, print_json, write
from foretell.cli.train_forecast import Columns, SeriesFile
from foretell.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from foretell.device import DeviceName, DtypeName
    from foretell.forecasting.forecaster import Forecast, Forecaster
    from foretell.forecasting.series import Series
    from foretell.model.quantized_linear import Scheme

Names = Annotated[
    list[str] | None, Parameter(name="--series", negative="", help="Only the series of this name; can be given again.")
]
Levels = Annotated[str, Parameter(help="Intervals in percent, separated by commas.")]
Samples = Annotated[int, Whole, Parameter(help="How many paths to sample per series.")]


def forecast(
    model: ModelArgument,
    data: SeriesFile,
    /,
    *,
    horizon: Annotated[int | None, Whole, Parameter(help="How many values; default: the training's.")] = None,
    levels: Levels = "80,95",
    samples: Samples = 100,
    seed: Annotated[int, Whole, Parameter(help="The seed of the paths.")] = 1,
    series: Names = None,
    column: Columns = None,
    out: Annotated[Path | None, Parameter(help="Write the table here (CSV); default: standard output.")] = None,
    paths: Annotated[Path | None, Parameter(help="Write every sampled path here too (CSV).")] = None,
    plot: Annotated[Path | None, Parameter(help="Draw history, median and intervals here (PNG).")] = None,
    html: Annotated[Path | None, Parameter(help="Write a page: the past that each head attended to.")] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    verify: Verify = False,
) -> None:
    """Forecast the next values of series.

    The table has the columns unique_id, ds, mean, median, lo-80, hi-80, ...; with --json one object per series.
    """
    from foretell.forecasting.output import check_outputs, forecast_json, path_rows, table_rows, write_table
    from foretell.forecasting.table import read_series

    percents = parse_levels(levels)
    check_outputs(out, paths, plot, html)
    if json and out is not None:
        raise UsageError("--json prints the forecasts and --out writes them as a table; give one of them")
    chosen = choose_series(read_series(data, column or ()), series)
    forecaster = open_forecaster(model, device, dtype, verify, quantize)
    steps = forecaster.horizon if horizon is None else horizon
    forecasts = sample(forecaster, chosen, steps, samples, seed)
    if paths is not None:
        write_table(paths, path_rows(forecasts))
    if plot is not None:
        from foretell.forecasting.plots import draw_forecasts

        for line in draw_forecasts(plot, forecasts, percents):
            note(line)
    if html is not None:
        from foretell.forecasting.page import write_forecast_page

        if len(forecasts) > 1:
            note(f"{html} shows {forecasts[0].series.unique_id}, the first series; --series chooses another")
        note(str(write_forecast_page(forecaster, forecasts[0], html)))
    if json:
        for each in forecasts:
            print_json(forecast_json(each, percents))
    elif out is not None:
        write_table(out, table_rows(forecasts, percents))
        note(f"{out}: {steps} values of {len(forecasts):,} series")
    else:
        for row in table_rows(forecasts, percents):
            write(",".join(row))


def open_forecaster(
    model: str, device: DeviceName, dtype: DtypeName, verify: bool, quantize: Scheme | None = None
) -> Forecaster:
    """Load a forecaster, with a line on stderr about it."""
    note(f"loading {model}")
    from foretell.forecasting.forecaster import load_forecaster

    loaded = load_forecaster(model, device, dtype, verify=verify, quantize=quantize)
    note(loaded_line(model, loaded.decoder, precision_of(loaded.decoder, quantize)))
    return loaded


def parse_levels(text: str) -> tuple[float, ...]:
    """`80,95` as numbers, in ascending order."""
    try:
        levels = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--levels '{text}' is not a list of percentages, such as 80,95") from None
    for level in levels:
        if not 0 < level < 100:
            raise UsageError(f"a level must be between 0 and 100 percent, not {level:g}")
    return tuple(levels)


def choose_series(series: list[Series], names: list[str] | None) -> list[Series]:
    """The series of these names, all without names."""
    known = {each.unique_id: each for each in series}
    for name in names or []:
        if name not in known:
            raise DataError(f"no series '{name}'{did_you_mean(name, known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else series


def sample(forecaster: Forecaster, series: list[Series], horizon: int, samples: int, seed: int) -> list[Forecast]:
    """The forecasts, with notes on what is unusual about them."""
    from foretell.forecasting.forecaster import forecast as forecast_series

    if horizon > 0 and forecaster.rolls(horizon):
        note(
            f"a horizon of {horizon} does not fit the context of {forecaster.context_length}: whenever it is full, its "
            "last half is read again (foretell evaluate MODEL DATA --horizon measures what that costs)"
        )
    note_clipped(forecaster, series)
    with ProgressLine("series") as progress:
        return forecast_series(forecaster, series, horizon, samples, seed=seed, progress=progress)


def note_clipped(forecaster: Forecaster, series: list[Series]) -> None:
    """A note on series with values beyond the last bin, of which the forecaster sees only that they are far away."""
    from foretell.forecasting.codec import scale_of

    names = []
    for each in series:
        values = each.values[-forecaster.context_length :]
        if forecaster.codec.clipped(values, scale_of(values)) > 0:
            names.append(each.unique_id)
    if names:
        limit = forecaster.codec.config.limit
        note(f"{len(names):,} series have values over {limit:g} standard deviations out, read as if nearer: {names[0]}")
