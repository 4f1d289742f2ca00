"""`foretell serve` under load, its scheduler alone and other servers, with random weights of GPT-2's shape.

    python bench/serve.py                                   1, 4, 16 and 64 clients, prompts of 32, 256 and 900 tokens
    python bench/serve.py --clients 1 4                     only the loads with these numbers of clients
    python bench/serve.py --llama-server FILE               with llama.cpp's server, built from its sources
    python bench/serve.py --transformers FILE               with `transformers serve`, of transformers[serving]
    python bench/serve.py --device cuda                     on a GPU
    python bench/serve.py --quick                           1 and 16 clients, a short prompt: a minute
    python bench/serve.py --tasks                           streams of primer next to 16 clients of every task

Each client sends one request after the other and reads its stream. All programs have the same weights in bfloat16
(llama.cpp in float16), get the same prompts and write greedily; they take turns. "shared" is a prompt of 256 tokens of
which all clients have the first 240. The scheduler alone reads prompts in the same parts, and a sequence joins where
one ends. cpu: processor time of the server per token, which other programs on the machine change little. fair: the
shortest time of a request over the longest. watch: 4 of 16 clients also ask for the output of one block, in ratio to
none asking. The clients run in this process and share the processor with the programs; client is their processor time
per token. Each request has its own connection; kept: the time of an answer of one token on a connection that one client
keeps, as clients of OpenAI do.

--tasks: a client reads streams of primer, alone and then next to 16 clients that send requests of one task, in turns.
ratio: its tokens/s, in ratio to those alone. requests/s of the 16 clients. The models of the tasks are small and have
seen a few steps.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import foretell  # isort: skip - before torch, so that OpenMP's threads wait as in the command line
import numpy as np
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import Spread, note
from processes import cpu_seconds, free_port
from rich.console import Console

from foretell.config.sampling import SamplingConfig
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.serving.models import STEP_SECONDS

DTYPE = "bfloat16"
NEW_TOKENS = 120  # with the longest prompt, they fit the context
KEPT, SHORT = 30, 32  # answers on a kept connection, and tokens of their prompts
WATCHED = {"look": {"values": ["trunk.blocks.6"], "tokens": "new"}}
STARTING_SECONDS = 300
DATA = b"data: {"  # begins an event of a stream
WORD = re.compile(rb" [a-z]+")  # a tokenizer reads such tokens, joined as text, as the same ids


@dataclass(frozen=True)
class Load:
    """Clients, and their prompts; shared: the number of tokens with which all prompts begin."""

    clients: int
    prompt: int
    shared: int = 0

    @property
    def num_requests(self) -> int:
        """Two of each client in a round; with many clients one."""
        return self.clients * (2 if self.clients <= 16 else 1)

    def prompts(self, words: list[int], draw: random.Random) -> list[list[int]]:
        """New ones in every round: a cache must not know them."""
        beginning = draw.choices(words, k=self.shared)
        return [[*beginning, *draw.choices(words, k=self.prompt - self.shared)] for _ in range(self.num_requests)]


FULL = [Load(clients, prompt) for clients in (1, 4, 16, 64) for prompt in (32, 256, 900)]
FULL += [Load(clients, 256, shared=240) for clients in (4, 16, 64)]
QUICK = [Load(1, 32), Load(16, 32)]


@dataclass(frozen=True)
class Times:
    """The result of one load: seconds of every request, to its first token and between its tokens; of all requests,
    tokens/s and seconds of processor time per token, of the program and of the clients."""

    whole: list[float]
    first: list[float]
    gaps: list[float]
    rate: float
    cpu: float
    client_cpu: float = 0.0


@dataclass(frozen=True)
class Program:
    """A server with its process. fields: of its requests; decode: for one that reads text alone, the text of ids."""

    port: int
    process: subprocess.Popen[bytes]
    fields: dict[str, Any]
    decode: Callable[[list[int]], str] | None = None


class Stream(asyncio.Protocol):
    """One request; notes the time of sending it, then of each token of its answer.

    asyncio's readers would take half as much processor time as the server.
    """

    def __init__(self, port: int, body: dict[str, Any], path: str):
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        self.message = f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        self.times: list[float] = []
        self.start, self.end = b"", b""  # of the answer; a network cuts events anywhere
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.times.append(time.perf_counter())
        transport.write(self.message)

    def data_received(self, data: bytes) -> None:
        self.start = self.start or data[:100]
        data = self.end + data
        self.times += [time.perf_counter()] * data.count(DATA)
        self.end = data[1 - len(DATA) :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.cancelled():  # its client was stopped
            self.ended.set_result(None)


async def stream(port: int, body: dict[str, Any], path: str = "/v1/completions") -> list[float]:
    """The time of sending a request, then of each token of its answer."""
    loop = asyncio.get_running_loop()
    transport, answer = await loop.create_connection(lambda: Stream(port, body, path), "127.0.0.1", port)
    try:
        await answer.ended
    finally:
        transport.close()
    assert b" 200 " in answer.start, answer.start
    return answer.times


async def send(program: Program, load: Load, prompts: list[list[int]], watching: int = 0) -> Times:
    """Send prompts as a load's clients do; the first `watching` clients also look inside."""

    async def client(index: int) -> list[list[float]]:
        extra = WATCHED if index < watching else {}
        body = {"max_tokens": NEW_TOKENS, "temperature": 0, "stream": True, **program.fields, **extra}
        asked = [program.decode(ids) if program.decode else ids for ids in prompts[index :: load.clients]]
        return [await stream(program.port, {**body, "prompt": prompt}) for prompt in asked]

    started, cpu, client_cpu = time.perf_counter(), cpu_seconds(program.process.pid), time.process_time()
    answers = [times for found in await asyncio.gather(*map(client, range(load.clients))) for times in found]
    seconds = time.perf_counter() - started
    gaps = [after - before for times in answers for before, after in pairwise(times[1:])]
    whole, first = [times[-1] - times[0] for times in answers], [times[1] - times[0] for times in answers]
    num_tokens = len(answers) * NEW_TOKENS
    spent = cpu_seconds(program.process.pid) - cpu, time.process_time() - client_cpu
    return Times(whole, first, gaps, num_tokens / seconds, *(each / num_tokens for each in spent))


def alone(scheduler: Scheduler, load: Load, prompts: list[list[int]]) -> Times:
    """The rates of the scheduler, with as many sequences at once as there are clients: where one ends, one joins."""
    rules = Rules(Sampler(SamplingConfig(temperature=0)), NEW_TOKENS)
    sequences = (Sequence(ids, rules=rules) for ids in prompts)
    started, cpu = time.perf_counter(), time.process_time()
    for sequence in islice(sequences, load.clients):
        scheduler.add(sequence)
    while scheduler.is_busy:
        scheduler.step()
        for sequence in islice(sequences, len(scheduler.ended)):
            scheduler.add(sequence)
    num_tokens = len(prompts) * NEW_TOKENS
    rates = num_tokens / (time.perf_counter() - started), (time.process_time() - cpu) / num_tokens
    return Times([], [], [], *rates)


@contextmanager
def running(command: list[str], port: int, ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server as a process, once it is ready."""
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
        yield process
    finally:
        process.terminate()
        process.wait()


def save_model(folder: Path) -> Path:
    """A model of GPT-2's shape with random weights and the tokenizer of `primer`."""
    tokenizer = foretell.load("primer").tokenizer
    decoder = make_decoder(preset_config("gpt2", vocab_size=tokenizer.vocab_size), seed=1).eval()
    LanguageModel(decoder, tokenizer, "gpt2-shape").save(folder / "gpt2-shape", DTYPE)
    return folder / "gpt2-shape"


def start_programs(model: Path, peers: dict[str, Path | None], device: str, stack: ExitStack) -> dict[str, Program]:
    port, most = free_port(), max(load.clients for load in FULL)
    command = [sys.executable, "-m", "foretell", "serve", str(model), "--dtype", DTYPE, "--device", device]
    process = stack.enter_context(running([*command, "--port", str(port)], port, "/ready"))
    programs = {"foretell": Program(port, process, {"ignore_eos": True})}
    if file := peers["llama-server"]:
        port, weights = free_port(), convert(model, model.with_suffix(".gguf"), "gguf", "f16")
        command = [str(file), "--model", str(weights), "--parallel", str(most), "--ctx-size", str(1024 * most)]
        process = stack.enter_context(running([*command, "--threads", "2", "--port", str(port)], port, "/health"))
        programs["llama-server"] = Program(port, process, {"ignore_eos": True})
    if file := peers["transformers"]:
        port, weights = free_port(), str(convert(model, model.with_name("transformers"), "huggingface", DTYPE))
        command = [str(file), "serve", weights, "--dtype", DTYPE, "--device", device, "--port", str(port)]
        process = stack.enter_context(running(command, port, "/health"))
        programs["transformers"] = Program(port, process, {"model": weights}, foretell.load(model).tokenizer.decode)
    return programs


def convert(model: Path, target: Path, kind: str, dtype: str) -> Path:
    """Write a model in the format of another program."""
    command = [sys.executable, "-m", "foretell", "convert", str(model), str(target), "--to", kind, "--dtype", dtype]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return target


def measure(loads: list[Load], rounds: int, peers: dict[str, Path | None], device: str) -> dict[str, Any]:
    """The times of every load and program, and of the scheduler alone."""
    results: dict[str, Any] = {"loads": [], "watch": None, "kept": {}}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        model = save_model(Path(folder))
        programs = start_programs(model, peers, device, stack)
        loaded = foretell.load(model, device=device, dtype=DTYPE)
        scheduler, draw = Scheduler(loaded.decoder, step_seconds=STEP_SECONDS), random.Random(1)
        words = [id for id in range(loaded.tokenizer.vocab_size) if WORD.fullmatch(loaded.tokenizer.bytes_of(id))]
        for number, load in enumerate(loads):
            note(f"{load}")
            found: dict[str, list[Any]] = {name: [] for name in (*programs, "scheduler")}
            num_unmeasured = 1 if number == 0 else 0  # warms up
            for _ in range(rounds + num_unmeasured):
                for name, program in programs.items():
                    found[name].append(asyncio.run(send(program, load, load.prompts(words, draw))))
                found["scheduler"].append(alone(scheduler, load, load.prompts(words, draw)))
            measured = {name: values[num_unmeasured:] for name, values in found.items()}
            results["loads"].append({"load": vars(load), **measured})
        results["kept"] = {name: measure_kept(program, words, draw) for name, program in programs.items()}
        results["watch"] = measure_watching(programs["foretell"], words, rounds, draw)
    return results


def measure_kept(program: Program, words: list[int], draw: random.Random) -> list[float]:
    """Seconds of answers of one token, one after the other on the same connection."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", program.port), []
    for _ in range(KEPT + 1):
        ids = draw.choices(words, k=SHORT)
        body = {"prompt": program.decode(ids) if program.decode else ids, "max_tokens": 1, **program.fields}
        started = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds[1:]


def measure_watching(program: Program, words: list[int], rounds: int, draw: random.Random) -> list[float]:
    """Tokens/s with 4 of 16 clients that look inside, in ratio to none, for each round."""
    load, ratios = Load(16, 32), []
    for _ in range(rounds + 1):
        rates = [asyncio.run(send(program, load, load.prompts(words, draw), count)).rate for count in (4, 0)]
        ratios.append(rates[0] / rates[1])
    return ratios[1:]


# --- streams next to tasks -------------------------------------------------------------------------------------------

TASK_CLIENTS, TASK_SECONDS = 16, 4.0
STREAMED = {"model": "primer", "prompt": "The", "max_tokens": 100, "ignore_eos": True, "stream": True}
SERIES = [float(hour % 5) for hour in range(60)]
TEXTS = [f"text {number} is good" for number in range(64)]
FILES = {  # header and rows
    "labels.csv": ("text,label", [f"{text},{label}" for text in TEXTS for label in ("good", "bad")]),
    "series.csv": ("y", [str(value) for value in SERIES]),
    "pairs.tsv": ("a cat\tun chat", [f"a cat number {number}\tun chat numéro {number}" for number in range(40)]),
}
COMMANDS = {
    "predict": ["finetune", "primer", "labels.csv", "--task", "classify", "--steps", "1"],
    "forecast": ["train", "--task", "forecast", "series.csv", "--size", "toy", "--steps", "3"],
    "translate": ["train", "--task", "translate", "pairs.tsv", "--size", "toy", "--steps", "3"],
}
LOOK = {"values": ["trunk.blocks.0"], "lens": 3}
CHANGE = {"value": "trunk.blocks.0", "patch": "The return value of", "positions": [0]}
SHORT_TEXT = {"model": "primer", "prompt": "The return value of the", "max_tokens": 5}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "predict": ("/v1/predict", {"model": "predict", "input": TEXTS}),
    "forecast": ("/v1/forecast", {"model": "forecast", "series": [SERIES], "horizon": 100, "samples": 500}),
    "translate": ("/v1/translate", {"model": "translate", "input": TEXTS}),
    "embeddings": ("/v1/embeddings", {"model": "primer", "input": TEXTS}),
    "score": ("/v1/score", {"model": "primer", "text": TEXTS}),
    "explore": ("/explore", {"model": "primer", "text": "The return value of the", "sections": ["logits", "outline"]}),
    "complete": ("/v1/completions", SHORT_TEXT),
    "look": ("/v1/completions", {**SHORT_TEXT, "look": LOOK}),
    "change": ("/v1/completions", {**SHORT_TEXT, "change": [CHANGE]}),
}


def train_models(folder: Path) -> list[str]:
    """A small model for each task; returns the arguments of a server for them."""
    for name, (header, rows) in FILES.items():
        (folder / name).write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    for name, command in COMMANDS.items():
        note(f"a model for {name}")
        words = [sys.executable, "-m", "foretell", *command, "--out", name]
        subprocess.run(words, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ["primer", *(f"{name}={folder / name}" for name in COMMANDS)]


async def read_streams(port: int, seconds: float) -> tuple[float, list[float]]:
    """The tokens/s of one client that reads stream after stream, and the gaps between tokens."""
    started, answers = time.perf_counter(), list[list[float]]()
    while time.perf_counter() < started + seconds:
        answers.append(await stream(port, STREAMED))
    rate = sum(len(times) - 1 for times in answers) / (time.perf_counter() - started)
    return rate, [after - before for times in answers for before, after in pairwise(times[1:])]


async def next_to(port: int, path: str, body: dict[str, Any]) -> tuple[float, list[float], float]:
    """`read_streams` next to clients of a task, and the requests/s of these."""
    num_answered = 0

    async def ask() -> None:
        nonlocal num_answered
        while True:
            await stream(port, body, path)
            num_answered += 1

    clients, started = [asyncio.ensure_future(ask()) for _ in range(TASK_CLIENTS)], time.perf_counter()
    await asyncio.sleep(TASK_SECONDS / 10)
    rate, gaps = await read_streams(port, TASK_SECONDS)
    requests = num_answered / (time.perf_counter() - started)
    for client in clients:
        assert not client.done(), client.exception()
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return rate, gaps, requests


def measure_tasks(rounds: int) -> list[dict[str, Any]]:
    """The speed of streams next to each task."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models, port = train_models(Path(folder)), free_port()
        command = [sys.executable, "-m", "foretell", "serve", *models, "--memory", "1", "--port", str(port)]
        with running(command, port, "/ready"):
            for name, (path, body) in TASKS.items():
                note(f"next to {name}")
                asyncio.run(stream(port, body, path))  # warms up
                ratios, gaps, requests = [], list[float](), []
                for _ in range(rounds):
                    alone, _ = asyncio.run(read_streams(port, TASK_SECONDS))
                    rate, some, asked = asyncio.run(next_to(port, path, body))
                    ratios.append(rate / alone)
                    gaps += some
                    requests.append(asked)
                row = {"task": name, "ratio": Spread.of(ratios).median, "requests": Spread.of(requests).median}
                rows.append({**row, "gap_p99_ms": 1e3 * float(np.percentile(gaps, 99)), "gap_max_ms": 1e3 * max(gaps)})
    return rows


def print_tasks(console: Console, report: BenchmarkReport) -> None:
    names = {"ratio": "ratio", "p99 ms": "gap_p99_ms", "max ms": "gap_max_ms", "requests/s": "requests"}
    table = make_table(("task", *names), words=("task",))
    for row in report["tasks"]:
        table.add_row(row["task"], *(f"{row[name]:,.{0 if name.endswith('ms') else 2}f}" for name in names.values()))
    console.print(table)


def summarise(results: dict[str, Any]) -> dict[str, Any]:
    """Medians over rounds, and percentiles over all tokens, as plain numbers."""
    rows = []
    for entry in results["loads"]:
        alone_rate = Spread.of(each.rate for each in entry["scheduler"]).median
        alone_cpu = Spread.of(each.cpu for each in entry["scheduler"]).median
        for name in (name for name in entry if name not in ("load", "scheduler")):
            times = entry[name]
            gaps = np.array([gap for each in times for gap in each.gaps]) * 1e3
            row = {
                **entry["load"],
                "program": name,
                "first_ms": float(np.median([value for each in times for value in each.first])) * 1e3,
                "gap_p50_ms": float(np.percentile(gaps, 50)),
                "gap_p99_ms": float(np.percentile(gaps, 99)),
                "fairness": float(np.median([min(each.whole) / max(each.whole) for each in times])),
                "tokens_per_second": Spread.of(each.rate for each in times).median,
                "cpu_ms": Spread.of(each.cpu for each in times).median * 1e3,
                "client_cpu_ms": Spread.of(each.client_cpu for each in times).median * 1e3,
            }
            row["of_scheduler"] = row["tokens_per_second"] / alone_rate
            rows.append({**row, "cpu_of_scheduler": row["cpu_ms"] / 1e3 / alone_cpu})
    kept = {name: 1e3 * float(np.median(seconds)) for name, seconds in results["kept"].items()}
    return {"loads": rows, "watch": vars(Spread.of(results["watch"])), "kept_ms": kept}


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = make_parser("A server under load.", "1 and 16 clients, a short prompt")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--transformers", type=Path, help="the command of transformers")
    parser.add_argument("--tasks", action="store_true", help="only streams next to clients of every task")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--clients", type=int, nargs="+", help="only loads with these numbers of clients")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each load (default: 3)")
    options = parser.parse_args()
    report = start_report("serve", "uvicorn", "starlette")
    if options.tasks:
        measured = measure_tasks(1 if options.quick else options.rounds)
        print_report({**report, "tasks": measured}, print_tasks, as_json=options.json)
        return
    loads = [load for load in (QUICK if options.quick else FULL) if load.clients in (options.clients or [load.clients])]
    peers = {"llama-server": options.llama_server, "transformers": options.transformers}
    results = measure(loads, options.rounds, peers, options.device)
    print_report({**report, **summarise(results)}, print_tables, as_json=options.json)


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """Two tables of the loads and programs: 80 columns are too few for one."""
    place = ("clients", "prompt", "shared")
    speeds = {"first ms": "first_ms", "gap p50": "gap_p50_ms", "p99 ms": "gap_p99_ms", "tokens/s": "tokens_per_second"}
    shares = {"cpu ms": "cpu_ms", "client": "client_cpu_ms", "fair": "fairness", "of alone": "of_scheduler"}
    shares["cpu/alone"] = "cpu_of_scheduler"
    for names, digits in ((speeds, 0), (shares, 2)):
        table = make_table((*place, "program", *names), words=("program",))
        for row in report["loads"]:
            numbers = (f"{row[name]:,.{digits}f}" for name in names.values())
            table.add_row(*(str(row[name]) for name in place), row["program"], *numbers)
        console.print(table)
    kept = ", ".join(f"{name} {milliseconds:.1f}" for name, milliseconds in report["kept_ms"].items())
    console.print(f"one token after {SHORT} on a kept connection, ms: {kept}")
    watch = report["watch"]
    console.print(f"4 of 16 clients looking inside: {watch['median']:.2f} of the tokens/s without")


if __name__ == "__main__":
    main()
