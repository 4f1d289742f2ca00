"""Training of a forecaster, from a request to a run: start one, or resume one."""

from __future__ import annotations

import logging
import shutil

from foretell.config import make_section
from foretell.device import choose_device, choose_training_dtype
from foretell.forecasting.config import ForecastConfig
from foretell.forecasting.request import ForecastRequest, check_same_run
from foretell.forecasting.resolve import make_task
from foretell.forecasting.table import read_series
from foretell.forecasting.task import ForecastTask
from foretell.language_model import load_model
from foretell.model.init import make_decoder
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.lock import held
from foretell.runs.run import Run, is_run, is_unfinished
from foretell.session.environment import log_other_machine, resumed_precision, resumed_training
from foretell.session.failures import explain_memory_errors
from foretell.session.reporter import Reporter
from foretell.session.session import Session

logger = logging.getLogger(__name__)


def train_forecaster(request: ForecastRequest, reporter: Reporter, *, resume: bool = False) -> Session[ForecastTask]:
    """Train as requested; with `resume`, continue the run if it exists."""
    with held(request.out), explain_memory_errors():
        described = [str(request.data)]
        if resume and is_unfinished(request.out):
            Run.clear_unfinished(request.out, described)
        start = resume_session if resume and is_run(request.out) else start_session
        session = start(request, reporter)
        session.go()
    return session


def start_session(request: ForecastRequest, reporter: Reporter) -> Session[ForecastTask]:
    """A new run directory and a new model; if that fails, nothing is left behind."""
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    series = read_series(request.data, request.columns)
    run = Run.create(request.out, [str(request.data)])
    try:
        logger.info(f"run         {run.directory}")
        task = make_task(request, series, device, dtype)
        session = Session(run, task, task.config.training, device, dtype, reporter)
        session.start()
    except BaseException:
        shutil.rmtree(run.directory, ignore_errors=True)
        raise
    return session


def resume_session(request: ForecastRequest, reporter: Reporter) -> Session[ForecastTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    run = Run.open(request.out)
    record = run.record()
    config = make_section(ForecastConfig, record["config"], str(run.directory))
    check_same_run(request, config, record)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    training = resumed_training(run, config.training, None)
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    series = read_series(request.data, tuple(record["columns"]))
    about = {key: record[key] for key in ("verb", "data", "size", "columns", "season")}
    checkpoint = run.last_intact() if list_checkpoints(run.checkpoints) else None
    if checkpoint is None:
        run.forget_metrics_after(0)
        decoder = make_decoder(config.model, training.seed)
    else:
        decoder = load_model(checkpoint.directory, device, for_training=True).decoder
    session = Session(run, ForecastTask(config, series, decoder, about), training, device, dtype, reporter)
    if checkpoint is not None:
        session.restore(checkpoint)
    logger.info(f"resuming    {run.directory} after step {session.progress.step:,} of {training.steps:,}")
    return session
