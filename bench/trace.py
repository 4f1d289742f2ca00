"""The cost of tracing, on the shape of GPT-2 124M with random weights and 256 tokens, on the CPU.

    python bench/trace.py           9 rounds in float32 and bfloat16: about two minutes on two cores
    python bench/trace.py --quick   3 rounds in float32: under a minute

All contenders run the same pass, in turns. `untraced` is a model that was traced before; `weights` records the inputs
of all attention weights and then computes them; `everything` records every name. A ratio is the time relative to
`plain` in the same round: the forward of a model that was never traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from measure import Run, Spread, note, time_interleaved
from rich.console import Console
from torch import Tensor

from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.system.device import DTYPES

LENGTH = 256
SEED = 1
WEIGHTS = "trunk.blocks.*.attention.core.weights"
LIMITS = {"untraced": 1.05, "weights": 1.5}  # ratios to meet; times on two cores vary by 5%


def main() -> None:
    """Measure and print a table or one JSON object."""
    quick = "float32 and fewer rounds: under a minute"
    arguments = make_parser("The cost of tracing, on the CPU.", quick, with_threads=True).parse_args()
    use_threads(arguments.threads)
    rounds, dtypes = (3, ["float32"]) if arguments.quick else (9, ["float32", "bfloat16"])
    report = start_report("trace") | {"quick": arguments.quick, "tokens": LENGTH}
    report["rows"] = [row for dtype in dtypes for row in measure(dtype, rounds)]
    print_report(report, print_tables, as_json=arguments.json)


@torch.inference_mode()
def measure(dtype: str, rounds: int) -> list[dict[str, Any]]:
    """All contenders in one precision."""
    note(f"{dtype}: {rounds} rounds after a first that is not counted")
    decoder = make_decoder(preset_config("gpt2"), SEED).to(DTYPES[dtype]).eval()
    ids = torch.randint(decoder.config.vocab_size, (1, LENGTH), generator=torch.Generator().manual_seed(SEED))
    held: dict[str, int] = {}
    runs: dict[str, Run] = {
        "plain": plain_pass(decoder, ids),
        "untraced": untraced_pass(decoder, ids),
        "weights": traced_pass(decoder, ids, WEIGHTS, held),
        "everything": traced_pass(decoder, ids, "**", held),
    }
    seconds = time_interleaved(runs, rounds)
    return [make_row(dtype, name, own, seconds["plain"], held.get(name, 0)) for name, own in seconds.items()]


def plain_pass(decoder: Decoder, ids: Tensor) -> Run:
    """A forward of another model with the same weights, which is never traced."""
    untouched = Decoder(decoder.config).to(decoder.embed.token.weight.dtype).eval()
    untouched.load_state_dict(decoder.state_dict(), assign=True)
    return lambda: untouched(ids)


def untraced_pass(decoder: Decoder, ids: Tensor) -> Run:
    """A forward, without a trace, of the model that the other contenders trace."""
    return lambda: decoder(ids)


def traced_pass(decoder: Decoder, ids: Tensor, select: str, held: dict[str, int]) -> Run:
    """A forward inside a trace; selected attention weights are then computed."""
    name = "everything" if select == "**" else "weights"

    def run() -> None:
        with Trace(decoder, select) as trace:
            decoder(ids)
        held[name] = trace.held_bytes
        for value in trace.names() if select == WEIGHTS else []:
            assert trace[value].shape[-1] == LENGTH

    return run


def make_row(dtype: str, name: str, own: Sequence[float], plain: Sequence[float], held: int) -> dict[str, Any]:
    """Figures of one contender."""
    ratio = Spread.of(ours / theirs for ours, theirs in zip(own, plain, strict=True))
    limit = LIMITS.get(name)
    return {
        "dtype": dtype,
        "run": name,
        "milliseconds": asdict(Spread.of(1000 * seconds for seconds in own)),
        "ratio_to_plain": asdict(ratio),
        "limit": limit,
        "met": None if limit is None else ratio.median <= limit,
        "held_bytes": held,
    }


def print_tables(console: Console, report: BenchmarkReport) -> None:
    console.print()
    columns = ("dtype", "run", "milliseconds", "to plain", "limit", "MiB")
    table = make_table(columns, words=("dtype", "run"), title=f"GPT-2's shape, {report['tokens']} tokens")
    for row in report["rows"]:
        limit = "-" if row["limit"] is None else f"{row['limit']:.2f}{'' if row['met'] else ' missed'}"
        figures = str(Spread(**row["milliseconds"])), str(Spread(**row["ratio_to_plain"]))
        table.add_row(row["dtype"], row["run"], *figures, limit, f"{row['held_bytes'] / 2**20:.0f}")
    console.print(table)
    if report["quick"]:
        console.print("--quick: few rounds; differences below 10% mean nothing")


if __name__ == "__main__":
    main()
