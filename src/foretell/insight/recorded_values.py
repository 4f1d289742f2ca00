"""Recorded values: storage by name and call, the memory budget, and the file they are saved to."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.errors import UsageError
from foretell.files import TEMPORARY, check_target
from foretell.insight.derive import ATTENTION
from foretell.insight.points import Point
from foretell.paths import starred
from foretell.saved_model import save_tensors

DEFAULT_BYTES = 2 << 30
LARGEST_SHOWN = 3


class Budget:
    """Counts bytes by name and raises `UsageError` when the limit would be exceeded."""

    def __init__(self, limit: int):
        self.limit = limit
        self.held: Counter[str] = Counter()  # by name, with layer numbers as *

    @property
    def total(self) -> int:
        """Total bytes counted so far."""
        return sum(self.held.values())

    def add(self, name: str, value: Tensor) -> None:
        """Count a value that is about to be stored."""
        self.held[starred(name)] += value.nbytes
        self.check(self.held)

    def check(self, needed: Counter[str]) -> None:
        """Raise `UsageError`, naming the largest values, if the sum of `needed` exceeds the limit."""
        total = sum(needed.values())
        if total <= self.limit:
            return
        largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in needed.most_common(LARGEST_SHOWN))
        raise UsageError(
            f"the trace needs {format_bytes(total)} or more and may hold {format_bytes(self.limit)}; "
            f"largest: {largest}. Select fewer names, give a shorter text, or (in Python) raise budget_bytes"
        )

    def foresee(self, points: Iterable[Point], config: ModelConfig, ids: Tensor, element_bytes: int) -> None:
        """Estimate what a pass over ids (B, T) needs, and refuse it before it starts if that exceeds the limit."""
        widths = least_widths(config, ids.shape[1])
        needed = Counter(self.held)
        for point in points:
            needed[starred(point.name)] += ids.numel() * element_bytes * widths.get(width_name(point), 0)
        self.check(needed)


def width_name(point: Point) -> str:
    """The key of a point in `least_widths`: the last segment of its name, with three exceptions."""
    *parents, last = point.name.split(".")
    if last == "dropout" and parents[-1] == "core":
        return "weights"
    if last == "input":
        return parents[-1]
    return "block" if last.isdigit() else last


def least_widths(config: ModelConfig, length: int) -> dict[str, int]:
    """A lower bound of elements per token, by `width_name`.

    Cached keys are not counted, nor are logits: a caller may ask for those of a few positions only.
    """
    heads, groups = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
    stream = (
        *("embed", "token", "dropout", "block", "trunk", "norm", "attention_norm", "attention", "output"),
        *("attention_residual", "feedforward_norm", "feedforward", "down", "feedforward_residual"),
    )
    return {
        **dict.fromkeys(stream, config.width),
        **dict.fromkeys(("query", "query_norm", "core"), heads),
        **dict.fromkeys(("key", "key_norm", "value"), groups),
        **dict.fromkeys(("up", "gate", "activation"), config.feedforward_width),
        **dict.fromkeys(ATTENTION, config.num_heads * length),
    }


def element_bytes(weight: Tensor) -> int:
    """A lower bound of bytes per element: under autocast, values may be smaller than the weights."""
    kind = weight.device.type
    autocast = torch.get_autocast_dtype(kind).itemsize if torch.is_autocast_enabled(kind) else weight.itemsize
    return min(weight.itemsize, autocast)


def format_bytes(count: int) -> str:
    """`1.5 GiB`."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"


class RecordedValues:
    """Values by name and call index. Tensors are detached and counted; masks are stored as they are."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self._calls: defaultdict[str, dict[int, Any]] = defaultdict(dict)

    def add(self, name: str, value: Any) -> int:
        """Store the value of the next call and return that call's index."""
        call = len(self._calls[name])
        self.put(name, call, value)
        return call

    def put(self, name: str, call: int, value: Any) -> None:
        """Store the value of one call."""
        if isinstance(value, Tensor):
            value = owned(value)
            self.budget.add(name, value)
        self._calls[name][call] = value

    def calls(self, name: str) -> list[Any]:
        """The values of all calls, in order."""
        return [value for _, value in sorted(self._calls.get(name, {}).items())]

    def names(self) -> list[str]:
        """All names that have a value."""
        return list(self._calls)


def owned(value: Tensor) -> Tensor:
    """The detached value; copied if it is a view into larger storage.

    Keys and values in a cache are such views: later calls write into the same storage.
    """
    detached = value.detach()
    return detached.clone() if detached.untyped_storage().nbytes() > detached.nbytes else detached


FORMAT = "foretell.trace/1"


class Recorded(Protocol):
    """Source of values to save."""

    def names(self) -> list[str]: ...

    def calls(self, name: str) -> list[Tensor]: ...

    def is_derived(self, name: str) -> bool: ...


def save_values(recorded: Recorded, path: Path, budget: Budget, metadata: Mapping[str, str]) -> list[str]:
    """Write every value to a safetensors file atomically, list derived keys in its metadata, and return all keys."""
    path = check_target(path)
    tensors: dict[str, Tensor] = {}
    derived: list[str] = []
    for name in recorded.names():
        for key, value in keyed(name, recorded.calls(name)).items():
            budget.add(name, value)
            # Identity modules give one tensor two names, which safetensors refuses: so each is copied
            tensors[key] = value.detach().to("cpu", copy=True).contiguous()
            derived += [key] if recorded.is_derived(name) else []
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        save_tensors(temporary, tensors, {"format": FORMAT, "derived": json.dumps(derived), **metadata})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return list(tensors)


def keyed(name: str, values: list[Tensor]) -> dict[str, Tensor]:
    """The values of a name by file key: the name itself, or `name#0`, `name#1` if there are several calls."""
    if len(values) == 1:
        return {name: values[0]}
    return {f"{name}#{call}": value for call, value in enumerate(values)}
