"""Interleaved timing, medians with their spread, speed ratios, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from foretell.system.device import multiplies_bfloat16
from foretell.system.installation import cpu_model, version_of

Run = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of a few measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of one or more values."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        """`median (low-high)` with at least three digits: `1,234 (1,200-1,260)`, `0.98 (0.95-1.02)`."""
        digits = 2 if self.median < 10 else 1 if self.median < 100 else 0
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}-{self.high:,.{digits}f})"


def time_interleaved(runs: Mapping[Key, Run], rounds: int) -> dict[Key, list[float]]:
    """Seconds of every call, with the calls made in turns (A B C A B C ...).

    Taking turns makes the ratios robust: when the machine slows down, it slows down all contenders. One warm-up round
    before the timed ones is not counted; it fills caches and triggers compilation.
    """
    seconds: dict[Key, list[float]] = {name: [] for name in runs}
    for round_index in range(rounds + 1):
        for name, run in runs.items():
            started = Clock.now()
            run()
            elapsed = Clock.now() - started
            if round_index > 0:
                seconds[name].append(elapsed)
    return seconds


def rate(work: float, seconds: Iterable[float]) -> Spread:
    """Units of work per second, from the seconds of calls that did `work` units each."""
    return Spread.of(work / elapsed for elapsed in seconds)


def speed_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times faster `ours` is than `theirs`, from the seconds of each round."""
    return Spread.of(their_seconds / our_seconds for our_seconds, their_seconds in zip(ours, theirs, strict=True))


class Clock:
    """The clock of a benchmark: the wall's, or with --cpu-time the CPU time of all threads of the process."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def describe_machine() -> dict[str, Any]:
    """The processor, its cores, and the number of threads that torch uses."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bfloat16_instructions": multiplies_bfloat16(torch.device("cpu")),
        "system": platform.system(),
    }


def describe_versions(*packages: str) -> dict[str, str | None]:
    """Versions of Python, torch, foretell and `packages`; None for a package that is not installed."""
    return {
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "foretell", *packages)},
    }


def heading(machine: Mapping[str, Any], versions: Mapping[str, str | None]) -> str:
    """The machine and the installed versions, in two lines."""
    bfloat16 = "with" if machine["bfloat16_instructions"] else "without"
    cores = f"cores: {machine['cores']}, threads: {machine['threads']}"
    installed = ", ".join(f"{package} {release}" for package, release in versions.items() if release)
    return f"{machine['cpu']} {bfloat16} bfloat16 instructions; {cores}\n{installed}"


def measure_peak_flops(sizes: Sequence[int] = (1024, 2048, 4096), seconds: float = 1.0) -> float:
    """FLOP/s of the fastest square bfloat16 matmul, an upper bound for this machine; `seconds` are spent per size."""
    return max(matmul_flops(size, seconds) for size in sizes)


def matmul_flops(size: int, seconds: float) -> float:
    """FLOP/s of the fastest of the bfloat16 matmuls (size, size) that fit in `seconds`."""
    left, right = torch.randn(2, size, size).bfloat16()
    _ = left @ right  # the first call is slower
    best, deadline = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = Clock.now()
        _ = left @ right
        best = max(best, 2 * size**3 / (Clock.now() - started))
    return best


def note(text: str) -> None:
    """Print a line of progress to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)
