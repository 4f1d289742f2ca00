"""Memory, disk and arithmetic: checks that a training fits before anything is allocated, and the meter of MFU."""

from __future__ import annotations

import math
import resource
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from foretell.config import ModelConfig, TrainingConfig
from foretell.errors import ConfigError
from foretell.files import format_bytes
from foretell.planning.memory import (
    DeviceMemory,
    rows_at_once,
    saved_bytes,
    state_per_process,
    total,
    training_memory,
)
from foretell.planning.probe import peak_flops
from foretell.training.optimizer import Shapes

MEASURED_AFTER = 10.0  # seconds of training, so that a short run does not wait for a figure that it does not need
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss


# --- does it fit? ----------------------------------------------------------------------------------------------------


class Footprint(NamedTuple):
    """The sizes of a training: every weight, the longest row, and the rows of a step.

    row: a shape whose context is the length of the longest row. rows: None for the batch size.
    """

    shapes: Shapes
    row: ModelConfig
    rows: int | None = None


def check_fits(footprint: Footprint, training: TrainingConfig, memory: DeviceMemory, directory: Path) -> None:
    """Refuse a training that is surely larger than the memory, or whose checkpoints are larger than the free disk."""
    shapes, row, rows = footprint
    check_model_fits(shapes, training, memory)
    counted = training if rows is None else training.model_copy(update={"batch_size": rows})
    check_batch_fits(row, shapes, counted, memory)
    check_disk_fits(shapes, training, directory)


def check_model_fits(shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> None:
    """Refuse a model whose weights, gradients and moments alone are more than the memory."""
    parameters = sum(map(math.prod, shapes.values()))
    needed = sum(state_per_process(shapes, training, memory.processes).values())
    if needed > memory.size:
        raise ConfigError(
            f"{parameters:,} parameters need {format_bytes(needed)} for weights, gradients and optimizer, and "
            f"{memory.device} memory is {format_bytes(memory.size)}; take a smaller --size, --model.width or "
            "--model.num-layers"
        )


def check_batch_fits(config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> None:
    """Refuse a micro-batch for which the memory is surely too small, apart from anything else it has to hold."""
    rows = rows_at_once(training, memory.processes)
    needed = total(training_memory(config, shapes, training, memory)).low
    if needed > memory.size:
        raise ConfigError(
            f"{rows:,} rows of {config.context_length:,} tokens at once need more than {format_bytes(needed)}, and "
            f"{memory.device} memory is {format_bytes(memory.size)}; lower --training.batch-size or raise "
            "--training.gradient-accumulation-steps"
        )


def check_disk_fits(shapes: Shapes, training: TrainingConfig, directory: Path) -> None:
    """Refuse a run whose checkpoints, with the best and the one being written, do not fit the disk."""
    count = training.keep_checkpoints + 2
    needed, free = count * saved_bytes(shapes, training), shutil.disk_usage(directory).free
    if needed > free:
        raise ConfigError(
            f"{directory}: {count} checkpoints need {format_bytes(needed)}, and {format_bytes(free)} are free there; "
            "lower --training.keep-checkpoints, take a smaller --size, or give --out on another disk"
        )


# --- what training uses ----------------------------------------------------------------------------------------------


class Meter:
    """Peak memory and model FLOPs utilisation (MFU). The peak FLOP/s of the device are measured once, when needed."""

    def __init__(self, flops_per_token: int | None, device: torch.device, dtype: torch.dtype):
        self.flops_per_token, self.device, self.dtype = flops_per_token, device, dtype
        self._peak: float | None = None

    def mfu(self, tokens_per_second: float | None, seconds: float) -> float | None:
        """The arithmetic of the model as a share of the peak FLOP/s of the device (Chowdhery et al. 2022, appendix B).

        None for the first MEASURED_AFTER `seconds` of training, and where the arithmetic of a token is not known.
        """
        if tokens_per_second is None or self.flops_per_token is None or seconds < MEASURED_AFTER:
            return None
        self._peak = self._peak or peak_flops(self.device, self.dtype)
        return round(tokens_per_second * self.flops_per_token / self._peak, 4)

    def peak_memory_bytes(self) -> int:
        """The most memory used so far: of a GPU where one is used, else of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
