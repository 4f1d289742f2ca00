"""The protocol of every training: start a run or resume one, check that it fits, train, report.

A task declares a `Training`; everything around it is here and in `session.py`.
"""

from __future__ import annotations

import logging
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.device import choose_device, choose_training_dtype, dtype_name
from foretell.distributed.world import current_world
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.loading import Start, find_start
from foretell.model.cost import count_parameters
from foretell.model.init import make_decoder, weight_shapes
from foretell.planning.estimate import DeviceMemory, device_memory
from foretell.runs.checkpoint import Checkpoint, is_complete, list_checkpoints
from foretell.runs.run import FollowedRun, Run, is_run, is_unfinished
from foretell.session.budget import Budget, SizeCost, choose_size, choose_steps
from foretell.session.failures import resume_command, training_in
from foretell.session.machine import (
    Footprint,
    check_fits,
    freed_memory_kept,
    log_other_machine,
    resumed_precision,
    resumed_training,
    seconds_per_step,
)
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest
from foretell.session.session import Session
from foretell.session.task import Task
from foretell.training.pace import FixedSteps, Mark, Pace, TimeBudget

AnyRequest = TypeVar("AnyRequest", bound=TrainingRequest)
AnyTask = TypeVar("AnyTask", bound=Task)

WRITTEN_BY_THE_SESSION = ("config", "device", "dtype")  # entries of run.json that a task does not repeat

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """The device, the precision of matrix products, and the memory that a training can use."""

    device: torch.device
    dtype: torch.dtype
    memory: DeviceMemory

    def describe(self, parallel: str) -> str:
        processes = self.memory.processes
        several = "" if processes == 1 else f"{processes} processes ({parallel}), each "
        return f"{several}{self.device.type}, {torch.get_num_threads()} threads, {dtype_name(self.dtype)} products"


def describe_model(size: str, model: ModelConfig) -> str:
    return (
        f"model       {size}, {count_parameters(model):,} parameters: {model.num_layers} layers, "
        f"{model.num_heads} heads, width {model.width}, context {model.context_length}"
    )


@dataclass(frozen=True)
class Choice:
    """A whole configuration, the name of its size, and a line of reason for everything that was chosen.

    record: choices outside the configuration, as entries of run.json. With `most_steps`, a training of a given time has
    at most this number of steps.
    """

    config: Any
    size: str
    reasons: list[str]
    record: dict[str, Any] = field(default_factory=dict)


class Training(ABC, Generic[AnyRequest, AnyTask]):
    """A kind of training: how a request becomes a task, for a new run and for one that is resumed.

    `data` is of any type; `read` and `reopen` return the same one. Methods run on every process unless their
    docstring states otherwise.
    """

    verb: ClassVar[str]  # resumes a run on the command line: foretell VERB --out RUN --resume auto

    def __init__(self, request: AnyRequest):
        self.request = request
        self.began = time.monotonic()  # `minutes` are counted from here
        self.probed: tuple[Any, float] | None = None  # the last configuration that was measured: seconds per step

    def check_early(self, machine: Machine) -> None:
        """Refuse a request that cannot fit the machine, before any data is read."""

    @abstractmethod
    def read(self, run: Run, reporter: Reporter) -> Any:
        """Read the data, and keep in `run.tokens` what resuming needs of it. Only the first process does."""

    @abstractmethod
    def reopen(self, run: Run, record: dict[str, Any]) -> Any:
        """The data that `read` kept."""

    @abstractmethod
    def choose(self, data: Any, machine: Machine) -> Choice:
        """Fill in what the user left open. Only the first process does."""

    def footprint(self, config: Any, data: Any) -> Footprint:
        """The sizes that the checks of memory and disk need; by default, of a decoder whose rows fill its context."""
        return Footprint(weight_shapes(config.model), config.model)

    def first_model(self, config: Any, data: Any, start: Start | None) -> Any:
        """The model before its first step, by default a decoder: with new weights, or the start's."""
        return make_decoder(config.model, config.training.seed) if start is None else start.decoder(config.model)

    @abstractmethod
    def load_model(self, directory: Path, device: torch.device) -> Any:
        """The model of a checkpoint."""

    @abstractmethod
    def make_task(self, config: Any, data: Any, model: Any, about: dict[str, Any]) -> AnyTask:
        """The task; `about` has the entries of run.json beyond the configuration."""

    @abstractmethod
    def describe(self, task: AnyTask) -> list[str]:
        """Lines for the log about the data, the model and the recipe of a new run, with the reasons."""

    def seconds_per_step(self, config: Any, data: Any, machine: Machine) -> float:
        """The time of a training step with this configuration, measured on the run's own batches."""
        if self.probed is None or self.probed[0] != config:
            task = self.make_task(config, data, self.first_model(config, data, self.request.start), {})
            task.objective.to(machine.device)
            task.choose_kernels(machine.device, machine.dtype)
            seconds = seconds_per_step(task.objective, task.model, task.batch, config.training, machine.dtype)
            self.probed = config, seconds
        return self.probed[1]

    def timed_size(
        self,
        costs: Mapping[str, SizeCost],
        probed: tuple[str, Any],
        data: Any,
        machine: Machine,
        budget: Callable[[float], Budget],
    ) -> tuple[str, str]:
        """The size for time and data (`choose_size`), and the reason.

        probed: the size to measure, and its configuration. budget: from the measured operations per second.
        """
        name, config = probed
        rate = costs[name].flops_per_step / self.seconds_per_step(config, data, machine)
        return choose_size(costs, budget(rate))

    def timed_steps(
        self, config: Any, data: Any, machine: Machine, default_minutes: float = 1.0, most: int | None = None
    ) -> tuple[int, str]:
        """The steps that were asked for, else those that fit the time (`choose_steps`); and the reason."""
        if self.request.section("training").get("steps") is not None:
            return config.training.steps, "as asked"
        seconds = self.seconds_per_step(config, data, machine)
        return choose_steps(self.request.minutes, default_minutes, seconds, f"{seconds:.2f} s per step", most)

    def check_resumable(self, config: Any, record: dict[str, Any], data: Any) -> None:
        """Refuse options that `TrainingRequest.check_same_run` cannot compare."""

    def how_to_extend(self, steps: int = 0) -> str:
        """Advice on training beyond the last step of a run, by a number of steps if one is given."""
        return "start again with another --out to train longer"

    def opened(self, session: Session[AnyTask]) -> None:
        """Called before the first or the next step."""

    def closed(self, session: Session[AnyTask]) -> None:
        """Called after the last step: write the report."""


def run_training(
    training: Training[Any, AnyTask],
    reporter: Reporter,
    *,
    resume: bool = False,
    before: Callable[[Session[AnyTask]], None] = lambda session: None,
) -> Session[AnyTask]:
    """Train as requested; with `resume`, continue the run if it exists. `before` is called before the next step."""
    with training_in(training.request.out), freed_memory_kept():
        is_resumed = continues_run(training.request, resume)
        session = (resume_session if is_resumed else start_session)(training, reporter)
        training.opened(session)
        before(session)
        session.go()
        training.closed(session)
    return session


# --- a new run -------------------------------------------------------------------------------------------------------


def start_session(training: Training[Any, AnyTask], reporter: Reporter) -> Session[AnyTask]:
    """A new run before its first step. If that fails, nothing is left behind."""
    request = training.request
    if not request.described:
        raise UsageError(f"{request.out} is not a run that can be resumed; name the data too, to start one")
    device = choose_device(request.device)
    machine = Machine(device, choose_training_dtype(request.dtype, device), device_memory(device))
    training.check_early(machine)
    with new_run(request.out, request.described) as run:
        logger.info(f"run         {run.directory}")
        for line in [] if request.start is None else request.start.notes():
            logger.info(line)
        task = same_task(
            lambda: new_task(training, run, machine, reporter),
            lambda record: recorded_task(training, run, record),
        )
        pace = pace_of(training, task, task.config.training, run)
        session = Session(run, task, task.config.training, device, machine.dtype, reporter, pace)
        session.start()
    return session


def new_task(training: Training[Any, AnyTask], run: Run, machine: Machine, reporter: Reporter) -> AnyTask:
    """The task before its first step; logs what was read and chosen, and why."""
    request = training.request
    data = training.read(run, reporter)
    choice = training.choose(data, machine)
    config = choice.config
    check_fits(training.footprint(config, data), config.training, machine.memory, run.directory)
    about = {"verb": training.verb, "data": request.described, "size": choice.size, "reasons": choice.reasons}
    about |= {} if request.start is None else {"from": request.start.record()}
    about |= {"epochs": request.epochs} if request.epochs else {}
    about |= {"minutes": request.minutes} if request.minutes else {}
    about |= {name: value for name, value in request.choices.items() if value is not None} | choice.record
    task = training.make_task(config, data, training.first_model(config, data, request.start), about)
    for line in (*training.describe(task), f"machine     {machine.describe(config.training.parallel)}"):
        logger.info(line)
    return task


def pace_of(training: Training[Any, Any], task: Task, config: TrainingConfig, run: Run) -> Pace:
    """The steps of the configuration, or the time of the run's record, of which a run that resumes has spent a part."""
    minutes = task.about.get("minutes")
    if minutes is None:
        return FixedSteps(config)
    return TimeBudget(
        config,
        60 * minutes,
        spent=time.monotonic() - training.began,
        marks={step: Mark(share, seconds) for step, share, seconds in run.pace()},
        record=lambda step, mark: run.append_pace(step, *mark),
        most_steps=task.about.get("most_steps"),
        world=current_world(),
    )


def check_pace(run: Run, step: int) -> None:
    """Log if pace.txt lacks steps before the checkpoint of a step: their time is not counted."""
    timed = max((recorded + 1 for recorded, _, _ in run.pace()), default=0)
    if timed < step:
        logger.warning(
            f"time        pace.txt has no steps from {timed} to {step - 1}: their time is lost and does not count"
        )


def recorded_task(
    training: Training[Any, AnyTask], run: Run, record: dict[str, Any], model: Any = None, data: Any = None
) -> AnyTask:
    """The task of a run from its record; without a model, as it was before its first step."""
    config = recorded_config(training, run, record)
    data = training.reopen(run, record) if data is None else data
    if model is None:
        model = training.first_model(config, data, find_start(record.get("from"), run.directory))
    about = {name: value for name, value in record.items() if name not in WRITTEN_BY_THE_SESSION}
    return training.make_task(config, data, model, about)


def recorded_config(training: Training[Any, Any], run: Run, record: dict[str, Any]) -> Any:
    """The configuration of a run; a `CheckpointError` if it has the fields of another version."""
    try:
        return make_section(training.request.config_type, record["config"], str(run.directory))
    except ConfigError as error:
        raise of_another_version(run, error) from None


def kept_data(run: Run) -> Path:
    """The data file of a run that keeps a copy of it (`Run.keep_file`)."""
    path = run.kept_file("data")
    if path is None:
        raise CheckpointError(f"{run.tokens / 'data'} is missing; restore it, or start again with another --out")
    return path


def of_another_version(run: Run, problem: object) -> CheckpointError:
    return CheckpointError(
        f"{run.directory} cannot be resumed: it was started by another version ({problem}); its checkpoints are "
        "models, and a new training can start from one"
    )


# --- a run that exists -----------------------------------------------------------------------------------------------


def resume_session(training: Training[Any, AnyTask], reporter: Reporter) -> Session[AnyTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    request = training.request
    run = (Run if current_world().is_first else FollowedRun).open(request.out)
    record = run.record()
    if "verb" not in record:
        raise of_another_version(run, "it has no verb")
    if record["verb"] != training.verb:
        raise ConfigError(
            f"{run.directory} was not trained by `foretell {training.verb}`; resume it with: {resume_command(run)}"
        )
    config = recorded_config(training, run, record)
    if "minutes" not in record:
        check_not_extended(training, config.training.steps, run)
    request.check_same_run(config, record)
    data = training.reopen(run, record)
    training.check_resumable(config, record, data)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    settings = resumed_training(run, config.training, request.section("training"))
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    checkpoint = last_checkpoint(run)
    if checkpoint is not None and record.get("minutes"):
        check_pace(run, checkpoint.step)
    model = None if checkpoint is None else training.load_model(checkpoint.directory, device)
    record["config"]["training"] = settings.model_dump(mode="json")
    task = recorded_task(training, run, record, model, data)
    session = Session(run, task, settings, device, dtype, reporter, pace_of(training, task, settings, run))
    if checkpoint is None:
        run.forget_metrics_after(0)
        logger.info(f"resuming    {run.directory} from the start: it was stopped before its first checkpoint")
    else:
        session.restore(checkpoint)
        logger.info(progress_line(training, run, checkpoint, record))
    return session


def progress_line(training: Training[Any, Any], run: Run, checkpoint: Checkpoint, record: Mapping[str, Any]) -> str:
    """The line about a run that was opened to be resumed."""
    steps, minutes = record["config"]["training"]["steps"], record.get("minutes")
    if is_complete(checkpoint, steps, minutes):
        has_all = minutes is None or checkpoint.step == record.get("most_steps")
        whole = f"all its {checkpoint.step:,} steps" if has_all else f"used its {minutes:g} minutes"
        return f"finished    {run.directory} has {whole}; {training.how_to_extend()}"
    whole = f"of {steps:,}" if minutes is None else f"of its {minutes:g} minutes"
    return f"resuming    {run.directory} after step {checkpoint.step:,} {whole}"


def check_not_extended(training: Training[Any, Any], steps: int, run: Run) -> None:
    """Refuse more steps than the run was started with: the learning rate follows its schedule to the last of them."""
    asked = training.request.section("training").get("steps")
    if not isinstance(asked, int) or asked <= steps:
        return
    checkpoints = list_checkpoints(run.checkpoints)
    state = "finished" if checkpoints and checkpoints[-1].step >= steps else "to end"
    raise ConfigError(
        f"{run.directory} is {state} after {steps:,} steps, where its schedule ends; "
        f"{training.how_to_extend(asked - steps)}"
    )


def last_checkpoint(run: Run) -> Checkpoint | None:
    """The newest intact checkpoint, as the first process finds it; None if there is none yet."""
    name = current_world().decide(
        lambda: run.last_intact().directory.name if list_checkpoints(run.checkpoints) else None
    )
    return None if name is None else Checkpoint(run.checkpoints / name)


# --- the directory, on one process or many: the first one writes, the others follow it --------------------------------


def continues_run(request: TrainingRequest, resume: bool) -> bool:
    """True if a run is to be resumed. With `resume`, what a killed process left before its first step is removed."""

    def decide() -> bool:
        if resume and is_unfinished(request.out):
            Run.clear_unfinished(request.out, request.described)
            logger.info(f"starting    {request.out} again: it was interrupted before its first step")
        return resume and is_run(request.out)

    return current_world().decide(decide)


@contextmanager
def new_run(directory: Path, described: list[str]) -> Iterator[Run]:
    """A new run, made by the first process; if the block fails, nothing is left behind."""
    world = current_world()
    run = Run.create(directory, described) if world.is_first else FollowedRun(directory)
    try:
        yield run
    except BaseException:
        if world.is_first:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def same_task(make: Callable[[], AnyTask], remake: Callable[[dict[str, Any]], AnyTask]) -> AnyTask:
    """The task that the first process makes; the others make it again from its record."""
    world = current_world()
    if world.is_first:
        task = make()
        world.decide(task.record)
        return task
    return remake(world.decide(dict))
