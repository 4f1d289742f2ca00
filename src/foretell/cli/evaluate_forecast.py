"""`foretell evaluate MODEL DATA` of a forecaster: errors from rolling origins, next to the seasonal naive forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, Quantize, Verify, Whole
from foretell.cli.forecast import Levels, Names, Samples, choose_series, open_forecaster, parse_levels
from foretell.cli.terminal import ProgressLine, note, print_json, results
from foretell.cli.train_forecast import Columns, Season, SeriesFile
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.forecasting.rolling import Evaluation, Score


def evaluate_forecast(
    model: ModelArgument,
    data: SeriesFile,
    /,
    *,
    horizon: Annotated[int | None, Whole, Parameter(help="How many values; default: the training's.")] = None,
    windows: Annotated[int, Whole, Parameter(help="Origins per series, counted from its end.")] = 1,
    stride: Annotated[
        int | None, Whole, Parameter(help="Values from one origin to the next; default: the horizon.")
    ] = None,
    test: Annotated[Path | None, Parameter(help="A file with what follows: one origin, at each series' end.")] = None,
    contexts: Annotated[str | None, Parameter(help="Also from at most so many values, such as 24,168.")] = None,
    series: Names = None,
    season: Season = None,
    levels: Levels = "80,95",
    samples: Samples = 100,
    seed: Annotated[int, Whole, Parameter(help="The seed of the paths.")] = 1,
    column: Columns = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    verify: Verify = False,
) -> None:
    """Errors of forecasts from rolling origins, next to the seasonal naive forecast.

    MASE and sMAPE are those of the M4 competition, of the paths' median; WQL is the weighted quantile loss of the
    quantiles 0.1 to 0.9; the last columns are the shares of values inside the intervals.
    """
    from foretell.forecasting.rolling import Plan, evaluate_contexts, evaluate_origins, given_origins, rolling_origins
    from foretell.forecasting.season import choose_season
    from foretell.forecasting.table import read_series

    if test is not None and (horizon, stride, windows) != (None, None, 1):
        raise UsageError("--test gives the values to forecast, so --horizon, --stride and --windows have no effect")
    lengths = parse_contexts(contexts)
    plan_levels = parse_levels(levels)
    measured = choose_series(read_series(data, column or ()), series)
    chosen, why = choose_season(measured, season)
    forecaster = open_forecaster(model, device, dtype, verify, quantize)
    ahead = forecaster.horizon if horizon is None else horizon
    step = ahead if stride is None else stride
    if test is None:
        origins = rolling_origins(measured, ahead, step, windows)
        where = f"{count(origins, 'origin')} in {len(measured):,} series, stride {step}"
    else:
        origins = given_origins(measured, choose_series(read_series(test, column or ()), series))
        ahead = max(len(origin.actual) for origin in origins)
        where = f"{count(origins, 'origin')}, at the end of each series"
    plan = Plan(chosen, plan_levels, samples, seed)
    if forecaster.rolls(ahead):
        note(f"a horizon of {ahead} rolls over the context of {forecaster.context_length}")
    if test is None and ahead + step * (windows - 1) > forecaster.horizon:
        note(
            f"training held out the last {forecaster.horizon} values of a series at most: if this is the data it was "
            "trained on, the model knows some of what is forecast here"
        )
    with ProgressLine("origins") as progress:
        evaluation = evaluate_origins(forecaster, origins, plan, progress=progress)
    by_context = evaluate_contexts(forecaster, origins, plan, lengths)
    about = {"season": chosen, "horizon": ahead, "origins": len(origins)}
    if json:
        print_json(to_json(evaluation, by_context, about))
        return
    show(evaluation, by_context, plan_levels)
    console = results()
    console.print(f"season {chosen}, {why}; horizon {ahead}; {where}")
    console.print(describe_crossing(evaluation))
    if evaluation.without_mase:
        console.print(f"without MASE, since there is no seasonal error before them: {evaluation.without_mase:,}")


def count(things: Sequence[object], name: str) -> str:
    """`1 origin`, `2 origins`."""
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def parse_contexts(text: str | None) -> tuple[int, ...]:
    """`24,168` as numbers."""
    try:
        contexts = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--contexts '{text}' is not a list of whole numbers, such as 24,168") from None
    if any(context < 1 for context in contexts):
        raise UsageError("a context must be at least 1")
    return contexts


def to_json(evaluation: Evaluation, by_context: dict[int, Evaluation], about: dict[str, Any]) -> dict[str, Any]:
    """The figures as one object."""
    return {
        **about,
        "without_mase": evaluation.without_mase,
        "model": evaluation.model.to_json(),
        "seasonal_naive": evaluation.naive.to_json(),
        "by_step": evaluation.model.by_step,
        "seasonal_naive_by_step": evaluation.naive.by_step,
        "behind_from": evaluation.behind_from,
        "by_context": {str(context): each.model.to_json() for context, each in by_context.items()},
    }


def show(evaluation: Evaluation, by_context: dict[int, Evaluation], levels: tuple[float, ...]) -> None:
    """Print a row per kind of forecast."""
    titles = ["MASE", "median", "sMAPE", "median", "WQL", *(f"in {level:g}%" for level in levels)]
    results().print(" " * 16 + "".join(f"{title:>9}" for title in titles))
    rows = {"model": evaluation.model, "seasonal naive": evaluation.naive}
    rows |= {f"context {context}": each.model for context, each in by_context.items()}
    for name, score in rows.items():
        results().print(f"{name:<16}" + "".join(f"{cell:>9}" for cell in cells(score)))


def cells(score: Score) -> list[str]:
    """The figures of a row."""
    figures = ((score.mase, 3), (score.mase_median, 3), (score.smape, 2), (score.smape_median, 2), (score.wql, 4))
    texts = ["-" if value is None else f"{value:.{digits}f}" for value, digits in figures]
    return [*texts, *(f"{share:.1f}%" for share in score.coverage.values())]


def describe_crossing(evaluation: Evaluation) -> str:
    """At which step the model's error passes that of the naive forecast."""
    if not evaluation.model.by_step:
        return "no error by step: no origin has a seasonal error before it"
    pairs = list(zip(evaluation.model.by_step, evaluation.naive.by_step, strict=True))
    ahead = sum(model < naive for model, naive in pairs)
    line = f"the model's error is below that of seasonal naive at {ahead} of {len(pairs)} steps"
    return line if evaluation.behind_from is None else f"{line}, and above it from step {evaluation.behind_from} on"
