"""Beginning a training in a run directory, on one process or on many: the first one writes, the others follow it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from foretell.distributed.world import World, current_world, is_lost_peer
from foretell.errors import ForetellError, Interrupted, PeerError
from foretell.runs.checkpoint import Checkpoint, list_checkpoints
from foretell.runs.lock import held
from foretell.runs.run import FollowedRun, Run, is_run, is_unfinished
from foretell.session.failures import explain_memory_errors, lost_peer
from foretell.session.task import Task

AnyTask = TypeVar("AnyTask", bound=Task)

logger = logging.getLogger(__name__)


@contextmanager
def training_in(directory: Path) -> Iterator[World]:
    """Lock a run directory while the block trains in it; an error in it ends all processes, each with its reason."""
    world = current_world()
    try:
        with held(directory) if world.is_first else nullcontext(), explain_memory_errors():
            yield world
            world.wait()
    except Exception as error:
        if world.size == 1 or isinstance(error, Interrupted):
            raise
        raise told(world, error) from error


def told(world: World, error: Exception) -> Exception:
    """The error of this process, once the others know of it; a `PeerError` where it follows from that of another."""
    if isinstance(error, PeerError):
        return error
    if not isinstance(error, ForetellError) and is_lost_peer(error):
        return lost_peer(world)
    if not world.report(" ".join(str(error).split())):
        return PeerError(str(error), is_said=True)
    return error


def is_resumed(directory: Path, described: list[str], resume: bool) -> bool:
    """True if a run is to be resumed. With `resume`, what a killed process left before its first step is removed."""

    def decide() -> bool:
        if resume and is_unfinished(directory):
            Run.clear_unfinished(directory, described)
            logger.info(f"starting    {directory} again: it was interrupted before its first step")
        return resume and is_run(directory)

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


def open_run(directory: Path) -> Run:
    """An existing run, in which only the first process writes."""
    return (Run if current_world().is_first else FollowedRun).open(directory)


def same_task(make: Callable[[], AnyTask], remake: Callable[[dict[str, Any]], AnyTask]) -> AnyTask:
    """The task that the first process makes; the others make it again from its record."""
    world = current_world()
    if world.is_first:
        task = make()
        world.decide(task.record)
        return task
    return remake(world.decide(dict))


def last_checkpoint(run: Run) -> Checkpoint | None:
    """The newest intact checkpoint, as the first process finds it; None if there is none yet."""
    name = current_world().decide(
        lambda: run.last_intact().directory.name if list_checkpoints(run.checkpoints) else None
    )
    return None if name is None else Checkpoint(run.checkpoints / name)
