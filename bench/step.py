"""Where a decoding step goes on a CPU: the compiled kernels, and the Python around them.

    python bench/step.py                     one and 16 rows, all precisions: about two minutes
    python bench/step.py --quick             one row, bfloat16 and int8
    python bench/step.py --without pass      one row, with and without whole passes in compiled code
    python bench/step.py --without amx       16 rows of int8, with and without AMX

The model has GPT-2 124M's shape (`--shape llama`: a Llama shape of 0.5B parameters) and random weights, and continues
prompts of 32 tokens greedily. A step is timed from one token to the next; the kernels' time is that of the calls that
start compiled code, from Python's side. With `--without`, two programs take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import foretell  # isort: skip  # noqa: F401 - before torch, so that its threads wait as in the command line
import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from decode import PROMPT, SHAPES, Foretell, make_foretell, make_prompts, make_scaled_decoder
from measure import Spread, note, speed_ratio
from rich.console import Console

from foretell.generation.batch_generation import run
from foretell.generation.sequence import Rules, Sequence
from foretell.model.kernels import fused_pass, matmul, program

NEW_TOKENS, ROUNDS, TURNS = 64, 5, 9
KERNELS = (program, matmul)  # modules that start compiled code
# --without: the attribute that is changed while a program is prepared, the rows, and the precisions that use it
WITHOUT: dict[str, tuple[tuple[Any, str, Any], int, tuple[str, ...]]] = {
    "pass": ((fused_pass, "fused_decoder", lambda decoder, prepared, packs: prepared), 1, ("bfloat16", "int8", "int4")),
    "amx": ((matmul, "HAS_AMX", False), 16, ("int8",)),
}


class KernelClock:
    """Adds up the seconds of compiled code."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def start(self) -> None:
        """Time the calls of all modules in KERNELS from now on."""
        for module in KERNELS:
            vars(module)["run_on_threads"] = self.timed(module.run_on_threads)

    def timed(self, call: Callable[..., None]) -> Callable[..., None]:
        """A call whose time is added up."""

        def timed_call(*arguments: Any) -> None:
            started = time.perf_counter()
            call(*arguments)
            self.seconds += time.perf_counter() - started

        return timed_call


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser("Where a decoding step goes on a CPU.", "one row, bfloat16 and int8", with_threads=True)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--without", choices=WITHOUT, help="compare with programs that do not use this")
    arguments = parser.parse_args()
    if arguments.without == "amx" and not matmul.HAS_AMX:
        parser.error("this processor has no AMX")
    use_threads(arguments.threads)
    clock = KernelClock()
    clock.start()
    report = {**start_report("step", "numba"), "shape": arguments.shape, "without": arguments.without}
    if arguments.without:
        _, rows, precisions = WITHOUT[arguments.without]
        report["ratios"] = [
            compare(clock, arguments.without, arguments.shape, precision, rows) for precision in precisions
        ]
    else:
        cases = [(precision, rows) for rows in (1, 16) for precision in ("bfloat16", "int8", "int4")]
        report["steps"] = [measure(clock, arguments.shape, *case) for case in (cases[:2] if arguments.quick else cases)]
    print_report(report, print_tables, as_json=arguments.json)


def measure(clock: KernelClock, shape: str, precision: str, rows: int) -> dict[str, Any]:
    """Milliseconds of a step and of its parts: medians of the rounds."""
    note(f"{precision}, {rows} rows")
    config = SHAPES[shape]()
    program = make_foretell(make_scaled_decoder(config), precision, torch.device("cpu"))
    prompts = make_prompts(rows, PROMPT, config)
    program.decode(prompts, 2)  # compiles the kernels
    rounds = [time_steps(clock, program, prompts) for _ in range(ROUNDS)]
    medians = {name: Spread.of(times[name] for times in rounds).median for name in rounds[0]}
    return {"precision": precision, "rows": rows, **medians, "share_outside": 1 - medians["kernels"] / medians["step"]}


def compare(clock: KernelClock, part: str, shape: str, precision: str, rows: int) -> dict[str, Any]:
    """Milliseconds of a step with and without a part, and their ratio in rounds that take turns."""
    note(f"{precision}, {rows} rows, with and without {part}")
    config = SHAPES[shape]()
    decoder, prompts = make_scaled_decoder(config), make_prompts(rows, PROMPT, config)
    program = make_foretell(decoder, precision, torch.device("cpu"))
    program.decode(prompts, 2)  # prepares the decoder
    target, name, value = WITHOUT[part][0]
    without = Foretell(decoder)
    with patch.object(target, name, value):
        without.decode(prompts, 2)
    times: dict[str, list[float]] = {"with": [], "without": []}
    for turn in range(TURNS):
        order = [("with", program), ("without", without)]
        for each, contender in order if turn % 2 else reversed(order):
            times[each].append(time_steps(clock, contender, prompts)["step"])
    medians = {each: Spread.of(milliseconds).median for each, milliseconds in times.items()}
    ratio = speed_ratio(times["with"], times["without"])
    return {"precision": precision, "rows": rows, **medians, "ratio": asdict(ratio)}


def time_steps(clock: KernelClock, program: Foretell, prompts: list[list[int]]) -> dict[str, float]:
    """Milliseconds per step of the whole and of its parts, from the first new token to the last."""
    sequences = [Sequence(prompt, rules=Rules(program.rules, NEW_TOKENS)) for prompt in prompts]
    started = 0.0
    for _ in run(program.scheduler, sequences):
        if not started and all(sequence.generated for sequence in sequences):
            clock.seconds = 0.0
            started = time.perf_counter()
    times = {"step": time.perf_counter() - started, "kernels": clock.seconds}
    return {name: 1000 * seconds / (NEW_TOKENS - 1) for name, seconds in times.items()}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A row for each precision and number of rows."""
    if report["without"]:
        columns = ("precision", "rows", f"with {report['without']}, ms", "without", "without / with")
        table = make_table(columns, words={"precision"})
        for row in report["ratios"]:
            times = (f"{row[name]:.2f}" for name in ("with", "without"))
            table.add_row(row["precision"], str(row["rows"]), *times, str(Spread(**row["ratio"])))
    else:
        columns = ("precision", "rows", "step, ms", "kernels", "outside the kernels")
        table = make_table(columns, words={"precision"})
        for row in report["steps"]:
            times = (f"{row[name]:.2f}" for name in ("step", "kernels"))
            table.add_row(row["precision"], str(row["rows"]), *times, f"{row['share_outside']:.0%}")
    console.print(table)


if __name__ == "__main__":
    main()
