"""Time to quality: how soon `foretell.train` reaches a loss on the held-out characters of a text (docs/speedrun.md).

    python bench/speedrun.py tinyshakespeare_input.txt --target 1.4697 --seed 1 --seed 2 --seed 3
    python bench/speedrun.py TEXT --set model.width=192 --set model.num_heads=3 --steps 900
    python bench/speedrun.py --minutes 5                                    the language reference inside Python
    python bench/speedrun.py --quick                                        a few steps, to see that it runs

Each seed is a training on characters with the recipe of the size, without dropout. The loss is over all of the held-out
text, in the precision of the training; the minutes are of the steps alone, without evaluations.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from measure import note
from rich.console import Console

import foretell
from foretell.cli.arguments import parse_settings
from foretell.runs.run import Run
from foretell.runs.summary import bits_per_byte, read_held_out

STEPS = 1300
ALL = 10**12  # of the held-out tokens
NEVER = 10**9  # steps
# The recipe of the size, but for the warm-up, which was chosen by trial (docs/speedrun.md)
SETTINGS: dict[str, dict[str, Any]] = {
    "tokenizer": {"kind": "characters"},
    "model": {"dropout": 0.0},
    "training": {
        "warmup_steps": 40,
        "evaluate_every": 100,
        "evaluation_tokens": ALL,
        "sample_every": NEVER,
        "checkpoint_every": NEVER,
    },
}
QUICK = {"warmup_steps": 2, "evaluate_every": 2, "evaluation_tokens": 4096}


def main() -> None:
    """Train with each seed, and print a table or one JSON object."""
    parser = make_parser("Time to a loss on held-out characters.", "four steps of the toy size", with_threads=True)
    parser.add_argument("text", nargs="?", help="a text file (default: the language reference inside Python)")
    parser.add_argument("--target", type=float, help="the loss to reach, in nats per character")
    parser.add_argument("--seed", type=int, action="append", help="a seed, default 1; may be repeated")
    parser.add_argument("--size", default="small", help="toy, tiny, small, medium, ...")
    parser.add_argument("--set", action="append", default=[], help="any field, such as model.width=192")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help=f"steps of each training (default: {STEPS:,})")
    length.add_argument("--minutes", type=float, help="or the minutes of each training, with everything")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    runs = [run_seed(arguments, seed) for seed in arguments.seed or [1]]
    report = start_report("speedrun") | {"target": arguments.target, "runs": runs}
    print_report(report, print_tables, as_json=arguments.json)


def run_seed(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """A training with one seed: its curve on held-out text, its best loss, and the same in bits per byte."""
    sections: Any = {name: dict(values) for name, values in SETTINGS.items()}
    sections["training"] |= {"seed": seed, **(QUICK if arguments.quick else {})}
    for name, values in parse_settings(arguments.set).items():
        sections[name] = sections.get(name, {}) | values
    if arguments.minutes is not None:
        sections["training"]["evaluate_every"] = NEVER  # only at the end: evaluations take from the minutes
    else:
        sections["training"]["steps"] = 4 if arguments.quick else arguments.steps or STEPS
    size = "toy" if arguments.quick else arguments.size
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        foretell.train(arguments.text, out, size=size, minutes=arguments.minutes, progress=False, **sections)
        run = Run(out)
        curve = [read_point(line) for line in run.metrics.records() if line["validation_loss"] is not None]
        best = min(point["loss"] for point in curve)
        bits = bits_per_byte(best, read_held_out(run))
    for point in curve:
        note(f"seed {seed}  step {point['step']:>5,}  {point['seconds'] / 60:5.1f} min  loss {point['loss']:.4f}")
    return {"seed": seed, "curve": curve, "best": best, "bits_per_byte": bits}


def read_point(line: dict[str, Any]) -> dict[str, Any]:
    """A point of the curve from a line of metrics."""
    return {"loss": line["validation_loss"], **{name: line[name] for name in ("step", "tokens", "seconds")}}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A line per seed; with a target, the first evaluation at or below it."""
    target = report["target"]
    reaching = [] if target is None else [f"minutes to {target}", "tokens to it"]
    table = make_table(["seed", *reaching, "minutes", "tokens", "best loss", "bits per byte"])
    for run in report["runs"]:
        reached = next((point for point in run["curve"] if target is not None and point["loss"] <= target), None)
        first = ["-", "-"] if reached is None else [f"{reached['seconds'] / 60:.1f}", f"{reached['tokens']:,}"]
        last = run["curve"][-1]
        ended = [f"{last['seconds'] / 60:.1f}", f"{last['tokens']:,}"]
        quality = [f"{run['best']:.4f}", f"{run['bits_per_byte']:.4f}"]
        table.add_row(str(run["seed"]), *first[: len(reaching)], *ended, *quality)
    console.print(table)


if __name__ == "__main__":
    main()
