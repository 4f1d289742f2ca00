"""The recorded values of a trace: their memory budget, and their file."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.address import ONE_ROW
from foretell.model.decoder import HEAD
from foretell.model.structure import Structure, Value
from foretell.paths import starred
from foretell.storage.files import TRACE_FORMAT, new_files
from foretell.storage.safetensors_files import save_tensors
from foretell.typesetting.numbers import format_bytes

LARGEST_SHOWN = 3


class BudgetError(UsageError):
    """The recorded values would exceed the memory budget."""

    def __init__(self, problem: str, advice: str):
        super().__init__(f"{problem}. {advice}")
        self.problem = problem

    def for_server(self) -> str:
        advice = "ask for fewer, or start the server with a larger --look-budget, which the texts of a request share"
        return f"{self.problem}; {advice}"


class Budget:
    """Counts bytes by name and raises `BudgetError` when the limit would be exceeded."""

    def __init__(self, limit: int):
        self.limit = limit
        self.held: Counter[str] = Counter()  # bytes by name, with * for layer numbers

    @property
    def total(self) -> int:
        return sum(self.held.values())

    def add(self, name: str, value: Tensor) -> None:
        """Count a value that is about to be stored."""
        self.held[starred(name)] += value.nbytes
        self.check(self.held)

    def check(self, needed: Counter[str]) -> None:
        """Raise `BudgetError`, naming the largest values, if the sum of `needed` exceeds the limit."""
        total = sum(needed.values())
        if total <= self.limit:
            return
        largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in needed.most_common(LARGEST_SHOWN))
        raise BudgetError(
            f"the trace needs {format_bytes(total)} or more and may hold {format_bytes(self.limit)}; "
            f"largest: {largest}",
            "Select fewer names, give a shorter text, or (in Python) raise budget_bytes",
        )

    def foresee(self, values: Iterable[Value], structure: Structure, ids: Tensor, element_bytes: int) -> None:
        """Estimate the memory of a pass over ids (B, T), and refuse it before it starts if that exceeds the limit."""
        needed = Counter(self.held)
        for value in values:
            needed[starred(value.name)] += least_elements(value, structure, ids) * element_bytes
        self.check(needed)


def least_elements(value: Value, structure: Structure, ids: Tensor) -> int:
    """A lower bound of the elements of a value in a pass over ids (B, T).

    Cached keys and logits are not counted, because a caller may request the logits of a few positions only. For a value
    with axes for both text and memory, one memory token is counted.
    """
    if value.module.partition(".")[0] == HEAD:
        return 0
    if structure.memory_axes(value.name) == "S":
        value = dataclasses.replace(value, dims=tuple(dim for dim in value.dims if dim != "S"))
    rows, length = ids.shape
    is_per_row = any("B" in dim for dim in value.dims) and value.reads != ONE_ROW
    return structure.count_elements(value.dims, length) * (rows if is_per_row else 1)


def element_bytes(dtype: torch.dtype, device: torch.device) -> int:
    """A lower bound of the bytes per element; under autocast, values may be smaller than in the model's precision."""
    is_smaller = torch.is_autocast_enabled(device.type)
    return min(dtype.itemsize, torch.get_autocast_dtype(device.type).itemsize if is_smaller else dtype.itemsize)


class RecordedValues:
    """Values by name and call index. Tensors are detached and counted; masks are stored unchanged."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self._calls: defaultdict[str, dict[int, Any]] = defaultdict(dict)

    def add(self, name: str, value: Any) -> int:
        """Store the value of the next call and return that call's index."""
        call = len(self._calls[name])
        self.put(name, call, value)
        return call

    def put(self, name: str, call: int, value: Any) -> None:
        if isinstance(value, Tensor):
            value = owned(value)
            self.budget.add(name, value)
        self._calls[name][call] = value

    def calls(self, name: str) -> list[Any]:
        return [value for _, value in sorted(self._calls.get(name, {}).items())]

    def names(self) -> list[str]:
        return list(self._calls)


def owned(value: Tensor) -> Tensor:
    """The detached value; copied if it is a view into larger storage.

    Keys and values in a cache are such views: later calls write into the same storage.
    """
    detached = value.detach()
    return detached.clone() if detached.untyped_storage().nbytes() > detached.nbytes else detached


def save_values(
    values: Iterable[tuple[str, list[Tensor], bool]], path: Path, budget: Budget, metadata: Mapping[str, str]
) -> list[str]:
    """Write values to a safetensors file atomically, and return their keys.

    path: from `check_target`. values: name, value of each call, and whether they are derived; the metadata lists the
    keys of derived ones.
    """
    tensors: dict[str, Tensor] = {}
    derived: list[str] = []
    for name, calls, is_derived in values:
        for call, value in enumerate(calls):
            key = name if len(calls) == 1 else f"{name}#{call}"
            budget.add(name, value)
            # Identity modules give one tensor two names, which safetensors refuses, so each is copied
            tensors[key] = value.detach().to("cpu", copy=True).contiguous()
            derived += [key] if is_derived else []
    with new_files(path) as (temporary,):
        save_tensors(temporary, tensors, {"format": TRACE_FORMAT, "derived": json.dumps(derived), **metadata})
    return list(tensors)
