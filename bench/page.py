"""How large the page of a pass is, and how soon it answers, for GPT-2's shape with random weights and 256 tokens.

    python bench/page.py           5 openings, two kinds of attention: under two minutes on two cores
    python bench/page.py --quick   2 openings, one kind

`even` are new weights, whose attention is nearly uniform; `sharp` are the same with larger queries and keys, so that
every row looks at a few keys, and hardly any two weights are alike. A page is opened from disk in the system's
Chromium, in a new context each time. `interactive` is from the start of the navigation to the answer of a hover over
the map.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from measure import Spread, describe_machine, describe_versions, heading, note
from rich.console import Console
from rich.table import Table

from foretell.insight.page.write import PageReport, write_page
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text.tokenizer_training import vocabulary_tokenizer

LENGTH, SEED, SHARPER = 256, 1, 8.0
LIMITS = {"megabytes": 20.0, "interactive": 2.0}
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    """Measure and print a table or one JSON object."""
    arguments = parse_arguments()
    kinds, openings = (["sharp"], 2) if arguments.quick else (["even", "sharp"], 5)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(kind, openings, Path(folder) / f"{kind}.html") for kind in kinds]
    report = {
        "benchmark": "page",
        "machine": describe_machine(),
        "versions": describe_versions("playwright"),
        "quick": arguments.quick,
        "tokens": LENGTH,
        "rows": rows,
    }
    print(json.dumps(report)) if arguments.json else print_report(report)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="How large the page is, and how soon it answers.")
    parser.add_argument("--quick", action="store_true", help="one kind of weights and two openings")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def measure(kind: str, openings: int, path: Path) -> dict[str, Any]:
    """Write one page and open it several times."""
    note(f"{kind}: one page, {openings} openings")
    model = LanguageModel(make_model(kind), words(), f"gpt2, {kind}")
    started = time.perf_counter()
    report = write_page(model, " ".join(f"w{(7919 * place) % 50_000}" for place in range(LENGTH)), path)
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
    return vocabulary_tokenizer([f"w{number}" for number in range(50_257)])


def open_often(path: Path, times: int) -> list[float]:
    """Seconds from navigation to the answer of a hover, each in a new context; a first opening is not counted."""
    from playwright.sync_api import sync_playwright

    found = next((place for place in map(shutil.which, NAMES) if place), None)
    if found is None:
        raise SystemExit(f"no Chromium here: {', '.join(NAMES)} are not to be found")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        seconds = [open_once(browser, path) for _ in range(times + 1)]
        browser.close()
    return seconds[1:]


def open_once(browser: Any, path: Path) -> float:
    """One opening."""
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
    """Figures of one page."""
    interactive = Spread.of(seconds)
    return {
        "weights": kind,
        "megabytes": report.bytes / 1e6,
        "seconds_to_write": written,
        "seconds_to_interactive": asdict(interactive),
        "met": report.bytes / 1e6 <= LIMITS["megabytes"] and interactive.median <= LIMITS["interactive"],
        "cut": report.cut,
    }


def print_report(report: dict[str, Any]) -> None:
    """The table, for people."""
    console = Console(highlight=False, width=80)
    console.print(heading(report["machine"], report["versions"]))
    console.print()
    title = f"The page of GPT-2's shape, {report['tokens']} tokens"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("weights")
    for column in ("MB", "limit", "s to write", "s to interactive", "limit"):
        table.add_column(column, justify="right")
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
