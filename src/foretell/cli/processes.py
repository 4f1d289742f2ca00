"""Decisions that a verb takes once for all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from foretell.distributed.launch import read_launch

Value = TypeVar("Value")


def decided(make: Callable[[], Value]) -> Value:
    """The JSON value that `make` returns in the first process; in another it might see a disk that has changed."""
    if read_launch().world_size == 1:
        return make()
    from foretell.distributed.world import current_world

    return current_world().decide(make)
