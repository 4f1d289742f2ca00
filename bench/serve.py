"""`foretell serve` under load, next to its scheduler alone and to llama-server, with random weights of GPT-2's shape.

    python bench/serve.py                                   1, 4, 16 and 64 clients, prompts of 32, 256 and 900 tokens
    python bench/serve.py --llama-server FILE               next to llama.cpp's server, built from its sources
    python bench/serve.py --quick                           1 and 16 clients, a short prompt: a minute

Each client sends one request after the other and reads its stream. All programs have the same weights in bfloat16, get
the same ids and write greedily; they take turns. "shared" is a prompt of 256 tokens of which all clients have the first
240. watch: 4 of 16 clients also ask for the output of one block, in ratio to none asking.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import Spread, note
from rich.console import Console

import foretell
from foretell.config import SamplingConfig
from foretell.generation.batch_generation import run
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config

DTYPE = "bfloat16"
NEW_TOKENS = 128
REQUESTS = 2  # of each client in a round
WATCHED = {"look": {"values": ["trunk.blocks.6"], "tokens": "new"}}
STARTING_SECONDS = 300


@dataclass(frozen=True)
class Load:
    """Clients, and their prompts; shared: the number of tokens with which all prompts begin."""

    clients: int
    prompt: int
    shared: int = 0

    def prompts(self, vocab_size: int, draw: random.Random) -> list[list[int]]:
        """New ones in every round: a cache must not know them."""
        beginning = [draw.randrange(vocab_size) for _ in range(self.shared)]
        rest = self.prompt - self.shared
        return [
            [*beginning, *(draw.randrange(vocab_size) for _ in range(rest))] for _ in range(self.clients * REQUESTS)
        ]


FULL = [Load(clients, prompt) for clients in (1, 4, 16, 64) for prompt in (32, 256, 900)]
FULL += [Load(clients, 256, shared=240) for clients in (4, 16, 64)]
QUICK = [Load(1, 32), Load(16, 32)]


@dataclass(frozen=True)
class Times:
    """The result of one load: seconds to the first token and between tokens of every request, and tokens/s of all."""

    first: list[float]
    gaps: list[float]
    rate: float


async def stream(port: int, body: dict[str, Any]) -> list[float]:
    """The time of sending a request, then of each token of its answer."""
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)  # a look is one line
    times = [time.perf_counter()]
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    status = await reader.readline()
    assert b" 200 " in status, (status, await reader.read())
    times += [time.perf_counter() async for line in reader if line.startswith(b"data: {")]
    writer.close()
    return times


async def send(port: int, load: Load, prompts: list[list[int]], watching: int = 0) -> Times:
    """Send prompts as a load's clients do; the first `watching` clients also look inside."""

    async def client(index: int) -> list[list[float]]:
        extra = WATCHED if index < watching else {}
        body = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, **extra}
        return [await stream(port, {**body, "prompt": prompt}) for prompt in prompts[index :: load.clients]]

    started = time.perf_counter()
    answers = [times for found in await asyncio.gather(*map(client, range(load.clients))) for times in found]
    seconds = time.perf_counter() - started
    gaps = [after - before for times in answers for before, after in pairwise(times[1:])]
    return Times([times[1] - times[0] for times in answers], gaps, len(answers) * NEW_TOKENS / seconds)


def alone(scheduler: Scheduler, load: Load, prompts: list[list[int]]) -> float:
    """Tokens/s of the scheduler, with as many sequences at once as there are clients."""
    sampler = Sampler(SamplingConfig(temperature=0))
    started = time.perf_counter()
    for first in range(0, len(prompts), load.clients):
        sequences = [Sequence(ids, rules=Rules(sampler, NEW_TOKENS)) for ids in prompts[first : first + load.clients]]
        for _ in run(scheduler, sequences):
            pass
    return len(prompts) * NEW_TOKENS / (time.perf_counter() - started)


@contextmanager
def program(command: list[str], port: int, ready: str) -> Iterator[int]:
    """A server as a process; its port once it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STARTING_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not start") from None
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def save_model(folder: Path) -> Path:
    """A model of GPT-2's shape with random weights and the tokenizer of `primer`."""
    tokenizer = foretell.load("primer").tokenizer
    decoder = make_decoder(preset_config("gpt2", vocab_size=tokenizer.vocab_size), seed=1).eval()
    LanguageModel(decoder, tokenizer, "gpt2-shape").save(folder / "gpt2-shape", DTYPE)
    return folder / "gpt2-shape"


def start_programs(model: Path, llama_server: Path | None, stack: ExitStack) -> dict[str, int]:
    """The ports of the servers."""
    ours, theirs = free_port(), free_port()
    command = [sys.executable, "-m", "foretell", "serve", str(model), "--dtype", DTYPE, "--port", str(ours)]
    ports = {"foretell": stack.enter_context(program(command, ours, "/ready"))}
    if llama_server is not None:
        file = model.with_suffix(".gguf")
        convert = ["convert", str(model), str(file), "--to", "gguf", "--dtype", DTYPE]
        subprocess.run([sys.executable, "-m", "foretell", *convert], check=True, stdout=subprocess.DEVNULL)
        most = str(max(load.clients for load in FULL))
        settings = ["--parallel", most, "--ctx-size", str(1024 * int(most)), "--threads", "2", "--port", str(theirs)]
        command = [str(llama_server), "--model", str(file), *settings]
        ports["llama-server"] = stack.enter_context(program(command, theirs, "/health"))
    return ports


def measure(loads: list[Load], rounds: int, llama_server: Path | None) -> dict[str, Any]:
    """The times of every load and program, and of the scheduler alone."""
    results: dict[str, Any] = {"loads": [], "watch": None}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = save_model(Path(folder))
        ports = start_programs(model, llama_server, stack)
        loaded = foretell.load(model, dtype=DTYPE)
        scheduler, draw = Scheduler(loaded.decoder), random.Random(1)
        vocab_size = loaded.tokenizer.vocab_size
        for load in loads:
            note(f"{load}")
            found: dict[str, list[Any]] = {name: [] for name in (*ports, "scheduler")}
            for _ in range(rounds + 1):  # the first warms up
                for name, port in ports.items():
                    found[name].append(asyncio.run(send(port, load, load.prompts(vocab_size, draw))))
                found["scheduler"].append(alone(scheduler, load, load.prompts(vocab_size, draw)))
            results["loads"].append({"load": vars(load), **{name: values[1:] for name, values in found.items()}})
        results["watch"] = measure_watching(ports["foretell"], vocab_size, rounds, draw)
    return results


def measure_watching(port: int, vocab_size: int, rounds: int, draw: random.Random) -> list[float]:
    """Tokens/s with 4 of 16 clients that look inside, in ratio to none, for each round."""
    load, ratios = Load(16, 32), []
    for _ in range(rounds + 1):
        rates = [asyncio.run(send(port, load, load.prompts(vocab_size, draw), count)).rate for count in (4, 0)]
        ratios.append(rates[0] / rates[1])
    return ratios[1:]


def summarise(results: dict[str, Any]) -> dict[str, Any]:
    """Medians over rounds, and percentiles over all tokens, as plain numbers."""
    rows = []
    for entry in results["loads"]:
        alone_rate = Spread.of(entry["scheduler"]).median
        for name in (name for name in entry if name not in ("load", "scheduler")):
            times = entry[name]
            gaps = np.array([gap for each in times for gap in each.gaps]) * 1e3
            row = {
                **entry["load"],
                "program": name,
                "first_ms": float(np.median([value for each in times for value in each.first])) * 1e3,
                "gap_p50_ms": float(np.percentile(gaps, 50)),
                "gap_p99_ms": float(np.percentile(gaps, 99)),
                "tokens_per_second": Spread.of(each.rate for each in times).median,
            }
            rows.append({**row, "of_scheduler": row["tokens_per_second"] / alone_rate})
    return {"loads": rows, "watch": vars(Spread.of(results["watch"]))}


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = make_parser("A server under load.", "1 and 16 clients, a short prompt")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each load (default: 3)")
    options = parser.parse_args()
    report = start_report("serve", "uvicorn", "starlette")
    results = measure(QUICK if options.quick else FULL, options.rounds, options.llama_server)
    print_report({**report, **summarise(results)}, print_tables, as_json=options.json)


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A row per load and program."""
    columns = ("clients", "prompt", "shared", "program", "first ms", "gap p50", "p99 ms", "tokens/s", "of scheduler")
    table = make_table(columns, words=("program",))
    for row in report["loads"]:
        numbers = [f"{row[name]:,.0f}" for name in ("first_ms", "gap_p50_ms", "gap_p99_ms", "tokens_per_second")]
        place = [str(row[name]) for name in ("clients", "prompt", "shared")]
        table.add_row(*place, row["program"], *numbers, f"{row['of_scheduler']:.2f}")
    console.print(table)
    watch = report["watch"]
    console.print(f"4 of 16 clients looking inside: {watch['median']:.2f} of the tokens/s without")


if __name__ == "__main__":
    main()
