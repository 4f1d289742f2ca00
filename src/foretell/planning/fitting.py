"""What would fit where a training does not: fewer rows at once, activations computed again, shards, more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from foretell.config import ModelConfig, TrainingConfig
from foretell.errors import ConfigError
from foretell.files import format_bytes
from foretell.planning.memory import DeviceMemory, rows_at_once, total, training_memory
from foretell.training.optimizer import Shapes

BLOCKS = ("**.blocks.*",)  # activation checkpointing of whole blocks
MOST_GPUS = 4096


def check_training_fits(config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> None:
    """Refuse a training for which the memory is surely too small, and say what would fit."""
    needed = total(training_memory(config, shapes, training, memory)).low
    if needed <= memory.size:
        return
    rows = rows_at_once(training, memory.processes)
    ways = list(iter_ways(config, shapes, training, memory)) or ["a smaller --size"]
    raise ConfigError(
        f"{rows:,} x {config.context_length:,} tokens at once on each of {memory.processes:,} devices need more than "
        f"{format_bytes(needed)}, and {memory.device} memory is {format_bytes(memory.size)}; what surely fits: "
        f"{', or '.join(ways)}"
    )


def iter_ways(config: ModelConfig, shapes: Shapes, training: TrainingConfig, memory: DeviceMemory) -> Iterator[str]:
    """Changes of the training with which it surely fits, in words; more GPUs only if nothing else helps."""

    def fits(changed: TrainingConfig, processes: int = memory.processes) -> bool:
        spread = replace(memory, processes=processes)
        return total(training_memory(config, shapes, changed, spread)).high <= memory.size

    checkpointed = training.model_copy(update={"checkpoint_activations": BLOCKS})
    sharded = training.model_copy(update={"parallel": "fsdp"})
    both = checkpointed.model_copy(update={"parallel": "fsdp"})
    ways = {
        "--checkpoint-activations": fits(checkpointed),
        "--parallel fsdp": memory.processes > 1 and fits(sharded),
    }
    if way := next((parts for parts in accumulations(training, memory) if fits(with_parts(training, parts))), None):
        yield f"fewer rows with --training.gradient-accumulation-steps {way}"
    yield from (way for way, is_fitting in ways.items() if is_fitting)
    if not way and not any(ways.values()):
        yield from more_gpus(both, memory.processes, fits)


def more_gpus(training: TrainingConfig, processes: int, fits: Callable[[TrainingConfig, int], bool]) -> Iterator[str]:
    """The smallest number of GPUs over which shards of one row each fit."""
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
    """Larger numbers of micro-batches that divide the batch and leave each process a row."""
    for parts in range(training.gradient_accumulation_steps + 1, training.batch_size // memory.processes + 1):
        if training.batch_size % parts == 0:
            yield parts


def with_parts(training: TrainingConfig, parts: int) -> TrainingConfig:
    """The training with another number of micro-batches."""
    return training.model_copy(update={"gradient_accumulation_steps": parts})
