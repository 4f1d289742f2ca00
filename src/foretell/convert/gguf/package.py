"""The package `gguf`, which not everyone needs."""

from __future__ import annotations

from types import ModuleType

from foretell.errors import UsageError


def import_gguf() -> ModuleType:
    """The package, or one line on how to get it (`UsageError`)."""
    try:
        import gguf
    except ImportError:
        raise UsageError("--to gguf needs the extra 'gguf': pip install 'foretell[gguf]'") from None
    return gguf
