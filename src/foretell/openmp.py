"""How long waiting OpenMP threads spin. This can be set only when their library is loaded.

A thread that sleeps starts a loop 15 to 50 microseconds late, and a training step of a small model has thousands of
loops. A thread that spins takes time from other programs. So threads spin for about a tenth of a millisecond, then
sleep: docs/performance.md has the measurements.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

logger = logging.getLogger(__name__)

SPINS = {"GOMP_SPINCOUNT": "2000"}  # rounds: about 0.1 milliseconds, several gaps between two loops; GNU's library
WAITING = {**SPINS, "OMP_WAIT_POLICY": "passive"}  # the policy is read by LLVM's and Intel's; GNU's prefers the rounds
SETTINGS = (*WAITING, "KMP_BLOCKTIME")  # each sets how threads wait; a user's choice is kept
TOO_LATE = (
    "torch was imported before foretell, so OpenMP's threads spin while they wait, which can make training on a shared "
    "CPU several times slower; import foretell first, or set GOMP_SPINCOUNT=2000"
)


class ShortWaiting(MetaPathFinder):
    """Runs the first import of torch, which loads OpenMP, under `short_waiting`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            import_with_short_waiting(spec.loader)
        return spec


def import_with_short_waiting(loader: Loader) -> None:
    """Make a loader execute its module once with the settings in the environment."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # restores the method of the class
        with short_waiting():
            run(module)

    loader.exec_module = exec_module


@contextmanager
def short_waiting(settings: Mapping[str, str] = WAITING) -> Iterator[None]:
    """In the block, the environment has these settings, unless the user has set one of them."""
    settings = {} if is_chosen() else settings
    os.environ.update(settings)
    try:
        yield
    finally:
        for setting in settings:
            os.environ.pop(setting, None)


def is_chosen() -> bool:
    """True if the environment already sets how threads wait."""
    return any(setting in os.environ for setting in SETTINGS)


def install() -> bool:
    """Prepare the import of torch; False if torch is imported already."""
    if "torch" in sys.modules:
        return is_chosen()
    sys.meta_path.insert(0, ShortWaiting())
    return True
