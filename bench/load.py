"""Time and memory to load a Hugging Face directory, for GPT-2 124M's shape with random weights.

    python bench/load.py           every precision on disk and in memory, 5 loads each: about a minute
    python bench/load.py --quick   float32 and bfloat16 in memory, 3 loads each, from float32 on disk

Each load runs in a new process, which has imported everything before the clock starts. Memory is the growth of the
peak resident set since then, mapped files included, after every page of the weights was touched, relative to the size
of the weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import Spread, note
from rich.console import Console

from foretell.config.model import ModelConfig
from foretell.convert.export import write_huggingface
from foretell.convert.families import choose_family
from foretell.convert.huggingface import load_huggingface
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text import train_tokenizer

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
LIMITS = {"seconds": 2.0, "memory": 1.3}  # the targets
FIGURES = ("seconds", "cpu_seconds", "memory")
STATUS = Path("/proc/self/status")
KIBIBYTE = 1024
PAGE_ELEMENTS = 1024  # a stride that touches every page of 4,096 bytes


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser("Time and memory to load a Hugging Face directory, on the CPU.", "fewer precisions and loads")
    parser.add_argument("--one", nargs=2, metavar=("DIRECTORY", "DTYPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        directory, dtype = arguments.one
        print(json.dumps(load_once(Path(directory), DTYPES[dtype])))
        return
    report = {**start_report("load", "safetensors"), "quick": arguments.quick, "limits": LIMITS}
    print_report({**report, "rows": measure(arguments.quick)}, print_tables, as_json=arguments.json)


def measure(quick: bool) -> list[dict[str, Any]]:
    """One row per pair of precisions."""
    stored, wanted = (["float32"], ["float32", "bfloat16"]) if quick else (list(DTYPES), ["float32", "bfloat16"])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for on_disk in stored:
            directory = Path(folder) / on_disk
            write_model(directory, preset_config("gpt2"), DTYPES[on_disk])
            for in_memory in wanted:
                note(f"{on_disk} on disk, {in_memory} in memory")
                loads = [load_in_new_process(directory, in_memory) for _ in range(3 if quick else 5)]
                rows.append(make_row(on_disk, in_memory, loads))
    return rows


def write_model(directory: Path, config: ModelConfig, dtype: torch.dtype) -> None:
    """A directory with random weights and a small tokenizer."""
    directory.mkdir()
    model = LanguageModel(make_decoder(config, seed=1), train_tokenizer("bytes", ["a"]))
    write_huggingface(directory, model, choose_family(config), dtype)


def load_in_new_process(directory: Path, dtype: str) -> dict[str, float]:
    """The result of `load_once` in a new process."""
    command = [sys.executable, __file__, "--one", str(directory), dtype]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def load_once(directory: Path, dtype: torch.dtype) -> dict[str, float]:
    """Wall-clock and CPU seconds to load, and the growth of memory relative to the size of the weights."""
    before = peak_bytes()
    started, working = time.perf_counter(), time.process_time()
    model = load_huggingface(directory, dtype=dtype)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - working
    for parameter in model.decoder.parameters():
        parameter.detach().flatten()[::PAGE_ELEMENTS].sum()
    size = sum(parameter.nbytes for parameter in model.decoder.parameters())
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": (peak_bytes() - before) / size, "bytes": size}


def peak_bytes() -> int:
    """The peak resident set. Linux counts the parent process in `ru_maxrss`, but not in VmHWM."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * KIBIBYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_row(on_disk: str, in_memory: str, loads: list[dict[str, float]]) -> dict[str, Any]:
    """The figures of one pair of precisions."""
    figures = {name: Spread.of(load[name] for load in loads) for name in FIGURES}
    met = all(figures[name].median <= limit for name, limit in LIMITS.items())
    return {
        "on_disk": on_disk,
        "in_memory": in_memory,
        "bytes": loads[0]["bytes"],
        **{name: asdict(spread) for name, spread in figures.items()},
        "met": met,
    }


def print_tables(console: Console, report: BenchmarkReport) -> None:
    columns = ("on disk", "in memory", "MB", "seconds", "CPU seconds", "memory", "met")
    table = make_table(columns, words=columns[:2], title="GPT-2 124M: under 2 s, memory under 1.3 times the weights")
    for row in report["rows"]:
        seconds, cpu_seconds, memory = (Spread(**row[name]) for name in FIGURES)
        figures = str(seconds), f"{cpu_seconds.median:.2f}", f"{memory.median:.2f}"
        size = f"{row['bytes'] / 1e6:.0f}"
        table.add_row(row["on_disk"], row["in_memory"], size, *figures, "yes" if row["met"] else "no")
    console.print(table)


if __name__ == "__main__":
    main()
