"""From a text file to token shards as `foretell train` does it: speed and memory, which must not grow with the text.

    python bench/tokenizing.py           10 and 100 MB, bpe and bytes: some minutes on two cores
    python bench/tokenizing.py --quick   5 and 20 MB, bytes and bpe: under a minute
    python bench/tokenizing.py FILE...   your own text, repeated until it is long enough

The text is paragraphs of the language reference inside Python, in random order. Each measurement is a process of its
own; its memory is the peak of what was resident, with what Python, torch and the libraries take before they do anything
stated beside it. Seconds are those of the whole preparation, the vocabulary included; MB/s is that of encoding alone.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import describe_machine, describe_versions, heading, note
from processes import measure_peak
from rich.console import Console
from rich.table import Table

from foretell.config import DataConfig, TokenizerConfig, make_section
from foretell.data.corpora import embedded_corpus
from foretell.pretraining.tokens import make_source, tokenize_text
from foretell.session.reporter import Reporter

FULL, QUICK = (10, 100), (5, 20)  # MB
KINDS = ("bytes", "bpe")
SEED = 1


class Clock(Reporter):
    """Remembers how much was encoded in which time."""

    def __init__(self) -> None:
        self.rate = 0.0

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self.rate = done / 1e6 / max(seconds, 1e-9)


def main() -> None:
    """Measure and print a table or one JSON object."""
    arguments = parse_arguments()
    sizes = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        base, _ = measure_peak(lambda: None)
        texts = {size: write_text(Path(folder) / f"{size}.txt", size, arguments.files) for size in sizes}
        rows = [measure(texts[size], kind, size, base) for kind in KINDS for size in sizes]
    report = {
        "benchmark": "tokenizing",
        "quick": arguments.quick,
        "machine": describe_machine(),
        "versions": describe_versions("tokenizers"),
        "base_mb": round(base / 1e6),
        "rows": rows,
    }
    print(json.dumps(report)) if arguments.json else print_report(report)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="From a text file to token shards: speed and memory.")
    parser.add_argument("files", nargs="*", type=Path, help="text to repeat; default: the reference inside Python")
    parser.add_argument("--quick", action="store_true", help="5 and 20 MB: under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def write_text(path: Path, megabytes: int, files: list[Path]) -> Path:
    """A file of about that many million bytes."""
    with path.open("w", encoding="utf-8") as file:
        written = 0
        for paragraph in iter_paragraphs(files):
            file.write(paragraph)
            written += len(paragraph.encode("utf-8"))
            if written >= megabytes * 10**6:
                break
    return path


def iter_paragraphs(files: list[Path]) -> Iterator[str]:
    """Without end: the paragraphs of the texts, in a new order every time."""
    texts = [path.read_text(encoding="utf-8") for path in files] or [one.text for one in embedded_corpus()]
    paragraphs = [f"{part}\n\n" for text in texts for part in text.split("\n\n")]
    choose = random.Random(SEED)
    while True:
        choose.shuffle(paragraphs)
        yield from paragraphs


def measure(text: Path, kind: str, megabytes: int, base: int) -> dict[str, Any]:
    """One preparation in a process of its own."""
    note(f"{kind}, {megabytes} MB")
    answer = text.with_suffix(".json")
    peak, _ = measure_peak(lambda: prepare(text, kind, answer))
    return {
        "kind": kind,
        "megabytes": megabytes,
        **json.loads(answer.read_text()),
        "peak_mb": round(peak / 1e6),
        "grown_mb": round((peak - base) / 1e6),
    }


def prepare(text: Path, kind: str, answer: Path) -> None:
    """What `foretell train` does before it trains; leaves the numbers in a file."""
    clock, started = Clock(), time.perf_counter()
    config = make_section(TokenizerConfig, {"kind": kind})
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        made = tokenize_text(make_source([text], None), config, DataConfig(), Path(folder), clock)
        tokens = sum(record.tokens for record in made.store.splits.values())
    seconds = time.perf_counter() - started
    answer.write_text(json.dumps({"tokens": tokens, "seconds": seconds, "mb_per_second": clock.rate}))


def print_report(report: dict[str, Any]) -> None:
    """A table at a person's width."""
    print(heading(report["machine"], report["versions"]))
    table = Table(box=None, pad_edge=False)
    for title in ("kind", "MB", "tokens", "seconds", "MB/s", "peak MB", "above base"):
        table.add_column(title, justify="left" if title == "kind" else "right")
    for row in report["rows"]:
        rates = (f"{row['seconds']:.1f}", f"{row['mb_per_second']:.1f}")
        memory = (str(row["peak_mb"]), str(row["grown_mb"]))
        table.add_row(row["kind"], str(row["megabytes"]), f"{row['tokens']:,}", *rates, *memory)
    Console().print(table)
    print(f"base: {report['base_mb']} MB, before anything is read")


if __name__ == "__main__":
    main()
