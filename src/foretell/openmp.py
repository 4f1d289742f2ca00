"""The waiting policy of OpenMP's threads, which can be chosen only while torch is imported."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

logger = logging.getLogger(__name__)

POLICY = "OMP_WAIT_POLICY"
SETTINGS = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # each sets how threads wait; a user's choice is kept
TOO_LATE = (
    "torch was imported before foretell, so OpenMP's threads spin while they wait, which can make training on a shared "
    "CPU several times slower; import foretell first, or set OMP_WAIT_POLICY=passive"
)


class PassiveWaiting(MetaPathFinder):
    """Makes the first import of torch read OMP_WAIT_POLICY=passive; the environment is restored after it.

    OpenMP's threads then sleep while they wait, instead of spinning. With another busy program on two cores,
    spinning made training of the tiny size more than five times slower. The variable is read only when the library is
    loaded, and torch loads it.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None and not is_chosen():
            import_with_policy(spec.loader)
        return spec


def import_with_policy(loader: Loader) -> None:
    """Let a loader run its module with the policy in the environment, this once."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the class's own again
        os.environ[POLICY] = "passive"
        try:
            run(module)
        finally:
            os.environ.pop(POLICY, None)

    loader.exec_module = exec_module


def is_chosen() -> bool:
    """True if the environment already sets how threads wait."""
    return any(setting in os.environ for setting in SETTINGS)


def install() -> bool:
    """Prepare the import of torch; False if torch is imported already."""
    if "torch" in sys.modules:
        return is_chosen()
    sys.meta_path.insert(0, PassiveWaiting())
    return True
