"""The needs of a training: checks of memory and disk, and the time per step."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import NamedTuple

import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.distributed.world import current_world
from foretell.errors import ConfigError
from foretell.planning import estimate
from foretell.planning.estimate import DeviceMemory
from foretell.session.task import Task
from foretell.training.optimizer import Shapes
from foretell.training.step import TrainingBatch, own_rows
from foretell.training.timing import time_steps
from foretell.typesetting.numbers import format_bytes

FEWEST_PROBED = 4  # rows of different steps have different lengths
UNDIVIDED = {"gradient_accumulation_steps": 1}


class Footprint(NamedTuple):
    """The sizes of a training: the weights, the longest row, and the rows per step.

    row: a shape whose context is the length of the longest row. rows: None for the batch size. frozen: paths of weights
    that are not trained, in addition to `training.frozen`.
    """

    shapes: Shapes
    row: ModelConfig
    rows: int | None = None
    frozen: tuple[str, ...] = ()


def check_fits(
    footprint: Footprint, training: TrainingConfig, memory: DeviceMemory, directory: Path | None = None
) -> None:
    """Refuse a training that certainly exceeds the memory, or whose checkpoints do not fit on the disk of a folder."""
    shapes, row, rows, frozen = footprint
    counted = {"batch_size": rows or training.batch_size, "frozen": (*training.frozen, *frozen)}
    training = training.model_copy(update=counted)
    check_model_fits(shapes, training, memory)
    check_batch_fits(row, shapes, training, memory)
    if directory is not None:
        check_disk_fits(shapes, training, directory)


def check_model_fits(shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> None:
    """Refuse a model whose weights, gradients and moments exceed the memory."""
    parameters = sum(map(math.prod, shapes.values()))
    needed = sum(estimate.state_per_process(shapes, training, memory.processes).values())
    if needed > memory.size:
        raise ConfigError(
            f"{parameters:,} parameters need {format_bytes(needed)} for weights, gradients and optimizer, and "
            f"{memory.device} memory is {format_bytes(memory.size)}; take a smaller --size, --model.width or "
            "--model.num-layers"
        )


def check_batch_fits(config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> None:
    """Refuse a micro-batch that certainly exceeds the memory, even without anything else."""
    rows = estimate.rows_at_once(training, memory.processes)
    needed = estimate.total(estimate.training_memory(config, shapes, training, memory)).low
    if needed > memory.size:
        raise ConfigError(
            f"{rows:,} rows of {config.context_length:,} tokens at once need more than {format_bytes(needed)}, and "
            f"{memory.device} memory is {format_bytes(memory.size)}; lower --training.batch-size or raise "
            "--training.gradient-accumulation-steps"
        )


def check_disk_fits(shapes: Shapes, training: TrainingConfig, directory: Path) -> None:
    """Refuse a run whose checkpoints, including the best and the one being written, do not fit on the disk."""
    count = training.keep_checkpoints + 2
    needed, free = count * estimate.saved_bytes(shapes, training), shutil.disk_usage(directory).free
    if needed > free:
        raise ConfigError(
            f"{directory}: {count} checkpoints need {format_bytes(needed)}, and {format_bytes(free)} are free there; "
            "lower --training.keep-checkpoints, take a smaller --size, or give --out on another disk"
        )


def seconds_per_step(task: Task, training: TrainingConfig, dtype: torch.dtype, duration: float) -> float:
    """The mean time of a step on this process's rows, measured for about `duration` seconds. Changes the weights.

    If a step takes longer than that, it is extrapolated from steps with fewer rows.
    """
    world, objective = current_world(), task.objective.train()

    def measure(settings: TrainingConfig, rows: int | None, duration: float = 0.0, fewest: int = 1) -> float:
        def batch(step: int) -> TrainingBatch:
            own = own_rows(task.batch(step), world)
            return own if rows is None else own.rows(0, rows)

        seconds = time_steps(objective, task.model, batch, settings, dtype, duration, fewest)
        return sum(seconds) / len(seconds)

    whole, undivided = len(own_rows(task.batch(0), world)), training.model_copy(update=UNDIVIDED)
    one_row = measure(undivided, 1)
    if whole * one_row <= duration:
        return measure(training, None, duration, FEWEST_PROBED)
    if whole == 1:
        return one_row
    few = min(whole, max(2, int(duration / 2 / one_row)))
    some = measure(undivided, few)
    return max(some, one_row + (whole - 1) * (some - one_row) / (few - 1))  # a disturbed step can be slower than more
