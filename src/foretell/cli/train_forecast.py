"""`foretell train --task forecast DATA`: train a decoder on series of numbers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Whole
from foretell.cli.terminal import results
from foretell.cli.training import DEFAULTS, Options, show_end, train_and_report

if TYPE_CHECKING:
    from foretell.forecasting.task import ForecastTask
    from foretell.session.session import Session

SeriesFile = Annotated[Path, Parameter(help="A CSV or TSV file with series.")]
Columns = Annotated[
    list[str] | None,
    Parameter(name="--column", negative="", help="Where every column is a series: read this one; can be given again."),
]
Season = Annotated[int | None, Whole, Parameter(help="Values per season; default: by the times, or found.")]


def train_forecast(
    data: Annotated[
        Path | None, Parameter(help="A CSV or TSV file with series; needed except to resume.", show_default=False)
    ] = None,
    /,
    *,
    size: Annotated[str | None, Parameter(help="toy, tiny, small or medium; default: small.")] = None,
    horizon: Annotated[
        int | None, Whole, Parameter(help="Values to hold out at the end of each series; default: two seasons.")
    ] = None,
    hold_out: Annotated[
        bool, Parameter(negative="--no-hold-out", help="Hold out the last values; or train on all of them.")
    ] = True,
    season: Season = None,
    column: Columns = None,
    options: Options = DEFAULTS,
) -> None:
    """Train a decoder on series of numbers, to forecast with.

    The file has the columns unique_id, ds, y; or times in its first column and a series in each other; or a series in
    each row after its name; or a single column. Empty cells are missing values.

    Sections of the configuration: model, codec, series, training, as in --series.noise 0.2.
    """
    out = options.directory([] if data is None else [data])
    from foretell.forecasting.train import ForecastRequest, ForecastTraining

    request = ForecastRequest(
        data=data,
        out=out,
        columns=tuple(column or ()),
        size=size,
        minutes=options.minutes,
        horizon=horizon,
        season=season,
        overrides=options.sections({"series.hold_out": None if hold_out else False}),
        device=options.device,
        dtype=options.dtype,
    )
    train_and_report(ForecastTraining(request), options, finish)


def finish(session: Session[ForecastTask]) -> None:
    """The best loss, and the loss by the length of the context."""
    loss = session.run.best().training()["validation_loss"]
    best = "" if loss is None else f"validation loss {loss:.3f} nats per value"
    show_end(session, best, "forecast", shlex.quote(session.run.record()["data"][0]))
    if loss is not None:
        by_context, console = session.task.loss_by_context(session.dtype), results()
        console.print("context     " + " ".join(f"{context:>5}" for context in by_context) + "  values before")
        console.print("loss        " + " ".join(f"{value:5.2f}" for value in by_context.values()) + "  last step")
