"""`SessionState`: the part of a session that a training sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from foretell.distributed.world import World
from foretell.runs.run import Run
from foretell.session.reporter import Reporters
from foretell.session.task import Task
from foretell.training.loop import Progress

AnyTask = TypeVar("AnyTask", bound=Task)


@dataclass(eq=False)
class SessionState(Generic[AnyTask]):
    """The part of a session that a training sees before its first step and after its last; `Session` extends it."""

    run: Run
    task: AnyTask
    device: torch.device
    dtype: torch.dtype  # of matrix products
    progress: Progress
    reporter: Reporters
    world: World
