"""The protocol of every training: start or resume a run, check that it fits, train, report.

A task declares a `Training`; this file and `session.py` do the rest.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.data_use import DataUse
from foretell.distributed.world import current_world
from foretell.errors import CheckpointError, ConfigError, UsageError, counted
from foretell.finding import find_model
from foretell.loading import load
from foretell.planning.estimate import device_memory
from foretell.runs.checkpoint import Checkpoint, is_complete, list_checkpoints
from foretell.runs.record import RunRecord, StartRecord
from foretell.runs.run import FollowedRun, Run, is_run, is_unfinished
from foretell.session.budget import in_minutes
from foretell.session.commands import resume_command
from foretell.session.declaration import AnyTask, ChosenConfig, Machine, Training
from foretell.session.failures import AFTER_THE_LAST_STEP, explain_stop, training_in
from foretell.session.fit import check_fits
from foretell.session.machine import log_other_machine, resumed_precision, resumed_training
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest
from foretell.session.session import Session
from foretell.session.start import Start
from foretell.session.task import Task
from foretell.system.allocator import freed_memory_kept
from foretell.system.device import choose_device, choose_training_dtype, dtype_name
from foretell.training.pace import FixedSteps, Mark, Pace, TimeBudget
from foretell.typesetting.numbers import format_duration

logger = logging.getLogger(__name__)


def run_training(
    training: Training[Any, AnyTask],
    reporter: Reporter,
    *,
    resume: bool = False,
    before: Callable[[Session[AnyTask]], None] = lambda session: None,
) -> Session[AnyTask]:
    """Train as requested; with `resume`, continue the run if it exists. `before` is called before the first step."""
    with training_in(training.request.out), freed_memory_kept():
        is_resumed = continues_run(training.request, resume)
        session = (resume_session if is_resumed else start_session)(training, reporter)
        training.opened(session)
        before(session)
        session.go()
        with explain_stop(AFTER_THE_LAST_STEP, session.run):
            training.closed(session)
    return session


def start_session(training: Training[Any, AnyTask], reporter: Reporter) -> Session[AnyTask]:
    """A new run before its first step. If that fails, nothing is left behind."""
    training.choose_start()
    request = training.request
    if not request.described:
        raise UsageError(f"{request.out} is not a run that can be resumed; to start one, give the data too")
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    machine = Machine(device, dtype, replace(device_memory(device), dtype=dtype))
    training.check_early(machine)
    with explain_stop("before the first step"), new_run(request.out, request.described) as run:
        for line in [] if request.start is None else request.start.notes():
            logger.info(line)
        if (world := current_world()).is_first:
            task = new_task(training, run, machine, reporter)
            world.decide(task.record.to_json)
        else:
            task = recorded_task(training, run, RunRecord.from_json(world.decide(dict)))
        pace = pace_of(training, task, task.config.training, run)
        earlier = None if training.request.start is None else training.request.start.model.data_use
        session = Session(run, task, task.config.training, device, machine.dtype, reporter, pace, earlier)
        session.start()
    return session


def new_task(training: Training[Any, AnyTask], run: Run, machine: Machine, reporter: Reporter) -> AnyTask:
    """The task before its first step; logs the data, the choices and their reasons."""
    request = training.request
    data = training.read(run, reporter)
    logger.info(f"run         {run.directory}")
    choice = training.choose(data, machine)
    config = choice.config
    check_fits(training.footprint(config, data), config.training, machine.memory, run.directory)
    task = training.make_task(config, data, training.first_model(config, data, request.start))
    task.record = first_record(training, task, choice, machine)
    for line in (*training.describe(task), f"machine     {machine.describe(config.training.parallel)}"):
        logger.info(line)
    if request.minutes is not None:
        took = format_duration(time.monotonic() - training.began)
        logger.info(f"time        {in_minutes(request.minutes)} from the first step; preparation took {took}")
    return task


def first_record(training: Training[Any, Any], task: Task, choice: ChosenConfig, machine: Machine) -> RunRecord:
    request = training.request
    choices = {name: value for name, value in request.choices.items() if value is not None}
    return RunRecord(
        config=task.config.model_dump(mode="json"),
        verb=training.verb,
        data=request.described,
        size=choice.size,
        reasons=choice.reasons,
        data_changed={name: last_change(name) for name in request.described},
        start=None if request.start is None else request.start.record(),
        epochs=request.epochs,
        minutes=request.minutes,
        task=choices | choice.record,
        fewest_steps=(request.least_steps or None) if request.minutes else None,
        most_steps=choice.most_steps if request.minutes else None,
        parameters=sum(weight.numel() for weight in task.model.parameters()),
        split=task.split_rule,
        device=machine.device.type,
        dtype=dtype_name(machine.dtype),
    )


def last_change(name: str) -> int:
    """A number that changes when a file, or any file in a folder, changes; 0 if the path does not exist."""
    with suppress(OSError):
        return sum(each.stat().st_mtime_ns for each in (Path(name), *Path(name).rglob("*")) if each.exists())
    return 0


def log_changed_data(record: RunRecord) -> None:
    """Log which data have changed since the run was started; the run uses its copy."""
    for name, before in record.data_changed.items():
        if (now := last_change(name)) != before:
            logger.warning(f"data        {name} {'has changed' if now else 'is gone'}; the run keeps what it read")


def pace_of(
    training: Training[Any, Any], task: Task, config: TrainingConfig, run: Run, checkpoint_step: int = 0
) -> Pace:
    """The pace by the configured steps, or by the recorded time, of which a resumed run has spent a part.

    checkpoint_step: the step of the checkpoint to resume from. Earlier steps missing in pace.txt are logged.
    """
    minutes = task.record.minutes
    if minutes is None:
        return FixedSteps(config)
    timed = run.pace.records()
    if (first := max((recorded + 1 for recorded, _, _ in timed), default=0)) < checkpoint_step:
        logger.warning(
            f"time        pace.txt has no steps from {first} to {checkpoint_step - 1}: their time is lost and does not "
            "count"
        )
    return TimeBudget(
        config,
        60 * minutes,
        marks={step: Mark(share, seconds) for step, share, seconds in timed},
        record=lambda step, mark: run.pace.append((step, *mark)),
        fewest_steps=task.record.fewest_steps or 0,
        most_steps=task.record.most_steps,
        world=current_world(),
    )


def load_start(argument: str | Path) -> Start:
    """Load any MODEL in float32; its weights are verified if it has a manifest. Raises the errors of `load`."""
    model = load(argument, "cpu", "float32", verify=None)
    return Start(str(argument), model.to_train())


def find_start(record: StartRecord | None, run: Path) -> Start | None:
    """The model in a run.json's record; None without a record. Raises `CheckpointError` if its weights have changed."""
    if record is None:
        return None
    start = load_start(record.model)
    if start.digest != record.weights_sha256:
        raise CheckpointError(
            f"{run} was started from {start.argument}, which has other weights now; start again with another --out"
        )
    return start


def recorded_task(
    training: Training[Any, AnyTask], run: Run, record: RunRecord, model: Any = None, data: Any = None
) -> AnyTask:
    """The task of a run, made from its record; without a model, in the state before its first step."""
    config = recorded_config(training, run, record)
    data = training.reopen(run, record) if data is None else data
    if model is None:
        model = training.first_model(config, data, find_start(record.start, run.directory))
    task = training.make_task(config, data, model)
    task.record = record
    return task


def recorded_config(training: Training[Any, Any], run: Run, record: RunRecord) -> Any:
    """The configuration of a run; a `CheckpointError` if its fields are from another version."""
    try:
        return make_section(training.request.config_type, record.current_config, str(run.directory))
    except ConfigError as error:
        raise of_another_version(run, error) from None


def of_another_version(run: Run, problem: object) -> CheckpointError:
    return CheckpointError(
        f"{run.directory} cannot be resumed: it was started by another version ({problem}); its checkpoints are "
        "models, and a new training can start from one"
    )


def resume_session(training: Training[Any, AnyTask], reporter: Reporter) -> Session[AnyTask]:
    """The session in the state of the run's last intact checkpoint, or before its first step if there is none."""
    request = training.request
    run = (Run if current_world().is_first else FollowedRun).open(request.out)
    record = run.record()
    if record.verb is None:
        raise of_another_version(run, "it has no verb")
    if record.verb != training.verb:
        raise ConfigError(
            f"{run.directory} was not trained by `foretell {training.verb}`; resume it with: {resume_command(run)}"
        )
    config = recorded_config(training, run, record)
    if record.minutes is None:
        check_not_extended(training, config.training.steps, run)
    request.check_same_run(config, record)
    log_changed_data(record)
    data = training.reopen(run, record)
    training.check_resumable(config, record, data)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    settings = resumed_training(config.training, request.section("training"))
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    checkpoint = last_checkpoint(run)
    step = 0 if checkpoint is None else checkpoint.step
    resumed = record.resumed(step, settings, device.type, dtype_name(dtype))
    if resumed != record:
        run.replace_record(resumed)
    session = session_at(training, run, resumed.at(step), checkpoint, data, reporter)
    if checkpoint is None:
        run.metrics.keep(lambda line: False)
        logger.info(f"resuming    {run.directory} from the start: it was stopped before its first checkpoint")
    else:
        logger.info(progress_line(training, run, checkpoint, session.task))
    return session


def session_at(
    training: Training[Any, AnyTask],
    run: Run,
    record: RunRecord,
    checkpoint: Checkpoint | None,
    data: Any,
    reporter: Reporter,
) -> Session[AnyTask]:
    """The session in the state of a checkpoint, or before its first step; device and settings are the record's."""
    device, dtype = resumed_precision(record, "auto", "auto")
    model = None if checkpoint is None else training.load_model(checkpoint.directory, device)
    task = recorded_task(training, run, record, model, data)
    settings = recorded_config(training, run, record).training
    pace = pace_of(training, task, settings, run, 0 if checkpoint is None else checkpoint.step)
    source = checkpoint.directory if checkpoint else find_model(record.start.model) if record.start else None
    earlier = None if source is None else DataUse.load(source)
    session = Session(run, task, settings, device, dtype, reporter, pace, earlier)
    if checkpoint is not None:
        session.restore(checkpoint)
    return session


def progress_line(training: Training[Any, Any], run: Run, checkpoint: Checkpoint, task: Task) -> str:
    """The log line for a resumed run."""
    steps, minutes = task.config.training.steps, task.record.minutes
    if is_complete(checkpoint, steps, minutes):
        has_all = minutes is None or checkpoint.step == task.record.most_steps
        whole = f"all its {counted(checkpoint.step, 'step')}" if has_all else f"used its {in_minutes(minutes)}"
        return f"finished    {run.directory} has {whole}; {training.how_to_extend()}"
    whole = f"of {steps:,}" if minutes is None else f"of its {in_minutes(minutes)}"
    return f"resuming    {run.directory} after step {checkpoint.step:,} {whole}"


def check_not_extended(training: Training[Any, Any], steps: int, run: Run) -> None:
    """Refuse more steps than the run was started with, because the learning-rate schedule ends at the last of them."""
    asked = training.request.section("training").get("steps")
    if not isinstance(asked, int) or asked <= steps:
        return
    checkpoints = list_checkpoints(run.checkpoints)
    state = "finished" if checkpoints and checkpoints[-1].step >= steps else "to end"
    raise ConfigError(
        f"{run.directory} is {state} after {counted(steps, 'step')}, where its schedule ends; "
        f"{training.how_to_extend(asked - steps)}"
    )


def last_checkpoint(run: Run) -> Checkpoint | None:
    """The newest intact checkpoint according to the first process; None if there is none yet."""
    name = current_world().decide(
        lambda: run.last_intact().directory.name if list_checkpoints(run.checkpoints) else None
    )
    return None if name is None else Checkpoint(run.checkpoints / name)


# --- the directory, with one or many processes: the first one writes, the others follow -------------------------------


def continues_run(request: TrainingRequest, resume: bool) -> bool:
    """True if a run will be resumed. With `resume`, remove what a process killed before its first step left behind."""

    def decide() -> bool:
        if resume and is_unfinished(request.out):
            Run.clear_unfinished(request.out, request.described)
            logger.info(f"starting    {request.out} again: it was interrupted before its first step")
        return resume and is_run(request.out)

    return current_world().decide(decide)


@contextmanager
def new_run(directory: Path, described: list[str]) -> Iterator[Run]:
    """A new run, created by the first process; if the block fails, it is removed."""
    world = current_world()
    run = Run.create(directory, described) if world.is_first else FollowedRun(directory)
    try:
        yield run
    except BaseException:
        if world.is_first:
            shutil.rmtree(directory, ignore_errors=True)
        raise
