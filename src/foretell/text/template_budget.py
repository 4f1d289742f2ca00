"""What a rendering of an untrusted template may cost: one budget for all it does, and a time limit.

A unit is a loop step, a call, a character or an item of a list. Values are measured as if they were written out, so
that a list which holds the same list twice, 40 levels deep, costs as much as comparing or printing it would.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

BASE, PER_INPUT = 300_000, 50  # units for every rendering, and for each unit of its input
SECONDS = 5.0
MOST_LEVELS = 32  # of lists in lists
MOST_BITS = 64  # of an integer


class Budget:
    """The units that a rendering has left."""

    def __init__(self, units: int, seconds: float = SECONDS):
        self.left, self.deadline, self.seconds = units, time.monotonic() + seconds, seconds

    def spend(self, units: int) -> None:
        """Pay for something, before it is done where possible; raises SecurityError for what is too much."""
        self.left -= units
        if self.left < 0:
            raise SecurityError("it loops too often or makes texts or lists that are too large")
        if time.monotonic() > self.deadline:
            raise SecurityError(f"it takes longer than {self.seconds:g} seconds")


CURRENT: ContextVar[Budget] = ContextVar("budget of the rendering")


def spend(units: int = 1) -> None:
    """Pay out of the budget of the current rendering."""
    CURRENT.get().spend(units)


def steps(items: Iterable[Any]) -> Iterator[Any]:
    """The items of a loop, each of which is paid for."""
    for item in items:
        spend()
        yield item


def measured(value: Any) -> Any:
    """A value that was just made, after paying for it; views and generators as lists."""
    if isinstance(value, Iterable) and not isinstance(value, str | list | tuple | dict | Namespace | Undefined):
        value = list(steps(value))
    pay_for(value)
    return value


def plain(value: Any) -> Any:
    """A value that will be written out, after paying for it; namespaces, which can hold themselves, are refused."""
    value = measured(value)
    if isinstance(value, Namespace):
        raise SecurityError("it writes out a namespace; write one of its values")
    for item in [*value.keys(), *value.values()] if isinstance(value, dict) else value if is_list(value) else ():
        plain(item)
    return value


def is_list(value: Any) -> bool:
    """True for a list or a tuple."""
    return isinstance(value, list | tuple)


def pay_for(value: Any, level: int = 0) -> None:
    """Pay for a value and all in it. Anything but plain data and namespaces is refused."""
    if level > MOST_LEVELS:
        raise SecurityError(f"it nests values more than {MOST_LEVELS} levels deep")
    spend(1 + len(value) if isinstance(value, str) else 1)
    if isinstance(value, dict):
        for key, item in value.items():
            pay_for(key, level + 1)
            pay_for(item, level + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            pay_for(item, level + 1)
    elif isinstance(value, int):
        check_number(value)
    elif not isinstance(value, str | float | None | Undefined | Namespace):
        raise SecurityError(f"it uses {type(value).__name__!r} as a value")


def check_number(value: Any) -> None:
    """Refuse an integer so large that arithmetic with it takes time."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise SecurityError("it computes with numbers that are too large")


def size_of(value: Any) -> int:
    """The units of plain data from JSON."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, Mapping):
        return 1 + sum(size_of(key) + size_of(item) for key, item in value.items())
    return 1 + sum(map(size_of, value)) if isinstance(value, list | tuple) else 1
