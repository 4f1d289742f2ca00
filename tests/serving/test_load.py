"""A server under load: many connections, readers that do not read, signals, texts of neighbours.

FORETELL_LOAD=1 runs the long forms (`make fuzz`), which print latencies; no test asserts a time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving.conftest import LONG, Served

listen = pytest.importorskip("foretell.serving.run").listen

PATTERN = "(😀é|a🙂b|ß\\n|ab){3,12}"  # characters of one to four bytes, which are tokens here

WATCH = """
import select, socket, sys, time
place = sys.argv[1], int(sys.argv[2])
while True:
    started = time.perf_counter()
    with socket.create_connection(place) as connection:
        connection.sendall(b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b" 200 " in answer[:20], answer
    print(1000 * (time.perf_counter() - started))
    if select.select([sys.stdin], [], [], 0.02)[0]:
        break
"""


def message(server: Served, path: str, body: dict[str, Any] | None = None) -> bytes:
    """A request as bytes; without a body, a GET."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {server.address.removeprefix('http://')}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode() + content


def place_of(server: Served) -> tuple[str, int]:
    host, port = server.address.removeprefix("http://").split(":")
    return host, int(port)


async def answer_to(server: Served, path: str, body: dict[str, Any] | None = None) -> bytes:
    """The whole answer, on a new connection."""
    reader, writer = await asyncio.open_connection(*place_of(server))
    writer.write(message(server, path, body))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def with_health(server: Served, work: Any) -> tuple[Any, list[float]]:
    """The result of the work, and the latencies of /health in the meantime, in milliseconds.

    Another process measures them: this one's event loop is busy with its connections.
    """
    host, port = place_of(server)
    watch = [sys.executable, "-c", WATCH, host, str(port)]
    watching = await asyncio.create_subprocess_exec(
        *watch, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    result = await work
    printed, _ = await watching.communicate(b"")  # closes its stdin
    assert watching.returncode == 0
    return result, sorted(map(float, printed.split()))


def show(name: str, latencies: list[float], server: Served) -> None:
    p50, p99 = (latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99))
    lag = 1000 * server.metric("event_loop_lag_seconds")
    print(f"{name}: /health p50 {p50:.0f} ms, p99 {p99:.0f} ms of {len(latencies)}; event loop lag {lag:.0f} ms")


@pytest.fixture(scope="module")
def loaded(start_server, toy_model):
    return start_server(str(toy_model), "--memory", "0.02", "--max-requests", "64", "--strict")


def test_connections_beyond_the_limit_are_told_to_come_back(loaded, run_async):
    server = loaded
    count = 2000 if LONG else 300
    body = {"prompt": "x", "max_tokens": 40, "ignore_eos": True}

    async def ask_at(seconds: float) -> bytes:
        await asyncio.sleep(seconds)
        return await answer_to(server, "/v1/completions", body)

    async def work() -> list[bytes]:
        return await asyncio.gather(*(ask_at(number / count) for number in range(count)))  # within a second

    answers, latencies = run_async(with_health(server, work()))
    statuses = [int(answer[9:12]) for answer in answers]
    show(f"{count} connections, {statuses.count(200)} answered", latencies, server)
    assert set(statuses) <= {200, 429} and statuses.count(200) >= 64
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429")]
    assert all(re.search(rb"(?i)\r\nretry-after: \d+\r\n", answer) for answer in refused)
    assert server.ask("/v1/completions", prompt="x")["choices"]


def test_a_full_server_reads_what_it_refuses(loaded, run_async):
    """A request that arrives in parts, or is not a POST, is answered too, and no connection is reset."""
    server, body = loaded, {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}
    whole = message(server, "/v1/completions", body)

    async def asked(*parts: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*place_of(server))
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        answer = await reader.read()
        writer.close()
        return answer

    async def work() -> list[bytes]:
        held = [await asyncio.open_connection(*place_of(server)) for _ in range(64)]
        for _, writer in held:
            writer.write(whole)
        while server.metric("requests") < 64:
            await asyncio.sleep(0.01)
        gathered = asked(whole), asked(whole[:30], whole[30:]), asked(whole[:-5], whole[-5:]), asked(b"POST x\r\n\r\n")
        answers = list(await asyncio.gather(*gathered, answer_to(server, "/v1/models")))
        for _, writer in held:
            writer.close()
        return answers

    statuses = [int(answer[9:12]) for answer in run_async(work())]
    assert statuses == [429, 429, 429, 400, 200]
    wait_for(server, "requests", 0)


def test_stalled_readers_do_not_stop_others(server, run_async):
    body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "seed": 1}
    large = {**body, "n": 16, "logprobs": 20, "stream": True}
    memory, count = server.memory(), 200 if LONG else 10

    async def work() -> float:
        started = time.perf_counter()
        answers = [await answer_to(server, "/v1/completions", {**body, "seed": seed}) for seed in range(10)]
        assert all(b" 200 " in answer[:20] for answer in answers)
        return time.perf_counter() - started

    before = run_async(work())
    stalled, num_tokens = [], server.metric("tokens_total")
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(place_of(server))
        connection.sendall(message(server, "/v1/completions", large))
        stalled.append(connection)
    # Users without keys have one turn per address: before that, the answers would wait for these texts
    wait_for(server, "tokens_total", num_tokens + count * large["n"] * large["max_tokens"])
    during, latencies = run_async(with_health(server, work()))
    assert server.memory() - memory < 50 * 1024
    show(f"{len(stalled)} stalled readers: 10 answers in {during:.2f} s, {before:.2f} s without", latencies, server)
    if LONG:  # given up after 30 seconds
        started = time.monotonic()
        wait_for(server, "requests", 0)
        print(f"all dropped {time.monotonic() - started:.0f} s after these answers")
    for connection in stalled:
        connection.close()
    wait_for(server, "requests", 0)
    assert server.metric("sequences_running") == server.metric("sequences_waiting") == 0


def wait_for(server: Served, name: str, value: float) -> None:
    deadline = time.monotonic() + 300
    while server.metric(name) != value:
        assert time.monotonic() < deadline, name
        time.sleep(0.05)


@pytest.mark.parametrize("repetition", range(10 if LONG else 1))
def test_sigterm_ends_no_stream(start_server, toy_model, repetition, run_async):
    server = start_server(str(toy_model), "--memory", "0.02")
    body = {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}

    async def work() -> tuple[list[bytes], bytes]:
        streams = [asyncio.create_task(answer_to(server, "/v1/completions", body)) for _ in range(32)]
        while server.metric("requests") < 32 and not all(stream.done() for stream in streams):
            await asyncio.sleep(0.01)
        server.process.terminate()
        late = b""
        while not late and not all(stream.done() for stream in streams):
            late = await answer_to(server, "/v1/completions", body)
            late = late if late.startswith(b"HTTP/1.1 503") else b""
        return await asyncio.gather(*streams), late

    streams, late = run_async(work())
    assert all(stream.rstrip().endswith(b"data: [DONE]\n\n\r\n0") for stream in streams)
    assert not late or b"server_error" in late
    assert server.process.wait(30) == 0
    with socket.create_server(place_of(server), reuse_port=False):
        pass


def test_stop_strings_cut_a_text_at_every_position(loaded):
    text = "😀éa🙂bß\nab😀"
    body = {"prompt": "x", "regex": text, "max_tokens": 60, "logprobs": 1}
    for first in range(len(text)):
        for size in (1, 3) if LONG else (1 + first % 2,):
            stop = text[first : first + size]
            [row] = ask_both(loaded, {**body, "stop": stop})
            assert row["text"] == text[: text.index(stop)]
            assert row["finish_reason"] == "stop"


def test_small_answers_do_not_wait_for_acknowledgements(run_async):
    async def option() -> int:
        connected = asyncio.get_running_loop().create_future()

        async def accept(_, writer: asyncio.StreamWriter) -> None:
            connected.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await connected

    assert run_async(option())


def test_joined_streams_are_the_plain_answers(loaded):
    draw = random.Random(5)
    for _ in range(2000 if LONG else 25):
        body = {
            "prompt": draw.choice(["x", "é😀", [240, 159], ["ab", "é"]]),
            "max_tokens": draw.choice([1, 2, 7, 50]),
            "n": draw.choice([1, 3]),
            "seed": draw.randrange(2**40),
            "stop": draw.choice([[], "a", ["🙂b", "😀"], "\n", "é😀"]),
            "logprobs": draw.choice([None, 0, 2]),
            "echo": draw.random() < 0.3,
            "temperature": draw.choice([0, 1, 2]),
            **draw.choice([{}, {"regex": PATTERN}, {"logit_bias": {"240": 60, "159": 60, "152": 60, "128": 60}}]),
        }
        ask_both(loaded, body)


def ask_both(server: Served, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a completion, after a comparison with its stream."""
    plain = server.ask("/v1/completions", **body)
    *chunks, last = server.stream("/v1/completions", **body, stream_options={"include_usage": True})
    assert last["usage"] == plain["usage"]
    for row in plain["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == row["index"]]
        assert "".join(part["text"] for part in parts) == row["text"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [row["finish_reason"]]
        for name, values in (row["logprobs"] or {}).items():
            assert [value for part in parts for value in part["logprobs"][name] or []] == (values or [])
    return plain["choices"]


def test_strict_answers_do_not_depend_on_their_neighbours(loaded):
    draw = random.Random(3)
    bodies = [
        {
            "prompt": "shared beginning of texts "[: draw.randint(1, 26)] + "x" * draw.randint(0, 30),
            "max_tokens": draw.randint(1, 40 if LONG else 12),
            "seed": seed,
            "logprobs": 3,
            "echo": draw.random() < 0.5,
            "temperature": draw.choice([0, 1, 2]),
        }
        for seed in range(64)
    ]

    def ask(body: dict[str, Any]) -> Any:
        answer = loaded.ask("/v1/completions", **body)
        return answer["choices"], answer["usage"]

    with ThreadPoolExecutor(64) as threads:
        together = list(threads.map(ask, bodies))
    assert together == [ask(body) for body in bodies]
