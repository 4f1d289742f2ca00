"""Early ends of a training: signals and failures, reported in one line with the last checkpoint and resume command."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from foretell.config.training import TrainingConfig
from foretell.distributed.world import World, current_world, is_lost_peer
from foretell.errors import (
    CheckpointError,
    DivergedError,
    ForetellError,
    Interrupted,
    OutputError,
    PeerError,
    TrainingError,
    end_by_signal,
    hangup_signals,
)
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.lock import held
from foretell.runs.run import Run, is_run
from foretell.session.commands import resume_command
from foretell.training.loop import Progress

AFTER_THE_LAST_STEP = "after the last step, before the run was complete"
# Messages on a CPU, on a GPU and from libraries, because torch has no common error class for this
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc", "ALLOC_FAILED")

logger = logging.getLogger(__name__)


class StopSignal:
    """While open, records the first signal instead of ending the process; `number` is None until then."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, signal.Handlers | signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers in Python
            for number in (signal.SIGINT, signal.SIGTERM, *hangup_signals()):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            # A display that is writing when the signal arrives refuses a second line (RuntimeError); training continues
            with suppress(OSError, RuntimeError, ValueError):
                logger.warning("stopping after this step; interrupt again to stop now")
        else:
            (signal.default_int_handler if number == signal.SIGINT else end_by_signal)(number, frame)

    @property
    def exit_code(self) -> int:
        """The exit code for a signal: 128 plus its number (SIGTERM's if there was none)."""
        return 128 + (self.number or signal.SIGTERM)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    )


@contextmanager
def explain_memory_errors() -> Iterator[None]:
    """Convert an out-of-memory error before the first step into a `TrainingError` with advice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            "out of memory before the first step; use a smaller --size, a lower --training.batch-size, or less text"
        ) from error


def lost_peer(world: World) -> PeerError:
    """The error for a lost connection to another process."""
    rank = world.failed_rank()
    if rank is None:
        return PeerError("a process of the training was killed, or its connection is lost")
    return PeerError(f"the process of rank {rank} has failed")


@contextmanager
def training_in(directory: Path) -> Iterator[World]:
    """Lock a run directory while the block trains in it; an error in the block ends all processes, with the reason."""
    world = current_world()
    try:
        with held(directory) if world.is_first else nullcontext(), explain_memory_errors():
            yield world
            world.wait()
    except Exception as error:
        if world.size == 1 or isinstance(error, Interrupted):
            raise
        raise announced(world, error) from error


def announced(world: World, error: Exception) -> Exception:
    """Send an error to the other processes and return it, or a `PeerError` if another process caused it."""
    if isinstance(error, PeerError):
        return error
    if not isinstance(error, ForetellError) and is_lost_peer(error):
        return lost_peer(world)
    message = error.for_command_line() if isinstance(error, ForetellError) else str(error)
    if not world.report(" ".join(message.split())):
        return PeerError(message, is_said=True)
    return error


@contextmanager
def explain_failures(run: Run, training: TrainingConfig, progress: Progress) -> Iterator[None]:
    """Add the last checkpoint and the resume command to errors of the disk, the memory or the optimization."""

    def ended(error: ForetellError) -> str:
        return f"{error.for_command_line()}; training ended after step {progress.step:,}, {how_to_resume(run)}"

    try:
        yield
    except (OutputError, PeerError) as error:
        raise type(error)(ended(error)) from error
    except DivergedError as error:
        raise DivergedError(f"{error.for_command_line()}; {advice_on_divergence(run)}") from error
    except CheckpointError as error:  # non-finite logits in an evaluation or sample
        if progress.step == 0:
            raise
        raise DivergedError(f"step {progress.step}: {error.for_command_line()}; {advice_on_divergence(run)}") from error
    except (MemoryError, RuntimeError) as error:
        if is_lost_peer(error):
            raise PeerError(ended(lost_peer(current_world()))) from error
        if not is_out_of_memory(error):
            raise
        advice = how_to_resume_with_less_memory(run, training)
        raise TrainingError(f"out of memory after step {progress.step:,}, {advice}") from error


@contextmanager
def explain_stop(when: str, run: Run | None = None) -> Iterator[None]:
    """Add time and resume command to an interruption between steps; without a run, the advice is to start again."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        code = error.exit_code if isinstance(error, Interrupted) else 128 + signal.SIGINT
        how = "run the same command again" if run is None else f"resume with: {resume_command(run)}"
        raise Interrupted(f"stopped {when}; {how}", code) from None


def advice_on_divergence(run: Run) -> str:
    """The last checkpoint, and how to start again."""
    return f"{what_is_saved(run)}. Start again with a lower --training.learning-rate and another --out"


def how_to_resume(run: Run, option: str = "") -> str:
    """The last checkpoint, and the command that resumes from it."""
    if not is_run(run.directory):
        return "there is nothing to resume from"
    return f"{what_is_saved(run)}; resume with: {resume_command(run)}{option}"


def what_is_saved(run: Run) -> str:
    """A phrase about the last checkpoint."""
    checkpoints = list_checkpoints(run.checkpoints)
    return f"the checkpoint of step {checkpoints[-1].step:,} is good" if checkpoints else "there is no checkpoint yet"


def how_to_resume_with_less_memory(run: Run, training: TrainingConfig) -> str:
    """Advice to use more micro-batches, or to start again if a micro-batch is already one row."""
    parts = training.gradient_accumulation_steps
    if parts < training.batch_size:
        option = f" --training.gradient-accumulation-steps {next_divisor(training.batch_size, parts)}"
        return how_to_resume(run, option)
    return (
        f"{what_is_saved(run)}; each micro-batch is one row already, so start again with a smaller --size or "
        "--model.context-length"
    )


def next_divisor(number: int, above: int) -> int:
    """The smallest divisor that is at least twice `above`, or the number itself."""
    return next(divisor for divisor in range(min(2 * above, number), number + 1) if number % divisor == 0)
