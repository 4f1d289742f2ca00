"""What a trace has recorded: for each name the values of its calls, in order."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import Tensor

from foretell.insight.budget import Budget


class Values:
    """Values by name and number of the call. Masks are kept as they are; tensors are detached and counted."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self._calls: defaultdict[str, dict[int, Any]] = defaultdict(dict)

    def add(self, name: str, value: Any) -> int:
        """Keep the value of one more call, and return that call's number."""
        call = len(self._calls[name])
        self.put(name, call, value)
        return call

    def put(self, name: str, call: int, value: Any) -> None:
        """Keep the value of a call."""
        if isinstance(value, Tensor):
            value = owned(value)
            self.budget.add(name, value)
        self._calls[name][call] = value

    def calls(self, name: str) -> list[Any]:
        """The values of all calls, in order; none where there was no call."""
        return [value for _, value in sorted(self._calls.get(name, {}).items())]

    def names(self) -> list[str]:
        """All names with a value."""
        return list(self._calls)


def owned(value: Tensor) -> Tensor:
    """A value that stays as it is: what lies inside something larger is copied out.

    Keys and values in a cache are such: later tokens are written beside them, and padding over what was padding.
    """
    detached = value.detach()
    return detached.clone() if detached.untyped_storage().nbytes() > detached.nbytes else detached
