"""Where a decoding step goes on a CPU: the compiled kernels of blocks and head, and the Python around them.

    python bench/step.py            one and 16 rows, all precisions: about two minutes
    python bench/step.py --quick    one row, bfloat16 and int8

The model has GPT-2 124M's shape and random weights, and continues prompts of 32 tokens greedily. A step is timed from
one token to the next; the kernels' time is that of the calls that start compiled code, from Python's side.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from decode import PROMPT, Foretell, make_foretell, make_prompts, make_scaled_decoder
from measure import Spread, note
from rich.console import Console

from foretell.generation.scheduler import run
from foretell.generation.sequence import Rules, Sequence
from foretell.model.kernels import fused_block, matmul
from foretell.model.presets import preset_config

NEW_TOKENS, ROUNDS = 64, 5
KERNELS = {"blocks": fused_block, "head": matmul}  # modules that start compiled code


class KernelClock:
    """Adds up the seconds of compiled code, by what it computes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def start(self) -> None:
        """Time the calls of all modules in KERNELS from now on."""
        for name, module in KERNELS.items():
            vars(module)["run_on_threads"] = self.timed(name, module.run_on_threads)

    def timed(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        """A call whose time is added to `name`."""

        def timed_call(*arguments: Any) -> None:
            started = time.perf_counter()
            call(*arguments)
            self.seconds[name] += time.perf_counter() - started

        return timed_call


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser("Where a decoding step goes on a CPU.", "one row, bfloat16 and int8", with_threads=True)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    cases = [(precision, rows) for rows in (1, 16) for precision in ("bfloat16", "int8", "int4")]
    clock = KernelClock()
    clock.start()
    found = [measure(clock, *case) for case in (cases[:2] if arguments.quick else cases)]
    print_report({**start_report("step", "numba"), "steps": found}, print_tables, as_json=arguments.json)


def measure(clock: KernelClock, precision: str, rows: int) -> dict[str, Any]:
    """Milliseconds of a step and of its parts: medians of the rounds."""
    note(f"{precision}, {rows} rows")
    config = preset_config("gpt2")
    program = make_foretell(make_scaled_decoder(config), precision, torch.device("cpu"))
    prompts = make_prompts(rows, PROMPT, config)
    program.decode(prompts, 2)  # compiles the kernels
    rounds = [time_steps(clock, program, prompts) for _ in range(ROUNDS)]
    medians = {name: Spread.of(times[name] for times in rounds).median for name in rounds[0]}
    share = 1 - sum(medians[name] for name in KERNELS) / medians["step"]
    return {"precision": precision, "rows": rows, **medians, "share_outside": share}


def time_steps(clock: KernelClock, program: Foretell, prompts: list[list[int]]) -> dict[str, float]:
    """Milliseconds per step of the whole and of its parts, from the first new token to the last."""
    sequences = [Sequence(prompt, rules=Rules(program.rules, NEW_TOKENS)) for prompt in prompts]
    started = 0.0
    for _ in run(program.scheduler, sequences):
        if not started and all(sequence.generated for sequence in sequences):
            clock.seconds.clear()
            started = time.perf_counter()
    times = {"step": time.perf_counter() - started, **{name: clock.seconds[name] for name in KERNELS}}
    return {name: 1000 * seconds / (NEW_TOKENS - 1) for name, seconds in times.items()}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A row for each precision and number of rows."""
    columns = ("precision", "rows", "step, ms", "blocks", "head", "outside the kernels")
    table = make_table(columns, words={"precision"})
    for row in report["steps"]:
        times = (f"{row[name]:.2f}" for name in ("step", *KERNELS))
        table.add_row(row["precision"], str(row["rows"]), *times, f"{row['share_outside']:.0%}")
    console.print(table)


if __name__ == "__main__":
    main()
