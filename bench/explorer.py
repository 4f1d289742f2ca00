"""The live page's times over HTTP: an edited text of 256 tokens and a map of patches, for GPT-2's shape.

    python bench/explorer.py                        10 edits, in bfloat16
    python bench/explorer.py --dtype float32
    python bench/explorer.py --strict               with strict layers
    python bench/explorer.py --quick                3 edits

The model has random weights and a vocabulary of 50,257 words. Each edit changes one word in the middle, or appends a
token; each row asks for what the page asks for, and ends with the last byte of the answer, or with the logits that come
before the pass. The row of all heads and the lens begins with an edited word. The map has the rows of all layers and of
the embedding, for 16 positions of a text of 32 tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from page import LENGTH, make_model, words
from processes import serving
from rich.console import Console

from foretell.language_model import LanguageModel

PASS = ["logits", "stream.sizes", "attention.0"]
LAYERS, POSITIONS, PATCHED, ASKED = 12, 16, 32, 5
LENS = [f"lens.{name}.{point}" for point in range(LAYERS + 1) for name in
        ("ids", "probabilities", "logits", "following", "ranks", "entropies")]  # fmt: skip
EARLY = "next token, a token appended, from kept keys"
ALL = "next token, then all heads and the lens"
QUESTIONS = {
    "next token, a word edited": PASS,
    "next token, a token appended": PASS,
    "a head of another layer": [f"attention.{ASKED}", f"queries.{ASKED}", f"keys.{ASKED}"],
    "small maps of all heads": [f"thumbs.{layer}" for layer in range(LAYERS)],
    "lens of all positions": LENS,
}


async def post(host: str, port: int, body: dict[str, Any], path: str = "/explore") -> list[dict[str, Any]]:
    """The lines of an answer."""
    return [line async for line in lines_of(host, port, body, path)]


async def lines_of(host: str, port: int, body: dict[str, Any], path: str = "/explore") -> AsyncIterator[dict[str, Any]]:
    """The lines of an answer as they come."""
    reader, writer = await asyncio.open_connection(host, port, limit=2**26)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    if b" 200 " not in (status := await reader.readline()):
        raise RuntimeError(f"the server answered {status.decode()}: {(await reader.read())[-200:].decode()}")
    while line := await reader.readline():
        if line.startswith(b"{"):
            yield json.loads(line)
    writer.close()


def text_of(draw: random.Random, length: int) -> str:
    return " ".join(f"w{draw.randrange(50_000)}" for _ in range(length))


def edited(text: str, draw: random.Random) -> str:
    """The text with another word in the middle."""
    found = text.split(" ")
    found[LENGTH // 2] = text_of(draw, 1)
    return " ".join(found)


async def measure(port: int, edits: int) -> dict[str, list[float]]:
    """Seconds of each question after each edit, and of maps of patches."""
    draw, address = random.Random(1), ("127.0.0.1", port)
    text, appended = text_of(draw, LENGTH), list[int]()
    times: dict[str, list[float]] = {name: [] for name in (EARLY, *QUESTIONS, ALL)}
    for number in range(edits + 1):  # the first one warms up
        for name, sections in QUESTIONS.items():
            if name.endswith("edited"):
                text, appended = edited(text, draw), []
            elif name.endswith("appended"):
                appended = [*appended, draw.randrange(50_000)]
            started = time.perf_counter()
            async for line in lines_of(*address, {"text": text, "appended": appended, "sections": sections}):
                times[EARLY] += [time.perf_counter() - started] if number and "next" in line else []
            times[name] += [time.perf_counter() - started] if number else []
        text, started = edited(text, draw), time.perf_counter()
        for sections in (PASS, QUESTIONS["small maps of all heads"], LENS):
            await post(*address, {"text": text, "sections": sections})
        times[ALL] += [time.perf_counter() - started] if number else []
    times["map of patches, 13 x 16"] = [await map_of_patches(address, draw) for _ in range(max(1, edits // 3))]
    return times


async def map_of_patches(address: tuple[str, int], draw: random.Random) -> float:
    """Seconds of a whole map, row after row, as the page asks for it."""
    started = time.perf_counter()
    body = {"text": text_of(draw, PATCHED), "second": text_of(draw, PATCHED)}
    for layer in range(-1, LAYERS):
        positions = list(range(PATCHED - POSITIONS, PATCHED))
        await post(*address, {**body, "layer": layer, "positions": positions}, path="/explore/patch")
    return time.perf_counter() - started


def summary(seconds: list[float]) -> dict[str, float]:
    return {"p50": float(np.quantile(seconds, 0.5)), "p95": float(np.quantile(seconds, 0.95))}


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser(__doc__.splitlines()[0], "3 edits")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--strict", action="store_true", help="strict layers, whose logits from kept keys are exact")
    arguments = parser.parse_args()
    edits = 3 if arguments.quick else 10
    report = start_report("explorer") | {"edits": edits, "dtype": arguments.dtype}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2-shape"
        LanguageModel(make_model("even"), words(), "gpt2-shape").save(path)
        note(f"{edits} edits in {arguments.dtype}")
        options = ["--dtype", arguments.dtype, "--memory", "0.1", *(["--strict"] if arguments.strict else [])]
        with serving(str(path), *options) as (port, _):
            report["seconds"] = {name: summary(times) for name, times in asyncio.run(measure(port, edits)).items()}
    print_report(report, print_table, as_json=arguments.json)


def print_table(console: Console, report: BenchmarkReport) -> None:
    table = make_table((f"seconds, {report['dtype']}", "p50", "p95"), words=(f"seconds, {report['dtype']}",))
    for name, seconds in report["seconds"].items():
        table.add_row(name, *(f"{value:.2f}" for value in seconds.values()))
    console.print(table)


if __name__ == "__main__":
    main()
