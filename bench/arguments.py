"""The command line of every benchmark: its shared options, and its result as tables or as one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import foretell  # isort: skip  # noqa: F401 - before torch, so that its threads wait as in the command line
import torch
from measure import Clock, describe_machine, describe_versions, heading
from rich.console import Console
from rich.table import Table

os.environ.setdefault("FORETELL_KERNELS", "wait")  # what is measured has its kernels compiled first
WIDTH = 80  # columns of the printed tables

BenchmarkReport = dict[str, Any]
PrintTables = Callable[[Console, BenchmarkReport], None]


def make_parser(description: str, quick: str, *, with_threads: bool = False) -> argparse.ArgumentParser:
    """A parser with --quick (`quick` is its help text), --json and, if `with_threads`, --threads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if with_threads:
        parser.add_argument("--threads", type=int, help="number of torch threads (default: torch's own choice)")
    return parser


def use_threads(threads: int | None) -> None:
    """Apply the value of --threads; None or 0 leaves torch's own choice."""
    if threads:
        torch.set_num_threads(threads)


def add_cpu_time(parser: argparse.ArgumentParser) -> None:
    """Add --cpu-time, which sets the clock of the benchmark."""
    parser.add_argument(
        "--cpu-time",
        action=UseCpuTime,
        nargs=0,
        default=False,
        help="measure CPU time, where other work runs; with --threads 1",
    )


class UseCpuTime(argparse.Action):
    """Let the benchmark's clock measure the CPU time of this process."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        namespace.cpu_time, Clock.now = True, time.process_time


def start_report(benchmark: str, *packages: str) -> BenchmarkReport:
    """The first entries of a report: the benchmark, the machine, and the versions of torch, foretell and `packages`."""
    return {"benchmark": benchmark, "machine": describe_machine(), "versions": describe_versions(*packages)}


def print_report(report: BenchmarkReport, print_tables: PrintTables, *, as_json: bool) -> None:
    """Print a report to stdout: one JSON object, or the environment followed by the benchmark's tables."""
    if as_json:
        print(json.dumps(report))
        return
    console = Console(highlight=False, markup=False, width=WIDTH)  # `foretell[dev]` is not markup
    console.print(heading(report["machine"], report["versions"]))
    print_tables(console, report)


def make_table(columns: Sequence[str], *, words: Collection[str] = (), title: str | None = None) -> Table:
    """A table without lines. Columns named in `words` are aligned to the left, the others to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right")
    return table
