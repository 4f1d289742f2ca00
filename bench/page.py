"""Size and load time of a page, for GPT-2's shape with random weights and 256 tokens.

    python bench/page.py           5 openings, two kinds of attention: under two minutes on two cores
    python bench/page.py --quick   2 openings, one kind

`even` are new weights, whose attention is nearly uniform; `sharp` are the same with larger queries and keys, so that
each query attends to a few keys and attention weights compress badly. A page is opened from disk in the system's
Chromium, in a new context each time. `interactive` is the time from the start of the navigation to the response to a
hover over the map.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from browser import chromium
from measure import Spread, note
from rich.console import Console

from foretell.insight.page.write_page import PageReport, write_page
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text.tokenizer_training import vocabulary_tokenizer

LENGTH, SEED, SHARPER = 256, 1, 8.0
LIMITS = {"megabytes": 20.0, "interactive": 2.0}


def main() -> None:
    """Measure and print a table or one JSON object."""
    arguments = make_parser("Size and load time of a page.", "one kind of weights and two openings").parse_args()
    kinds, openings = (["sharp"], 2) if arguments.quick else (["even", "sharp"], 5)
    report = start_report("page", "playwright") | {"quick": arguments.quick, "tokens": LENGTH}
    with tempfile.TemporaryDirectory() as folder:
        report["rows"] = [measure(kind, openings, Path(folder) / f"{kind}.html") for kind in kinds]
    print_report(report, print_tables, as_json=arguments.json)


def measure(kind: str, openings: int, path: Path) -> dict[str, Any]:
    """Write one page and open it several times."""
    note(f"{kind}: one page, {openings} openings")
    model = LanguageModel(make_model(kind), words(), f"gpt2, {kind}")
    started = time.perf_counter()
    report = write_page(model, " ".join(f"w{(7919 * position) % 50_000}" for position in range(LENGTH)), path)
    seconds = time.perf_counter() - started
    return make_row(kind, report, seconds, open_often(path, openings))


def make_model(kind: str) -> Decoder:
    """GPT-2's shape with new weights."""
    decoder = make_decoder(preset_config("gpt2"), SEED).eval()
    if kind == "sharp":
        with torch.no_grad():
            for name, weight in decoder.named_parameters():
                if name.endswith(("query.weight", "key.weight")):
                    weight.mul_(SHARPER)
    return decoder


def words():
    """A vocabulary of GPT-2's size."""
    return vocabulary_tokenizer([f"w{token_id}" for token_id in range(50_257)])


def open_often(path: Path, times: int) -> list[float]:
    """Seconds from navigation to the response to a hover, each in a new context; the first opening is not counted."""
    with chromium() as browser:
        seconds = [open_once(browser, path) for _ in range(times + 1)]
    return seconds[1:]


def open_once(browser: Any, path: Path) -> float:
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    started = time.perf_counter()
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-ready]")
    page.locator("#map-canvas").hover()
    page.wait_for_function("document.querySelector('#reading').textContent.includes('→')")
    seconds = time.perf_counter() - started
    context.close()
    return seconds


def make_row(kind: str, report: PageReport, written: float, seconds: list[float]) -> dict[str, Any]:
    interactive = Spread.of(seconds)
    return {
        "weights": kind,
        "megabytes": report.bytes / 1e6,
        "seconds_to_write": written,
        "seconds_to_interactive": asdict(interactive),
        "met": report.bytes / 1e6 <= LIMITS["megabytes"] and interactive.median <= LIMITS["interactive"],
        "cut": report.cut,
    }


def print_tables(console: Console, report: BenchmarkReport) -> None:
    console.print()
    title = f"The page of GPT-2's shape, {report['tokens']} tokens"
    columns = ("weights", "MB", "limit", "s to write", "s to interactive", "limit")
    table = make_table(columns, words=("weights",), title=title)
    for row in report["rows"]:
        limits = (f"{LIMITS['megabytes']:.0f}", f"{LIMITS['interactive']:.0f}{'' if row['met'] else ' missed'}")
        shown = str(Spread(**row["seconds_to_interactive"]))
        figures = f"{row['megabytes']:.1f}", limits[0], f"{row['seconds_to_write']:.1f}", shown, limits[1]
        table.add_row(row["weights"], *figures)
    console.print(table)
    for row in report["rows"]:
        for sentence in row["cut"]:
            console.print(f"{row['weights']}: {sentence}")


if __name__ == "__main__":
    main()
