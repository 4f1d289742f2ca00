"""foretell: a decoder (GPT) that you can see through.

    import foretell

    model = foretell.train("my.txt", steps=500)
    model = foretell.load("runs/my")                     # or "primer", which is part of the package
    print(foretell.generate(model, "Once upon a time"))
    logits = model(model.encode("Once upon a time"))     # (1, T, V)

`__init__.pyi` lists the public names, for type checkers too; docs/python.md shows each of them. They are imported when
they are first used, so that `import foretell` takes no time.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

IMPORT = re.compile(r"^from (\S+) import (\w+) as (\w+)$", re.MULTILINE)

# How OpenMP's threads wait between two loops. Its library reads this when torch or numba loads it. A thread that sleeps
# starts a loop 15 to 50 microseconds late, and a training step of a small model has thousands of loops. A thread that
# spins takes time from other programs. So threads spin for about 0.1 milliseconds, then sleep: docs/performance.md has
# the measurements. GNU's library reads the number of rounds, LLVM's and Intel's read the policy.
_WAITING = {"GOMP_SPINCOUNT": "2000", "OMP_WAIT_POLICY": "passive"}
_TOO_LATE = (
    "torch was imported before foretell, so OpenMP's threads spin while they wait, which can make training on a shared "
    "CPU several times slower; import foretell first, or set GOMP_SPINCOUNT=2000"
)
_is_late = False
if not {*_WAITING, "KMP_BLOCKTIME"} & {*os.environ}:  # a user's choice is kept
    os.environ.update(_WAITING)
    _is_late = "torch" in sys.modules


@cache
def homes() -> dict[str, tuple[str, str]]:
    """Each public name with its module and its name there."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: (module, name_there) for module, name_there, name in IMPORT.findall(stub)}


def __getattr__(name: str) -> Any:
    global _is_late
    if name == "__version__":
        from importlib.metadata import version

        return version("foretell")
    if name == "__all__":
        return sorted(homes())
    if name not in homes():
        raise AttributeError(f"module 'foretell' has no attribute '{name}'")
    if name in ("load", "train", "finetune") and _is_late:
        logging.getLogger(__name__).warning(_TOO_LATE)
        _is_late = False
    module, name_there = homes()[name]
    return getattr(importlib.import_module(module), name_there)


def __dir__() -> list[str]:
    return [*homes(), "__all__", "__version__", "__doc__", "__file__", "__name__", "__path__"]
