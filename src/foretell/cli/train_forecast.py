"""`foretell train --task forecast DATA`: train a decoder on series of numbers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Whole
from foretell.cli.processes import decided
from foretell.cli.terminal import messages, note, results
from foretell.distributed.launch import is_follower

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
        Path | None, Parameter(help="A CSV or TSV file with series; needed but to resume.", show_default=False)
    ] = None,
    /,
    *,
    size: Annotated[str | None, Parameter(help="toy, tiny, small or medium; default: small.")] = None,
    minutes: Annotated[float | None, Parameter(help="How long to train; default: at most 5.")] = None,
    steps: Annotated[int | None, Whole, Parameter(help="How many optimizer steps instead.")] = None,
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and the data's name.")] = None,
    resume: Annotated[
        Literal["auto", "never"], Parameter(help="auto (or nothing) resumes a run that exists.")
    ] = "never",
    horizon: Annotated[
        int | None, Whole, Parameter(help="Values to hold out at the end of each series; default: two seasons.")
    ] = None,
    hold_out: Annotated[
        bool, Parameter(negative="--no-hold-out", help="Hold out the last values; or train on all of them.")
    ] = True,
    season: Season = None,
    column: Columns = None,
    config: Annotated[Path | None, Parameter(help="A TOML file with sections model, codec, series, training.")] = None,
    seed: Annotated[int | None, Whole, Parameter(help="The seed of everything random.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Any field, also as --model.width 256, --series.noise 0.2."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Train a decoder on series of numbers, to forecast with.

    The file has the columns unique_id, ds, y; or times in its first column and a series in each other; or a series in
    each row after its name; or a single column. Empty cells are missing values.
    """
    from foretell.cli.train import default_out, merge
    from foretell.forecasting.train import ForecastRequest, train_forecaster
    from foretell.session.display import make_reporter

    options = {"training.steps": steps, "training.seed": seed, "series.hold_out": None if hold_out else False}
    if data is None:
        data = recorded_data(out, resume == "auto")
    out = out or Path(decided(lambda: str(default_out((str(data),), resume == "auto"))))
    note(f"reading     {data}")
    request = ForecastRequest(
        data,
        out=out,
        columns=tuple(column or ()),
        size=size,
        minutes=minutes,
        horizon=horizon,
        season=season,
        overrides=merge(config, settings or [], options),
        device=device,
        dtype=dtype,
    )
    with make_reporter(messages()) as reporter:
        session = train_forecaster(request, reporter, resume=resume == "auto")
    if not is_follower():
        finish(session, data)


def recorded_data(out: Path | None, resume: bool) -> Path:
    """The file that a run was started with."""
    from foretell.errors import UsageError
    from foretell.runs.run import Run

    if out is None or not resume:
        raise UsageError("give a file with series; only --out RUN --resume auto knows one already")
    return Path(Run.open(out).record()["data"][0])


def finish(session: Session[ForecastTask], data: Path) -> None:
    """The best loss, the error by the length of the context, and what to do with the run."""
    from foretell.session.failures import command_name

    run, console = session.run, results()
    best = run.best()
    loss = best.training()["validation_loss"]
    if loss is not None:
        console.print(f"best        step {best.step:,}: validation loss {loss:.3f} nats per value")
        by_context = session.task.loss_by_context(session.dtype)
        console.print("context     " + " ".join(f"{context:>5}" for context in by_context) + "  values before")
        console.print("loss        " + " ".join(f"{value:5.2f}" for value in by_context.values()) + "  last step")
    console.print(f"run         {run.directory}: checkpoints/, metrics.jsonl, samples/")
    console.print(f"try         {command_name()} forecast {shlex.quote(str(run.directory))} {shlex.quote(str(data))}")
