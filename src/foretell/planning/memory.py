"""Memory of a training on each process, by part, as a range. The check before training uses the lower bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from foretell.config import ModelConfig, TrainingConfig
from foretell.device import memory_of
from foretell.distributed.launch import read_launch
from foretell.model.cost import saved_bytes_per_token
from foretell.paths import matches
from foretell.planning.ranges import Range
from foretell.training.objective import GPU_BYTES_PER_LOGIT, LOGITS_AT_ONCE, MOST_LOGITS
from foretell.training.optimizer import Shapes, is_frozen, moments_per_element

FLOAT_BYTES = 4  # weights, gradients and moments are float32
# What modules declare to keep is between 0.4 and 1 of what a real pass keeps (tests/model/test_structure.py)
MOST_TIMES_DECLARED = 2.5
BYTES_PER_LOGIT = Range(6, 14)  # a bfloat16 logit and its float32 copy; uncompiled also the gradients of both
BLOCK = "trunk.blocks.0"


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of a device: its kind, how many bytes it has, and on how many processes a training runs.

    dtype: the precision of matrix products; None where it is not known yet, so that the smallest is counted.
    """

    device: str
    size: int
    processes: int = 1
    dtype: torch.dtype | None = None

    @property
    def matmul_bytes(self) -> int:
        """Bytes of an element in the precision of matrix products."""
        return 2 if self.dtype is None else self.dtype.itemsize

    @property
    def logits_at_once(self) -> int:
        """As `training.objective.logits_at_once_on`, for a device that need not be here."""
        return LOGITS_AT_ONCE if self.device == "cpu" else min(self.size // GPU_BYTES_PER_LOGIT, MOST_LOGITS)


def device_memory(device: torch.device) -> DeviceMemory:
    """The memory of a device, used or not, for the processes that torchrun started."""
    return DeviceMemory(device.type, memory_of(device), read_launch().world_size)


# --- weights and what belongs to them --------------------------------------------------------------------------------


def state_parts(shapes: Shapes, training: TrainingConfig) -> dict[str, int]:
    """Bytes of weights, gradients and the moments of the optimizer; a frozen weight has no gradient and no moments."""
    parts = {"weights": 0, "gradients": 0, "optimizer": 0}
    for path, shape in shapes.items():
        size = math.prod(shape) * FLOAT_BYTES
        parts["weights"] += size
        parts["gradients"] += 0 if is_frozen(path, training) else size
        parts["optimizer"] += size * moments_per_element(path, shape, training)
    return parts


def state_bytes(shapes: Shapes, training: TrainingConfig) -> int:
    """Bytes of weights, gradients and moments together."""
    return sum(state_parts(shapes, training).values())


def saved_bytes(shapes: Shapes, training: TrainingConfig) -> int:
    """Bytes of the weights and moments in a checkpoint."""
    parts = state_parts(shapes, training)
    return parts["weights"] + parts["optimizer"]


def state_per_process(shapes: Shapes, training: TrainingConfig, processes: int) -> dict[str, float]:
    """`state_parts` of each process: all of them in copies (DDP), or a share in shards (FSDP)."""
    count = processes if training.parallel == "fsdp" else 1
    return {name: size / count for name, size in state_parts(shapes, training).items()}


# --- a step ----------------------------------------------------------------------------------------------------------


def rows_at_once(training: TrainingConfig, processes: int) -> int:
    """Rows of a micro-batch on each process."""
    return math.ceil(training.batch_size / training.gradient_accumulation_steps / processes)


def training_memory(
    config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory
) -> dict[str, Range]:
    """Bytes on each process by part, for rows of a whole context: at least, and at most."""
    rows = rows_at_once(training, memory.processes)
    state = state_per_process(shapes, training, memory.processes)
    return {
        **{name: Range.exact(size) for name, size in state.items()},
        "bfloat16 copies": copies(shapes, training, memory),
        "activations": activations_per_token(config, training, memory.matmul_bytes) * (rows * config.context_length),
        "logits": logits(rows * config.context_length * config.vocab_size, memory),
    }


def copies(shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> Range:
    """The matrices in bfloat16, kept from their use in the forward pass to that in the backward pass.

    With FSDP too, whose shards are gathered in float32; not where the pass is repeated.
    """
    if memory.matmul_bytes == FLOAT_BYTES:
        return Range.exact(0)
    size = 2 * sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    is_sure = memory.dtype is not None and not training.checkpoint_activations
    return Range(size if is_sure else 0, size)


def activations_per_token(config: ModelConfig, training: TrainingConfig, matmul_bytes: int) -> Range:
    """Bytes per token that a pass keeps for the gradient.

    Where blocks are computed again, only their inputs are kept, and the values of one block at a time.
    """
    every = saved_bytes_per_token(config, matmul_bytes)
    if not training.checkpoint_activations:
        return Range(every, MOST_TIMES_DECLARED * every)
    one_layer = saved_bytes_per_token(config.replaced(num_layers=1, window=None), matmul_bytes)
    repeated = one_layer + config.num_layers * config.width * FLOAT_BYTES
    has_all = any(matches(glob, BLOCK) for glob in training.checkpoint_activations)
    return Range(min(every, repeated), MOST_TIMES_DECLARED * (repeated if has_all else every))


def logits(count: int, memory: DeviceMemory) -> Range:
    """The logits of a chunk of the loss, of `count` logits in all."""
    return BYTES_PER_LOGIT * min(count, memory.logits_at_once)


def total(parts: dict[str, Range]) -> Range:
    """All parts together."""
    return sum(parts.values(), Range.exact(0))
