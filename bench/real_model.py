"""One GGUF file in foretell and llama.cpp: tokens per second, the first token of a new process, and memory.

    python bench/real_model.py FILE.gguf           five rounds in turns: five to fifteen minutes
    python bench/real_model.py FILE.gguf --quick   two rounds

Both programs read the same file, have the same threads and continue the same random ids greedily. `answer` is a whole
answer of 64 tokens to a prompt of 32; `batch_N` and `after_2000` are timed from the first new token to the last,
`read_N` up to the logits of the next token. A new process opens the file, in the page cache, and makes one token; cold,
foretell has compiled nothing before. Its memory is its peak; a process that imports torch alone is measured too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import foretell  # isort: skip - before torch, so that its threads wait as in the command line
import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from decode import SEED, Foretell, in_turns
from llamacpp import LlamaCpp
from measure import Clock, Spread, note
from rich.console import Console

NEW_TOKENS, PROMPT, LONG, MOST_ROWS = 64, 32, 2000, 16
PEAK = "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1])"
FORETELL = """
import sys
from foretell.__main__ import main
sys.argv = ["foretell", "generate", sys.argv[1], "The capital of Italy is", "--max-tokens", "1"]
try:
    main()
except SystemExit:
    pass
"""
LLAMA_CPP = """
import sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=int(sys.argv[2]), verbose=False)
model("The capital of Italy is", max_tokens=1)
"""


def main() -> None:
    """Measure a file and print a table or one JSON object."""
    parser = make_parser("A GGUF file in foretell and llama.cpp.", "two rounds", with_threads=True)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    rounds = 2 if arguments.quick else 5
    report = {
        **start_report("real_model", "llama_cpp_python", "numba"),
        "quick": arguments.quick,
        "file": arguments.file.name,
        "rows": measure_speeds(arguments.file, rounds),
        "processes": measure_processes(arguments.file, rounds),
    }
    print_report(report, print_tables, as_json=arguments.json)


def measure_speeds(file: Path, rounds: int) -> list[dict[str, Any]]:
    """A row per task and program."""
    model = foretell.load(file)
    peer = LlamaCpp(file, model.config.vocab_size, MOST_ROWS, LONG + 2 * NEW_TOKENS)
    programs = {"foretell": Foretell(model.decoder), peer.name: peer}
    generator = torch.Generator().manual_seed(SEED)

    def prompts(rows: int, length: int) -> list[list[int]]:
        return torch.randint(model.config.vocab_size, (rows, length), generator=generator).tolist()

    def answer(program: Any) -> float:
        started = Clock.now()
        program.decode(prompts(1, PROMPT), NEW_TOKENS)
        return Clock.now() - started

    rows: list[dict[str, Any]] = []

    def add(task: str, work: int, seconds: Callable[[Any], float]) -> None:
        note(f"{task}, {rounds} rounds")
        rows.extend(in_turns("file", task, work, rounds, programs, seconds))

    for task, batch, length in (("batch_1", 1, PROMPT), ("batch_16", MOST_ROWS, PROMPT), ("after_2000", 1, LONG)):
        given = prompts(batch, length)
        add(task, batch * (NEW_TOKENS - 1), lambda program, given=given: program.decode(given, NEW_TOKENS)[0])
    add("answer", NEW_TOKENS, answer)
    for length in (512, LONG):
        add(f"read_{length}", length, lambda program, length=length: program.read(prompts(1, length)[0]))
    return rows


def measure_processes(file: Path, rounds: int) -> list[dict[str, Any]]:
    """Seconds and peak memory of new processes that make one token, in turns."""
    threads = str(torch.get_num_threads())
    programs = {
        "import torch": ["import torch"],
        "foretell, cold": [FORETELL, str(file)],
        "foretell": [FORETELL, str(file)],
        "llama.cpp": [LLAMA_CPP, str(file), threads],
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    note(f"new processes, {rounds} rounds")
    for _ in range(rounds + 1):
        for name, command in programs.items():
            with tempfile.TemporaryDirectory() as cache:
                added = {"XDG_CACHE_HOME": cache} if name.endswith("cold") else {}
                measured[name].append(run_process(command, added))
    return [
        {
            "program": name,
            "seconds": asdict(Spread.of(seconds for seconds, _ in values[1:])),
            "peak_mb": max(peak for _, peak in values[1:]),
        }
        for name, values in measured.items()
    ]


def run_process(program: list[str], added: dict[str, str]) -> tuple[float, float]:
    """Seconds and peak megabytes of a new interpreter."""
    started = time.perf_counter()
    words = [sys.executable, "-c", f"{program[0]}\n{PEAK}", *program[1:]]
    printed = subprocess.run(words, env={**os.environ, **added}, stdout=subprocess.PIPE, check=True).stdout
    return time.perf_counter() - started, int(printed.split()[-1]) * 1024 / 1e6


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """Both tables: median (low-high) of the rounds."""
    table = make_table((report["file"], "program", "tokens/s", "foretell to it"), words={report["file"], "program"})
    for row in report["rows"]:
        ratio = "" if row["program"] == "foretell" else str(Spread(**row["foretell_to_it"]))
        table.add_row(row["task"], row["program"], str(Spread(**row["tokens_per_second"])), ratio)
    console.print(table)
    table = make_table(("one token in a new process", "s", "peak, MB"), words={"one token in a new process"})
    for row in report["processes"]:
        table.add_row(row["program"], str(Spread(**row["seconds"])), f"{row['peak_mb']:,.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
