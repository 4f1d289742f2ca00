"""foretell: a decoder (GPT) that you can see through.

    import foretell

    model = foretell.train("my.txt", steps=500)
    model = foretell.load("runs/my")                     # or "primer", which is part of the package
    print(foretell.generate(model, "Once upon a time"))
    logits = model(model.encode("Once upon a time"))     # (1, T, V)

`__init__.pyi` lists the public names, for type checkers too; docs/python.md shows each of them. They are imported when
they are first used, so that `import foretell` takes no time. The import prepares torch's import (`openmp.py`).
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from foretell import openmp

IMPORT = re.compile(r"^from (\S+) import (\w+) as (\w+)$", re.MULTILINE)
_waits_shortly = openmp.install()


@cache
def homes() -> dict[str, tuple[str, str]]:
    """Each public name with its module and its name there."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: (module, name_there) for module, name_there, name in IMPORT.findall(stub)}


def __getattr__(name: str) -> Any:
    global _waits_shortly
    if name == "__version__":
        from importlib.metadata import version

        return version("foretell")
    if name == "__all__":
        return sorted(homes())
    if name not in homes():
        raise AttributeError(f"module 'foretell' has no attribute '{name}'")
    if name in ("load", "train", "finetune") and not _waits_shortly:
        openmp.logger.warning(openmp.TOO_LATE)
        _waits_shortly = True
    module, name_there = homes()[name]
    return getattr(importlib.import_module(module), name_there)


def __dir__() -> list[str]:
    return [*homes(), "__all__", "__version__", "__doc__", "__file__", "__name__", "__path__"]
