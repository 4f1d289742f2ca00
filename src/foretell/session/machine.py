"""The machine of a training: its description, checks of memory and disk, the time per step, peak memory and MFU."""

from __future__ import annotations

import logging
import math
import os
import platform
import resource
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foretell.config import ModelConfig, TrainingConfig, make_section
from foretell.device import DeviceName, DtypeName, choose_device, choose_training_dtype, dtype_name
from foretell.distributed.world import current_world
from foretell.errors import ConfigError
from foretell.files import format_bytes
from foretell.installation import cpu_model
from foretell.planning import estimate
from foretell.planning.estimate import DeviceMemory
from foretell.planning.speed import peak_flops, time_steps
from foretell.runs.record import RESUMABLE
from foretell.runs.run import Run
from foretell.session.task import Task
from foretell.training.optimizer import Shapes
from foretell.training.step import TrainingBatch, own_rows

logger = logging.getLogger(__name__)
MEASURED_AFTER = 10.0  # seconds of training, so that a short run does not wait for the measurement
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
FEWEST_PROBED = 4  # rows of different steps have different lengths


def describe_environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Versions and machine, the content of environment.json."""
    return {
        "foretell": version("foretell"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "dtype": dtype_name(dtype),
    }


def log_other_machine(run: Run, device: torch.device, dtype: torch.dtype) -> None:
    """Warn if this machine differs from the one that started the run in ways that change the last digits."""
    before, now = run.environment(), describe_environment(device, dtype)
    changed = [name for name in ("processor", "threads", "torch") if before.get(name, now[name]) != now[name]]
    if changed:
        seen = ", ".join(f"{name} {now[name]}, not {before[name]}" for name in changed)
        logger.warning(f"machine     {seen} as before: the result may differ in the last digits")


def resumed_precision(
    record: dict[str, Any], device_name: DeviceName, wanted: DtypeName
) -> tuple[torch.device, torch.dtype]:
    """Device and precision of a resumed run: from its record, unless others are requested; changes are logged."""
    device = choose_device(record["device"] if device_name == "auto" else device_name)
    dtype = choose_training_dtype(record["dtype"] if wanted == "auto" else wanted, device)
    if (device.type, dtype_name(dtype)) != (record["device"], record["dtype"]):
        logger.warning(
            f"precision   {device.type} in {dtype_name(dtype)}, not {record['device']} in {record['dtype']} as before: "
            "the result will differ in the last digits"
        )
    return device, dtype


def resumed_training(run: Run, training: TrainingConfig, given: Mapping[str, Any]) -> TrainingConfig:
    """The settings of a resumed run, with requested changes of the settings that may change.

    These affect memory use, and the result only by rounding; run.json is updated.
    """
    asked = {key: value for key, value in given.items() if key in RESUMABLE}
    changed = make_section(TrainingConfig, {**training.model_dump(), **asked}, "training")
    if changed == training:
        return training
    for key in sorted(asked):
        if getattr(changed, key) != getattr(training, key):
            logger.warning(
                f"{key} {getattr(changed, key)}, not {getattr(training, key)} as before: the result will differ in the "
                "last digits"
            )
    record = run.record()
    record["config"]["training"] = changed.model_dump(mode="json")
    run.replace_record(record)
    return changed


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
    """The mean time of a step on this process's rows, measured for `duration` seconds. Changes the weights."""
    world = current_world()

    def batch(step: int) -> TrainingBatch:
        return own_rows(task.batch(step), world)

    seconds = time_steps(task.objective.train(), task.model, batch, training, dtype, duration, FEWEST_PROBED)
    return sum(seconds) / len(seconds)


class Meter:
    """Peak memory and model FLOPs utilisation (MFU). The device's peak FLOP/s are measured once, when needed."""

    def __init__(self, flops_per_token: int | None, device: torch.device, dtype: torch.dtype):
        self.flops_per_token, self.device, self.dtype = flops_per_token, device, dtype
        self._peak: float | None = None

    def mfu(self, tokens_per_second: float | None, seconds: float) -> float | None:
        """The model's FLOP/s as a share of the device's peak FLOP/s (Chowdhery et al. 2022, appendix B).

        None in the first MEASURED_AFTER `seconds` of training, and if the FLOPs per token are not known.
        """
        if tokens_per_second is None or self.flops_per_token is None or seconds < MEASURED_AFTER:
            return None
        self._peak = self._peak or peak_flops(self.device, self.dtype)
        return round(tokens_per_second * self.flops_per_token / self._peak, 4)

    def peak_memory_bytes(self) -> int:
        """The peak memory so far: of the GPU if one is used, else of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
