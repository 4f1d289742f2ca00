"""A class on one server: many clients that edit a text on the live page every few seconds.

    python bench/class.py                    30 clients of primer, one edit per 3 seconds each, for 60 seconds
    python bench/class.py --quick            10 seconds
    python bench/class.py --clients 100      more clients

An edit is what the page sends when a word changes, as long as its first sections are in view: the pass with the logits,
the norms and the attention of the chosen layer, then the lens of the last token. Clients begin at even distances. The
server's CPU time per edit does not depend on other work of the machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from explorer import post
from measure import note
from processes import cpu_seconds, serving
from rich.console import Console

WORDS = ["the", "value", "of", "a", "function", "is", "called", "when", "an", "object", "has", "no", "name", "class"]
FIRST = ["logits", "stream.sizes", "attention.0"]  # with the pass
SECONDS = {False: 60, True: 10}
LEAST_WORDS, MOST_WORDS = 6, 16


async def edit(address: tuple[str, int], text: str) -> tuple[float, float]:
    """Seconds until the first answer and until the last one, of an edit."""
    started = time.perf_counter()
    (first, *_) = await post(*address, {"text": text, "sections": FIRST})
    until_first = time.perf_counter() - started
    shown = first["pass"]
    assert isinstance(shown, dict)
    await post(*address, {"text": text, "sections": [f"lens.at.{len(shown['tokens']) - 1}"]})
    return until_first, time.perf_counter() - started


async def client(
    address: tuple[str, int], seed: int, delay: float, every: float, until: float
) -> list[tuple[float, float]]:
    """The times of the edits of one client."""
    draw, times = random.Random(seed), []
    await asyncio.sleep(delay)
    while time.perf_counter() < until:
        begun = time.perf_counter()
        times.append(await edit(address, " ".join(draw.choices(WORDS, k=draw.randint(LEAST_WORDS, MOST_WORDS)))))
        await asyncio.sleep(max(0.0, begun + every - time.perf_counter()))
    return times


async def run_class(address: tuple[str, int], clients: int, every: float, seconds: float) -> np.ndarray:
    """The times (edits, 2) of all clients."""
    until = time.perf_counter() + seconds
    work = [client(address, seed, every * seed / clients, every, until) for seed in range(clients)]
    return np.array([times for own in await asyncio.gather(*work) for times in own])


def summary(seconds: np.ndarray) -> dict[str, float]:
    return {
        "p50": float(np.quantile(seconds, 0.5)),
        "p95": float(np.quantile(seconds, 0.95)),
        "max": float(seconds.max()),
    }


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser(__doc__.splitlines()[0], "10 seconds")
    parser.add_argument("--model", default="primer", help="the MODEL to serve")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--every", type=float, default=3.0, help="seconds from one edit of a client to its next")
    arguments = parser.parse_args()
    report = start_report("class")
    with serving(arguments.model) as (port, process):
        address = ("127.0.0.1", port)
        asyncio.run(edit(address, WORDS[0]))  # the first pass of a server takes longer
        note(f"{arguments.clients} clients of {arguments.model}")
        before = cpu_seconds(process)
        times = asyncio.run(run_class(address, arguments.clients, arguments.every, SECONDS[arguments.quick]))
        used = cpu_seconds(process) - before
    report |= {"clients": arguments.clients, "every": arguments.every, "edits": len(times)}
    report |= {"load": os.getloadavg()[0], "cpu_seconds_per_edit": used / len(times)}
    report |= {"prediction": summary(times[:, 0]), "all": summary(times[:, 1])}
    print_report(report, print_table, as_json=arguments.json)


def print_table(console: Console, report: BenchmarkReport) -> None:
    table = make_table(("seconds until", "p50", "p95", "max"), words=("seconds until",))
    for name, words in (("prediction", "the prediction"), ("all", "the lens, too")):
        table.add_row(words, *(f"{value:.3f}" for value in report[name].values()))
    console.print(f"{report['clients']} clients, one edit per {report['every']:g} s each: {report['edits']} edits")
    cpu = f"{1000 * report['cpu_seconds_per_edit']:.0f} ms"
    console.print(f"{cpu} of the server's CPU time per edit; load of the machine: {report['load']:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
