"""What a verb does once for many processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from foretell.distributed.launch import read_launch

Value = TypeVar("Value")


def decided(make: Callable[[], Value]) -> Value:
    """What the first process makes, a value that JSON can hold: another one may find the disk changed."""
    if read_launch().world_size == 1:
        return make()
    from foretell.distributed.world import current_world

    return current_world().decide(make)
