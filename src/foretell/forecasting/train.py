"""Training of a forecaster, from a request to a run: start one, or resume one."""

from __future__ import annotations

import logging
from typing import Any

from foretell.config import make_section
from foretell.device import choose_device, choose_training_dtype
from foretell.forecasting.config import ForecastConfig
from foretell.forecasting.request import ForecastRequest, check_same_run
from foretell.forecasting.resolve import make_task
from foretell.forecasting.table import read_series
from foretell.forecasting.task import ForecastTask
from foretell.language_model import load_model
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.session.environment import log_other_machine, resumed_precision, resumed_training
from foretell.session.opening import is_resumed, last_checkpoint, new_run, open_run, same_task, training_in
from foretell.session.reporter import Reporter
from foretell.session.session import Session

logger = logging.getLogger(__name__)


def train_forecaster(request: ForecastRequest, reporter: Reporter, *, resume: bool = False) -> Session[ForecastTask]:
    """Train as requested; with `resume`, continue the run if it exists."""
    with training_in(request.out):
        start = resume_session if is_resumed(request.out, [str(request.data)], resume) else start_session
        session = start(request, reporter)
        session.go()
    return session


def start_session(request: ForecastRequest, reporter: Reporter) -> Session[ForecastTask]:
    """A new run directory and a new model; if that fails, nothing is left behind."""
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    series = read_series(request.data, request.columns)
    with new_run(request.out, [str(request.data)]) as run:
        logger.info(f"run         {run.directory}")
        task = same_task(
            lambda: make_task(request, series, device, dtype),
            lambda record: recorded_task(request, record, make_section(ForecastConfig, record["config"])),
        )
        session = Session(run, task, task.config.training, device, dtype, reporter)
        session.start()
    return session


def resume_session(request: ForecastRequest, reporter: Reporter) -> Session[ForecastTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    run = open_run(request.out)
    record = run.record()
    config = make_section(ForecastConfig, record["config"], str(run.directory))
    check_same_run(request, config, record)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    training = resumed_training(run, config.training, request.section("training"))
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        run.forget_metrics_after(0)
        decoder = None
    else:
        decoder = load_model(checkpoint.directory, device, for_training=True).decoder
    session = Session(run, recorded_task(request, record, config, decoder), training, device, dtype, reporter)
    if checkpoint is not None:
        session.restore(checkpoint)
    logger.info(f"resuming    {run.directory} after step {session.progress.step:,} of {training.steps:,}")
    return session


def recorded_task(
    request: ForecastRequest, record: dict[str, Any], config: ForecastConfig, decoder: Decoder | None = None
) -> ForecastTask:
    """The task of a run, with a new decoder where none is given."""
    series = read_series(request.data, tuple(record["columns"]))
    about = {key: record[key] for key in ("verb", "data", "size", "columns", "season")}
    return ForecastTask(config, series, decoder or make_decoder(config.model, config.training.seed), about)
