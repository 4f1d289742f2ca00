"""What the benchmarks share: interleaved timing, medians with their spread, ratios, and the machine they ran on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from foretell.device import multiplies_bfloat16

Run = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of a few measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        """As in `1,234 (1,200-1,260)`, with three digits at least: `0.98 (0.95-1.02)`."""
        digits = 2 if self.median < 10 else 1 if self.median < 100 else 0
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}-{self.high:,.{digits}f})"


def time_interleaved(runs: Mapping[Key, Run], rounds: int) -> dict[Key, list[float]]:
    """Seconds of every call, made in turns (A B C A B C ...): a machine that slows down slows all of them alike.

    A first round is not counted; it fills caches and compiles what is to be compiled.
    """
    seconds: dict[Key, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            elapsed = time.perf_counter() - started
            if number > 0:
                seconds[name].append(elapsed)
    return seconds


def rate(work: float, seconds: Iterable[float]) -> Spread:
    """Units of work a second, over calls that did `work` units each."""
    return Spread.of(work / one for one in seconds)


def speed_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times as fast as theirs we are, round by round, from the seconds that both took."""
    return Spread.of(their / our for our, their in zip(ours, theirs, strict=True))


def describe_machine() -> dict[str, Any]:
    """The processor and how much of it is used."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bfloat16_instructions": multiplies_bfloat16(torch.device("cpu")),
        "system": platform.system(),
    }


def cpu_model() -> str:
    """The name of the processor, as the system tells it."""
    if sys.platform == "darwin":
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe_versions(*packages: str) -> dict[str, str | None]:
    """Installed versions of Python, torch, foretell and some packages; None where one is not installed."""
    return {
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "foretell", *packages)},
    }


def version_of(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def heading(machine: Mapping[str, Any], versions: Mapping[str, str | None]) -> str:
    """Machine and versions, in two lines."""
    bfloat16 = "with" if machine["bfloat16_instructions"] else "without"
    cores = f"cores: {machine['cores']}, threads: {machine['threads']}"
    installed = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    return f"{machine['cpu']} {bfloat16} bfloat16 instructions; {cores}\n{installed}"


def matrix_rate(sizes: Sequence[int] = (1024, 2048, 4096), seconds: float = 1.0) -> float:
    """FLOP/s of the fastest square product in bfloat16: what the machine gives at best."""
    best = 0.0
    for size in sizes:
        left, right = torch.randn(2, size, size).bfloat16()
        started, count = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            one = time.perf_counter()
            _ = left @ right
            elapsed, count = time.perf_counter() - one, count + 1
            best = max(best, 2 * size**3 / elapsed) if count > 1 else best  # the first is slower
    return best


def note(text: str) -> None:
    """A line on stderr, for all that is not a result."""
    print(text, file=sys.stderr, flush=True)
