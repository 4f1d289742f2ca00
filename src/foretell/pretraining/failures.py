"""What goes wrong while training, in one line: what happened, what is safe, and the command that goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from foretell.config import TrainingConfig
from foretell.errors import DivergedError, OutputError, TrainingError
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.run import Run, is_run
from foretell.training.actions import Progress

# torch has no error class for this on every device: what it says on a CPU, on a GPU, and in its libraries
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Does an error mean that there was no memory left?"""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    )


@contextmanager
def memory_errors_explained() -> Iterator[None]:
    """Say what to do where memory runs out before training begins."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            "out of memory before the first step; take a smaller --size, a lower --training.batch-size, or less text"
        ) from error


@contextmanager
def failures_explained(run: Run, training: TrainingConfig, progress: Progress) -> Iterator[None]:
    """Say of a full disk, a directory that is gone, a full memory or a divergence what is safe, and how to go on."""
    try:
        yield
    except OutputError as error:
        raise OutputError(f"{error}; training ended after step {progress.step:,}, {way_on(run)}") from error
    except DivergedError as error:
        raise DivergedError(
            f"{error}; {what_is_saved(run)}. Start anew with a lower --training.learning-rate and another --out"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        advice = less_memory(run, training)
        raise TrainingError(f"out of memory after step {progress.step:,}, {advice}") from error


def way_on(run: Run, option: str = "") -> str:
    """What is saved, and what goes on from there."""
    if not is_run(run.directory):
        return "nothing is left to go on from"
    return f"{what_is_saved(run)}; go on with: {resume_command(run)}{option}"


def what_is_saved(run: Run) -> str:
    """The last checkpoint, if there is one."""
    checkpoints = list_checkpoints(run.checkpoints)
    return f"the checkpoint of step {checkpoints[-1].step:,} is good" if checkpoints else "there is no checkpoint yet"


def less_memory(run: Run, training: TrainingConfig) -> str:
    """The way on with less memory: the batch in more parts, or another run where a part is a row already."""
    if training.accumulation < training.batch_size:
        option = f" --training.accumulation {next_divisor(training.batch_size, training.accumulation)}"
        return way_on(run, option)
    return (
        f"{what_is_saved(run)}; each micro-batch is one row already, so start anew with a smaller --size or "
        "--model.context-length"
    )


def next_divisor(number: int, above: int) -> int:
    """The smallest divisor that is at least twice as large as `above`, or the number itself."""
    return next(one for one in range(min(2 * above, number), number + 1) if number % one == 0)


def resume_command(run: Run) -> str:
    """What goes on with a run."""
    return f"foretell train --out {shlex.quote(str(run.directory))} --resume auto"
