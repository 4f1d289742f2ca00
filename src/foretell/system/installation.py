"""Versions of the installation, its extras, and the processor, without importing torch."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from textwrap import fill
from typing import Any

LIBRARIES = ("torch", "numba", "numpy", "tokenizers")
# Requirements of an extra, without those that are other extras
EXTRA = re.compile(r"(?P<package>[\w.-]+)(?![\w.-]|\[).*;.*extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")
NOT_FOR_USERS = {"all", "dev", "docs", "oracles"}
# The processor features that decide kernels or precisions, by Linux's names
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "i8mm", "bf16", "sve")


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_info() -> dict[str, str]:
    """The fields of Linux's /proc/cpuinfo with their first values; empty on other systems."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return dict(reversed(pairs))


def cpu_model() -> str:
    """The name of the processor, as the operating system reports it."""
    if sys.platform == "darwin":
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return cpu_info().get("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """The features of FEATURES that the processor has; empty if the system does not list them."""
    info = cpu_info()
    names = {*info.get("flags", "").split(), *info.get("Features", "").split()}
    return [name for name in FEATURES if name in names]


def extras() -> dict[str, bool]:
    """The optional features of this package, and whether each is installed."""
    packages = defaultdict(list)
    for requirement in requires("foretell") or []:
        if (match := EXTRA.match(requirement)) and match["extra"] not in NOT_FOR_USERS:
            packages[match["extra"]].append(match["package"])
    return {extra: all(map(version_of, names)) for extra, names in sorted(packages.items())}


def describe_installation() -> dict[str, Any]:
    """Versions, processor and extras, as plain values."""
    return {
        "foretell": version_of("foretell"),
        "python": platform.python_version(),
        **{name: version_of(name) for name in LIBRARIES},
        "system": platform.platform(),
        "cpu": cpu_model(),
        "features": cpu_features(),
        "cores": os.cpu_count(),
        "extras": extras(),
    }


def installation_text() -> str:
    """Describe the installation in lines of text, the version first."""
    facts = describe_installation()
    libraries = [f"{name} {facts[name] or 'missing'}" for name in LIBRARIES]
    has = [name for name, is_installed in facts["extras"].items() if is_installed]
    lacks = [name for name in facts["extras"] if name not in has]
    lines = {
        "python": f"{facts['python']}; {', '.join(libraries)}",
        "system": facts["system"],
        "cpu": f"{facts['cpu']}, {facts['cores']} cores",
        "features": " ".join(facts["features"]) or "unknown",
        "extras": ", ".join(has) or "none",
        "missing": ", ".join(lacks) or "none",
    }
    listed = (fill(f"{name:<10}{text}", 80, subsequent_indent=" " * 10) for name, text in lines.items())
    return "\n".join([f"foretell {facts['foretell']}", *listed])
