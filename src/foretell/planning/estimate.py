"""Estimates of a training as ranges: arithmetic, time, and memory by part; changes that would make it fit.

Memory is per process. The check before training uses the lower bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.distributed.launch import read_launch
from foretell.errors import ConfigError
from foretell.model.cost import saved_bytes_per_token, training_flops_per_token
from foretell.paths import matches
from foretell.system.device import memory_of
from foretell.training.execution import wants_compiling
from foretell.training.objective import logits_on_cpu, logits_on_gpu
from foretell.training.optimizer import Shapes, is_frozen, moments_per_element, optimizer_flops_per_step
from foretell.typesetting.numbers import format_bytes

REPEATED = 4 / 3  # factor if the forward pass, a third of the operations, is computed again


@dataclass(frozen=True)
class Range:
    """A planned figure: at least `low`, at most `high`."""

    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        return cls(value, value)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)

    def __truediv__(self, divisor: float) -> Range:
        return self * (1 / divisor)


@dataclass(frozen=True)
class Cost:
    """Arithmetic and time of a training, including forward passes repeated for checkpointed activations."""

    flops: Range
    seconds: Range
    device_hours: Range


def training_flops(config: ModelConfig, training: TrainingConfig, tokens: float, processes: int) -> Range:
    """Operations of a training: at least with attention over half of the context (causal kernels), at most over all."""
    full = training_flops_per_token(config)
    attention = 12 * config.num_layers * config.num_heads * config.head_width * config.context_length
    steps = tokens / (training.batch_size * config.context_length)
    # Every process updates its copy of the weights (DDP), or its share of them (FSDP)
    times = 1 if training.parallel == "fsdp" else processes
    updates = times * steps * optimizer_flops_per_step(weight_shapes(config), training)
    return Range((full - attention / 2) * tokens + updates, full * tokens + updates)


def training_cost(flops: Range, training: TrainingConfig, rate: Range, processes: int) -> Cost:
    """The time at a rate of one device in FLOP/s, which counts attention over the whole context.

    flops: of model and optimizer, without repeated forward passes.
    """
    repeated = REPEATED if training.checkpoint_activations else 1.0
    work = flops.high * repeated / processes
    seconds = Range(work / rate.high, work / rate.low)
    return Cost(flops * repeated, seconds, seconds * (processes / 3600))


FLOAT_BYTES = 4  # weights, gradients and moments are float32
# Modules declare 40 to 100 % of the bytes that a real pass keeps (tests/model/test_structure.py)
MOST_TIMES_DECLARED = 2.5
BYTES_PER_LOGIT = Range(6, 14)  # a bfloat16 logit and its float32 copy; uncompiled also the gradients of both
# torch's compiler recomputes norms and activation functions. Measured on an H200: 0.6 (docs/performance.md)
COMPILED_TIMES_DECLARED, COMPILED_BYTES_PER_LOGIT = 0.5, 4
# Python, torch and other libraries, measured with Linux: when they are loaded, and with compiled kernels and plots
PROGRAM = Range(3e8, 5e8)
BLOCK = "trunk.blocks.0"
BLOCKS = ("**.blocks.*",)  # activation checkpointing of whole blocks
MOST_GPUS = 4096
MOST_TRIED = 10**6  # divisors of a batch size


@dataclass(frozen=True)
class DeviceMemory:
    """A kind of device, its memory in bytes, and the number of processes of a training.

    dtype: the precision of matmuls; None if it is not known yet: the smallest is assumed.
    """

    device: str
    size: int
    processes: int = 1
    dtype: torch.dtype | None = None

    @property
    def matmul_bytes(self) -> int:
        return 2 if self.dtype is None else self.dtype.itemsize

    def logits_at_once(self, vocab_size: int) -> int:
        return logits_on_cpu(vocab_size) if self.device == "cpu" else logits_on_gpu(self.size)


def device_memory(device: torch.device) -> DeviceMemory:
    """The total memory of a device, for the processes that torchrun started."""
    return DeviceMemory(device.type, memory_of(device), read_launch().world_size)


def state_parts(shapes: Shapes, training: TrainingConfig) -> dict[str, int]:
    """Bytes of weights, gradients and the moments of the optimizer; a frozen weight has no gradient and no moments."""
    parts = {"weights": 0, "gradients": 0, "optimizer": 0}
    for path, shape in shapes.items():
        size = math.prod(shape) * FLOAT_BYTES
        parts["weights"] += size
        parts["gradients"] += 0 if is_frozen(path, training) else size
        parts["optimizer"] += size * moments_per_element(path, shape, training)
    return parts


def saved_bytes(shapes: Shapes, training: TrainingConfig) -> int:
    """Bytes of the weights and moments in a checkpoint."""
    parts = state_parts(shapes, training)
    return parts["weights"] + parts["optimizer"]


def state_per_process(shapes: Shapes, training: TrainingConfig, processes: int) -> dict[str, float]:
    """`state_parts` on each process: all (DDP), or a share (FSDP, whose gradients are whole with micro-batches)."""
    counts = dict.fromkeys(("weights", "optimizer"), processes if training.parallel == "fsdp" else 1)
    counts["gradients"] = 1 if training.gradient_accumulation_steps > 1 else counts["weights"]
    return {name: size / counts[name] for name, size in state_parts(shapes, training).items()}


def rows_at_once(training: TrainingConfig, processes: int) -> int:
    """Rows of a micro-batch on each process."""
    return math.ceil(training.batch_size / training.gradient_accumulation_steps / processes)


def training_memory(
    config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory
) -> dict[str, Range]:
    """Bytes on each process by part, for rows of a whole context."""
    rows, V = rows_at_once(training, memory.processes), config.vocab_size
    state = state_per_process(shapes, training, memory.processes)
    activations = activations_per_token(config, training, memory.matmul_bytes)
    per_logit = BYTES_PER_LOGIT
    if wants_compiling(training, memory.device):
        activations = replace(activations, low=COMPILED_TIMES_DECLARED * activations.low)
        per_logit = replace(per_logit, low=COMPILED_BYTES_PER_LOGIT)
    return {
        **{name: Range.exact(size) for name, size in state.items()},
        "bfloat16 copies": copies(shapes, training, memory),
        "activations": activations * (rows * config.context_length),
        "logits": per_logit * min(rows * config.context_length * V, memory.logits_at_once(V)),
    }


def with_program(parts: dict[str, Range], memory: DeviceMemory) -> dict[str, Range]:
    """The parts, and on a CPU the program itself, which the checks leave out."""
    return {"program": PROGRAM, **parts} if memory.device == "cpu" else parts


def copies(shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> Range:
    """Bytes of the bfloat16 copies of the matrices, kept for the backward pass unless the forward pass is repeated.

    FSDP has them too, because its shards are gathered in float32.
    """
    if memory.matmul_bytes == FLOAT_BYTES:
        return Range.exact(0)
    size = 2 * sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    is_sure = memory.dtype is not None and not training.checkpoint_activations
    return Range(size if is_sure else 0, size)


def activations_per_token(config: ModelConfig, training: TrainingConfig, matmul_bytes: int) -> Range:
    """Bytes per token that a pass keeps for the gradient.

    If blocks are computed again, only their inputs are kept, and the values of one block at a time.
    """
    every = saved_bytes_per_token(config, matmul_bytes)
    if not training.checkpoint_activations:
        return Range(every, MOST_TIMES_DECLARED * every)
    one_layer = saved_bytes_per_token(config.replaced(num_layers=1, window=None), matmul_bytes)
    repeated = one_layer + config.num_layers * config.width * FLOAT_BYTES
    has_all = any(matches(glob, BLOCK) for glob in training.checkpoint_activations)
    return Range(min(every, repeated), MOST_TIMES_DECLARED * (repeated if has_all else every))


def total(parts: dict[str, Range]) -> Range:
    return sum(parts.values(), Range.exact(0))


def check_training_fits(config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> None:
    """Refuse a training that surely needs more memory; the message lists changes that would fit."""
    needed = total(training_memory(config, shapes, training, memory)).low
    if needed <= memory.size:
        return
    rows = rows_at_once(training, memory.processes)
    ways = list(iter_ways(config, shapes, training, memory)) or ["a smaller --size"]
    raise ConfigError(
        f"{rows:,} x {config.context_length:,} tokens at once on each of {memory.processes:,} devices need more than "
        f"{format_bytes(needed)}, and {memory.device} memory is {format_bytes(memory.size)}; this would fit: "
        f"{', or '.join(ways)}"
    )


def iter_ways(config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> Iterator[str]:
    """Changes that surely make the training fit, in words; more GPUs only if nothing else helps."""

    def fits(changed: TrainingConfig, processes: int = memory.processes) -> bool:
        spread = replace(memory, processes=processes)
        return total(training_memory(config, shapes, changed, spread)).high <= memory.size

    checkpointed = training.model_copy(update={"checkpoint_activations": BLOCKS})
    sharded = training.model_copy(update={"parallel": "fsdp"})
    both = checkpointed.model_copy(update={"parallel": "fsdp"})
    ways = {"--checkpoint-activations": fits(checkpointed), "--parallel fsdp": memory.processes > 1 and fits(sharded)}
    divided = (
        training.model_copy(update={"gradient_accumulation_steps": count}) for count in accumulations(training, memory)
    )
    if way := next(filter(fits, divided), None):
        yield f"fewer rows with --training.gradient-accumulation-steps {way.gradient_accumulation_steps}"
    yield from (way for way, is_fitting in ways.items() if is_fitting)
    if not way and not any(ways.values()):
        yield from more_gpus(both, memory.processes, fits)


def more_gpus(training: TrainingConfig, processes: int, fits: Callable[[TrainingConfig, int], bool]) -> Iterator[str]:
    """The smallest number of GPUs that fit with sharded weights and one row on each."""
    count = processes
    while count <= MOST_GPUS:
        one_row = training.model_copy(update={"batch_size": count, "gradient_accumulation_steps": 1})
        if fits(one_row, count):
            yield (
                f"--gpus {count} --parallel fsdp --checkpoint-activations with a row on each "
                f"(--training.batch-size {count})"
            )
            return
        count *= 2


def accumulations(training: TrainingConfig, memory: DeviceMemory) -> Iterator[int]:
    """Larger numbers of micro-batches, ascending, that divide the batch and leave a row for each process."""
    rows, most = training.batch_size, training.batch_size // memory.processes
    small = [parts for parts in range(1, min(math.isqrt(rows), MOST_TRIED) + 1) if rows % parts == 0]
    divisors = sorted({*small, *(rows // parts for parts in small)})
    yield from (parts for parts in divisors if training.gradient_accumulation_steps < parts <= most)
