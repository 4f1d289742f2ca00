"""The place of this process among others, from the variables of torchrun or Slurm. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from foretell.errors import UsageError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Launch:
    """The ranks of a process: among all processes of a training, and on its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_first(self) -> bool:
        """True for the process that writes, logs and decides."""
        return self.rank == 0


def read_launch() -> Launch:
    """The launch of this process; a single process if WORLD_SIZE is not set."""
    if "WORLD_SIZE" not in os.environ:
        return Launch()
    values = {name: os.environ.get(name, "") for name in VARIABLES}
    values["LOCAL_RANK"] = values["LOCAL_RANK"] or "0"
    values["LOCAL_WORLD_SIZE"] = values["LOCAL_WORLD_SIZE"] or values["WORLD_SIZE"]
    for name, value in values.items():
        if not value.isascii() or not value.isdigit():
            raise UsageError(
                f"WORLD_SIZE is set and {name} is {value or 'missing'!r}; start several processes with torchrun, or "
                "unset WORLD_SIZE"
            )
    launch = Launch(*(int(values[name]) for name in VARIABLES))
    for name, rank, size in (
        ("", launch.rank, launch.world_size),
        ("LOCAL_", launch.local_rank, launch.local_world_size),
    ):
        if rank >= size:
            raise UsageError(f"{name}RANK {rank} is not below {name}WORLD_SIZE {size}; start with torchrun")
    return launch


def is_follower() -> bool:
    """True for a process that leaves writing and logging to the first one."""
    return os.environ.get("RANK", "0") != "0" and os.environ.get("WORLD_SIZE", "1") != "1"
