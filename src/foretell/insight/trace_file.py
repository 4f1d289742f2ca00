"""A trace on disk: safetensors under the values' names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from foretell.files import TEMPORARY, check_target
from foretell.insight.budget import Budget
from foretell.language_model import save_tensors

FORMAT = "foretell.trace/1"


class Recorded(Protocol):
    """What there is to write."""

    def names(self) -> list[str]: ...

    def calls(self, name: str) -> list[Tensor]: ...

    def is_derived(self, name: str) -> bool: ...


def save_values(recorded: Recorded, path: Path, budget: Budget, metadata: Mapping[str, str]) -> list[str]:
    """Write every value, and which of them are derived; returns the keys. The file appears whole or not at all."""
    path = check_target(path)
    tensors: dict[str, Tensor] = {}
    derived: list[str] = []
    for name in recorded.names():
        for key, value in keyed(name, recorded.calls(name)).items():
            budget.add(name, value)
            # A copy, since safetensors refuses two names for one piece of memory, which identity modules bring about
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
    """A name's values by key: the name itself, or `name#0`, `name#1` where there are several."""
    if len(values) == 1:
        return {name: values[0]}
    return {f"{name}#{number}": value for number, value in enumerate(values)}
