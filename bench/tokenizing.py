"""Speed and memory of `foretell train` turning a text file into token shards. Memory must not grow with the text.

    python bench/tokenizing.py           10 and 100 MB, bpe and bytes: some minutes on two cores
    python bench/tokenizing.py --quick   5 and 20 MB, bytes and bpe: under a minute
    python bench/tokenizing.py FILE...   your own text, repeated until it is long enough
    python bench/tokenizing.py --quick --workers 1 2   each text with one process that encodes, and with two

The text is made of paragraphs of the Python language reference, in random order. Each measurement runs in its own
process. Memory is its peak resident set; what Python, torch and the libraries take before any work is reported
separately, as the base. Seconds cover the whole preparation, including training the vocabulary; MB/s covers encoding
only.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from processes import Child, peak_memory_in_child
from rich.console import Console

from foretell.config.section import make_section
from foretell.config.training import DataConfig, TokenizerConfig
from foretell.data.documents import embedded_corpus
from foretell.pretraining.sources import make_source
from foretell.pretraining.tokens import tokenize_text
from foretell.session.reporter import Reporter

FULL, QUICK = (10, 100), (5, 20)  # MB
KINDS = ("bytes", "bpe")
SEED = 1


class Clock(Reporter):
    """Keeps the latest encoding rate, in MB/s."""

    def __init__(self) -> None:
        self.rate = 0.0

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self.rate = done / 1e6 / max(seconds, 1e-9)


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser("Speed and memory from a text file to token shards.", "5 and 20 MB: under a minute")
    parser.add_argument("files", nargs="*", type=Path, help="text to repeat (default: the Python language reference)")
    parser.add_argument("--workers", nargs="+", type=int, default=[1], help="how many processes encode, in turns")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        base = peak_memory_in_child(lambda: None)
        texts = {size: write_text(Path(folder) / f"{size}.txt", size, arguments.files) for size in sizes}
        cases = product(KINDS, sizes, arguments.workers)
        rows = [measure(texts[size], kind, size, workers, base) for kind, size, workers in cases]
    report = {
        **start_report("tokenizing", "tokenizers"),
        "quick": arguments.quick,
        "base_mb": round(base / 1e6),
        "rows": rows,
    }
    print_report(report, print_tables, as_json=arguments.json)


def write_text(path: Path, megabytes: int, files: list[Path]) -> Path:
    """Write a file of about `megabytes` million bytes; returns its path."""
    with path.open("w", encoding="utf-8") as file:
        written = 0
        for paragraph in iter_paragraphs(files):
            file.write(paragraph)
            written += len(paragraph.encode("utf-8"))
            if written >= megabytes * 10**6:
                break
    return path


def iter_paragraphs(files: list[Path]) -> Iterator[str]:
    """Yield the paragraphs of the texts forever, shuffled again after each pass."""
    texts = [path.read_text(encoding="utf-8") for path in files] or [document.text for document in embedded_corpus()]
    paragraphs = [f"{part}\n\n" for text in texts for part in text.split("\n\n")]
    rng = random.Random(SEED)
    while True:
        rng.shuffle(paragraphs)
        yield from paragraphs


def measure(text: Path, kind: str, megabytes: int, workers: int, base: int) -> dict[str, Any]:
    """Prepare one text in a child process; returns a row of the report."""
    note(f"{kind}, {megabytes} MB, encoded by {workers}")
    figures, peak = Child.start(lambda: prepare(text, kind, workers)).result()
    return {
        "kind": kind,
        "megabytes": megabytes,
        "workers": workers,
        **figures,
        "peak_mb": round(peak / 1e6),
        "grown_mb": round((peak - base) / 1e6),
    }


def prepare(text: Path, kind: str, workers: int) -> dict[str, float]:
    """Do what `foretell train` does before training; returns its figures."""
    clock, started = Clock(), time.perf_counter()
    config = make_section(TokenizerConfig, {"kind": kind})
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        source, where = make_source([text], DataConfig()), Path(folder)
        made = tokenize_text(source, config, DataConfig(), where, clock, workers=workers)
        tokens = sum(record.tokens for record in made.store.splits.values())
    return {"tokens": tokens, "seconds": time.perf_counter() - started, "mb_per_second": clock.rate}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A row per tokenizer kind, text size and number of processes."""
    columns = ("kind", "MB", "workers", "tokens", "seconds", "MB/s", "peak MB", "above base")
    table = make_table(columns, words={"kind"})
    for row in report["rows"]:
        rates = (f"{row['seconds']:.1f}", f"{row['mb_per_second']:.1f}")
        memory = (str(row["peak_mb"]), str(row["grown_mb"]))
        table.add_row(row["kind"], str(row["megabytes"]), str(row["workers"]), f"{row['tokens']:,}", *rates, *memory)
    console.print(table)
    console.print(f"base: {report['base_mb']} MB, before any text is read")


if __name__ == "__main__":
    main()
