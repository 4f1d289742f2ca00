"""Milliseconds of one sampling step: the sampler, next to the filters over the whole vocabulary.

    python bench/sampling.py [--quick] [--json]

Logits are random: a broad bulk, and 200 tokens that rise above it. Both ways draw the same tokens, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import Spread, time_interleaved
from rich.console import Console
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.generation.filters import Prefix, odds
from foretell.generation.sampling import Sampler, pick

VOCAB_SIZE = 50_257
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "defaults (temperature, top-p)": {},
    "top-k 50, top-p": {"top_k": 50},
    "no filter": {"temperature": 1, "top_p": 1},
}


def make_logits(batch: int) -> Tensor:
    """Logits (B, V) in float32."""
    rng = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(batch, VOCAB_SIZE, generator=rng)
    for row in logits:
        row[torch.randperm(VOCAB_SIZE, generator=rng)[:200]] += torch.linspace(9, 2, 200)
    return logits


def make_runs(batch: int, settings: dict[str, Any]) -> dict[str, Callable[[], list[int]]]:
    """A step by the sampler, and by all filters over the whole vocabulary."""
    sampler, logits = Sampler(SamplingConfig(**settings), VOCAB_SIZE), make_logits(batch)
    prefixes, samples = [Prefix(list(range(100)), 32)] * batch, list(range(batch))

    def whole() -> list[int]:
        *_, (_, filtered) = sampler.stages(logits, prefixes)
        return pick(odds(filtered), [sampler.draw(sample, 100) for sample in samples])

    runs = {"sampler": lambda: sampler(logits, prefixes, samples), "whole": whole}
    assert runs["sampler"]() == runs["whole"](), "both draw the same tokens"
    return runs


@torch.inference_mode()
def measure(threads: list[int], rounds: int) -> list[dict[str, Any]]:
    """One row for each number of threads, batch and setting: medians in milliseconds."""
    rows = []
    for count in threads:
        torch.set_num_threads(count)
        for batch in (1, 16):
            for name, settings in SETTINGS.items():
                seconds = time_interleaved(make_runs(batch, settings), max(5, rounds // batch))
                medians = {key: 1000 * Spread.of(values).median for key, values in seconds.items()}
                rows.append({"threads": count, "batch": batch, "setting": name, **medians})
    return rows


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A row for each measurement."""
    table = make_table(("threads", "batch", "setting", "sampler", "whole vocabulary"), words=["setting"], title="ms")
    for row in report["steps"]:
        times = (f"{row[name]:.2f}" for name in ("sampler", "whole"))
        table.add_row(str(row["threads"]), str(row["batch"]), row["setting"], *times)
    console.print(table)


def main() -> None:
    """Measure every setting and print a table or one JSON object."""
    parser = make_parser("Milliseconds of one sampling step.", "few rounds")
    arguments = parser.parse_args()
    report = {**start_report("sampling"), "steps": measure([1, 2], 20 if arguments.quick else 200)}
    print_report(report, print_tables, as_json=arguments.json)


if __name__ == "__main__":
    main()
