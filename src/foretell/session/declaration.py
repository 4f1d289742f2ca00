"""The declaration of a kind of training, with which a task package extends the training protocol."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters, weight_shapes
from foretell.errors import CheckpointError, ConfigError, counted, shell_words
from foretell.model.cost import training_flops_per_token
from foretell.model.init import make_decoder
from foretell.planning.estimate import DeviceMemory
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.session.budget import (
    Budget,
    LossCurve,
    SizeCost,
    choose_size,
    choose_steps,
    estimate_steps,
    measured_costs,
)
from foretell.session.commands import command_name
from foretell.session.fit import Footprint, check_fits, seconds_per_step
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest
from foretell.session.start import Start
from foretell.session.state import AnyTask, SessionState
from foretell.system.device import dtype_name

logger = logging.getLogger(__name__)
PROBED = "tiny"  # the size that is measured first

AnyRequest = TypeVar("AnyRequest", bound=TrainingRequest)


@dataclass(frozen=True)
class Machine:
    """The device, the precision of matrix products, and the memory for a training."""

    device: torch.device
    dtype: torch.dtype
    memory: DeviceMemory

    def describe(self, parallel: str) -> str:
        several = "" if self.memory.processes == 1 else f"{self.memory.processes} processes ({parallel}), each "
        threads = counted(torch.get_num_threads(), "thread")
        return f"{several}{self.device.type}, {threads}, {dtype_name(self.dtype)} products"


def describe_model(size: str, model: ModelConfig) -> str:
    return (
        f"model       {size}, {count_parameters(model):,} parameters: {counted(model.num_layers, 'layer')}, "
        f"{counted(model.num_heads, 'head')}, width {model.width}, context {model.context_length}"
    )


def describe_recipe(training: TrainingConfig, amount: str) -> str:
    """The optimizer's settings, and the amount of data per step."""
    rate = f"learning rate {training.learning_rate:g}, {training.schedule} schedule"
    return f"recipe      {training.optimizer}, {rate}, {amount}"


@dataclass(frozen=True)
class ChosenConfig:
    """A complete configuration, the name of its size, and a line with the reason for each choice.

    record: choices outside the configuration, for `RunRecord.task`. most_steps: a limit for a training with a time
    budget, which ends there even if time is left.
    """

    config: Any
    size: str
    reasons: list[str]
    record: dict[str, Any] = field(default_factory=dict)
    most_steps: int | None = None


class Training(ABC, Generic[AnyRequest, AnyTask]):
    """A kind of training: makes the task for a request, in a new or a resumed run.

    `data` can have any type; `read` and `reopen` return the same type. Methods run on every process unless their
    docstring states otherwise.
    """

    verb: ClassVar[str]  # resumes a run on the command line: foretell VERB --out RUN --resume auto
    default_minutes: ClassVar[float] = 10.0
    curve: ClassVar[LossCurve]  # needed if the task chooses a size with `timed_size`
    probe_seconds: ClassVar[float] = 4.0  # duration of a speed measurement

    def __init__(self, request: AnyRequest):
        self.request = request
        self.began = time.monotonic()
        self.probed: list[tuple[Any, float]] = []  # measured configurations with their seconds per step

    def choose_start(self) -> None:
        """Set the request's default start model for a new run, if the task has one."""

    def check_early(self, machine: Machine) -> None:
        """Refuse a request that is too large for the machine, before any data is read."""

    @abstractmethod
    def read(self, run: Run, reporter: Reporter) -> Any:
        """Read the data, and store in `run.tokens` the part that resuming needs. Runs only on the first process."""

    @abstractmethod
    def reopen(self, run: Run, record: RunRecord) -> Any:
        """The data that `read` stored."""

    @abstractmethod
    def choose(self, data: Any, machine: Machine) -> ChosenConfig:
        """Choose the settings that the user did not give. Runs only on the first process."""

    def footprint(self, config: Any, data: Any) -> Footprint:
        """The sizes for the checks of memory and disk; by default for a decoder whose rows fill its context."""
        return Footprint(weight_shapes(config.model), config.model)

    def first_model(self, config: Any, data: Any, start: Start | None) -> Any:
        """The model before its first step, with new weights or the start's; by default a decoder."""
        return make_decoder(config.model, config.training.seed) if start is None else start.decoder(config.model)

    @abstractmethod
    def load_model(self, directory: Path, device: torch.device) -> Any:
        """The model of a checkpoint."""

    @abstractmethod
    def make_task(self, config: Any, data: Any, model: Any) -> AnyTask:
        """The task, without its record."""

    @abstractmethod
    def describe(self, task: AnyTask) -> list[str]:
        """Lines for the log about data, model and recipe of a new run, with the reasons."""

    def seconds_per_step(self, config: Any, data: Any, machine: Machine) -> float:
        """The time of a training step with this configuration, measured on batches of the run."""
        for probed, seconds in self.probed:
            if probed == config:
                return seconds
        check_fits(self.footprint(config, data), config.training, machine.memory)
        if not self.probed:
            logger.info(f"measuring   the time of a step, about {self.probe_seconds:.0f} s for a size")
        any_vectors = config.training.model_copy(update={"similar_vectors": False})
        model = self.first_model(config.model_copy(update={"training": any_vectors}), data, self.request.start)
        task = self.make_task(config, data, model)
        task.objective.to(machine.device)
        task.choose_kernels(machine.device, machine.dtype)
        self.probed.append((config, seconds_per_step(task, config.training, machine.dtype, self.probe_seconds)))
        return self.probed[-1][1]

    def cost(self, config: Any, data: Any) -> SizeCost:
        """The cost of a size; by default for a decoder whose rows fill its context."""
        model, training = config.model, config.training
        tokens_per_step = training.batch_size * model.context_length
        return SizeCost.of(weight_shapes(model), training, tokens_per_step, training_flops_per_token(model))

    def timed_size(
        self, configs: Mapping[str, Any], data: Any, machine: Machine, unique_tokens: float
    ) -> tuple[str, str]:
        """The size for time and data (`choose_size`) by measured costs (`measured_costs`), and the reason.

        configs: the configuration of each size. unique_tokens: the tokens of the data, without repetitions.
        """
        first = PROBED if PROBED in configs else next(iter(configs))

        def seconds(name: str) -> float:
            try:
                return self.seconds_per_step(configs[name], data, machine)
            except ConfigError as error:  # does not fit into memory
                if name == first:
                    raise
                logger.info(f"skipped     the size {name}: {str(error).partition(';')[0]}")
                return math.inf

        costs, budget = measured_costs(
            {name: self.cost(config, data) for name, config in configs.items()},
            first,
            seconds,
            lambda rate: Budget(self.request.minutes or self.default_minutes, rate, unique_tokens, self.curve),
        )
        return choose_size(costs, budget)

    def timed_steps(self, config: Any, data: Any, machine: Machine, most: int | None = None) -> tuple[int, str]:
        """The requested number of steps, or the number that fits the time (`choose_steps`), and the reason."""
        if self.request.given_steps is not None:
            return self.request.given_steps, "as asked"
        seconds = self.seconds_per_step(config, data, machine)
        speed = f"{seconds:.2f} s per step"
        if self.request.minutes is None:
            return choose_steps(self.default_minutes, seconds, speed, most)
        return estimate_steps(self.request.minutes, seconds, speed, most, self.request.least_steps)

    def check_resumable(self, config: Any, record: RunRecord, data: Any) -> None:
        """Refuse changed options that `TrainingRequest.check_same_run` cannot compare."""

    def how_to_extend(self, steps: int = 0) -> str:
        """Advice on how to train beyond the last step of a run, optionally by a number of steps."""
        run = Run(self.request.out)
        record = run.record()
        data = [name for name in record.data if Path(name).exists()] or ["DATA"]
        words = self.words_to_extend(record.model_copy(update={"data": data}), str(run.directory))
        if not words:
            return "start again with another --out to train longer"
        words += ["--steps", str(steps)] if steps else []
        return f"to train it further: {command_name()} {shell_words(*words, '--out', f'{run.directory}-longer')}"

    def words_to_extend(self, record: RunRecord, run: str) -> list[str]:
        """The command that starts a new training from a run; empty if that is not possible."""
        return []

    def opened(self, session: SessionState[AnyTask]) -> None:
        """Called before the first step of a new or resumed session."""

    def closed(self, session: SessionState[AnyTask]) -> None:
        """Called after the last step: write the report."""


def kept_data(run: Run) -> Path:
    """The run's copy of the data file (`Run.keep_file`)."""
    path = run.kept_file("data")
    if path is None:
        raise CheckpointError(f"{run.tokens / 'data'} is missing; restore it, or start again with another --out")
    return path
