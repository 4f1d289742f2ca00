"""The report beside an export: its name, its format, and the files that it vouches for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foretell.errors import OutputError
from foretell.files import sha256

REPORT, FORMAT = "export-report.json", 1


def check_target(target: Path) -> None:
    """Refuse to write over anything."""
    if target.is_symlink() or target.exists():
        raise OutputError(f"{target} exists; give another TARGET")


def describe_files(files: Iterable[Path]) -> dict[str, Any]:
    """Size and hash of each file, by its name."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(files)}
