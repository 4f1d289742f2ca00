"""Clients that leave, servers that stop: nothing is left running, and no stream ends in the middle."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import struct
import threading
import time

import pytest

from tests.serving.conftest import LONG


def wait_until(condition, seconds=10.0):
    """Wait for a condition; returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_idle(server) -> bool:
    names = ("requests", "sequences_running", "sequences_waiting")
    return not any(server.metric(name) for name in names)


def open_request(server, body, buffer=None):
    """A connection on which a request was sent; buffer: the bytes that the client's system takes before it is read."""
    host, port = server.address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((host, int(port)))
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def send_raw(server, body, reset=False, read=0):
    """Send a request, read a few bytes of its answer, and close the connection, politely or not."""
    connection = open_request(server, body)
    if read:
        connection.recv(read)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_after_disconnects_nothing_is_left(server):
    assert wait_until(lambda: is_idle(server))
    free = server.metric("cache_blocks_free")
    draw = random.Random(2)
    for number in range(1000 if LONG else 100):
        body = {
            "prompt": "x" * draw.choice([1, 60]),
            "max_tokens": 60,
            "n": draw.choice([1, 16]),
            "seed": number,
            "stream": draw.random() < 0.5,
            "ignore_eos": True,
        }
        send_raw(server, body, reset=draw.random() < 0.5, read=draw.choice([0, 40, 4000]))
    assert wait_until(lambda: is_idle(server))
    assert wait_until(lambda: server.metric("cache_blocks_free") == free)  # a cancellation may still be in the queue
    assert server.ask("/v1/completions", prompt="x", max_tokens=2)["choices"]
    assert "socket.send" not in server.logged()


def test_a_client_that_leaves_while_it_sends_is_no_failure(start_server, toy_model):
    server = start_server(str(toy_model), "--memory", "0.05")
    host, port = server.address.removeprefix("http://").split(":")
    head = f"POST /tokenize HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert server.client.get("/health").status_code == 200  # the beginning of the body has been read
    assert wait_until(lambda: is_idle(server))
    assert server.stop(signal.SIGHUP) == 0  # the terminal is closed
    assert "failed" not in server.logged()
    assert server.logged().rstrip().endswith("stopping")  # without requests, their number is left out


def test_a_reader_that_stalls_is_dropped(start_server, toy_model):
    """Its sequences end with it, long before they have all their tokens."""
    program = (
        "from foretell.serving import connection; connection.SECONDS = 0.5; import foretell.__main__ as run; run.main()"
    )
    server = start_server(str(toy_model), "--memory", "0.02", program=("-c", program))
    free, num_tokens = server.metric("cache_blocks_free"), server.metric("tokens_total")
    body = {"prompt": ["x"] * 16, "max_tokens": 120, "n": 16, "ignore_eos": True, "logprobs": 20, "stream": True}
    with open_request(server, body, buffer=4096) as stalled:
        assert wait_until(lambda: server.metric("requests") == 1)
        assert wait_until(lambda: is_idle(server), seconds=30)
        assert server.metric("cache_blocks_free") == free
        assert server.metric("tokens_total") - num_tokens < 16 * 16 * 120
        parts = list(iter(lambda: stalled.recv(2**16), b""))
    assert parts[0].startswith(b"HTTP/1.1 200 ") and not parts[-1].endswith(b"\r\n0\r\n\r\n")


def test_a_poisoned_request_fails_alone(server):
    # two banned bytes out of the two that the pattern allows leave no token
    body = {"prompt": "x", "regex": "[ab]+c", "logit_bias": {"97": -100, "98": -100, "99": -100}}
    texts = {}

    def ask(seed):
        texts[seed] = server.ask("/v1/completions", prompt="y", seed=seed, max_tokens=40)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    answer = server.post("/v1/completions", **body)
    for thread in threads:
        thread.join()
    assert answer.status_code in (200, 400)
    for seed, text in texts.items():
        assert server.ask("/v1/completions", prompt="y", seed=seed, max_tokens=40)["choices"][0]["text"] == text


def test_sigterm_lets_streams_finish(start_server, toy_model):
    server = start_server(str(toy_model), "--memory", "0.05", program=("-m", "foretell"))
    results = []

    def read():
        results.append(server.stream("/v1/completions", prompt="x", max_tokens=100, n=8, ignore_eos=True))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: server.metric("requests") + len(results) >= 4)  # a later one would be refused
    server.process.terminate()
    for thread in threads:
        thread.join()
    assert server.process.wait(30) == 0
    assert len(results) == 4
    assert re.search(r"stopping(?:$|: [1-4] requests? ha(?:s|ve) 30 seconds; a second)", server.logged(), re.MULTILINE)
    for chunks in results:
        assert sum(bool(row["finish_reason"]) for chunk in chunks for row in chunk["choices"]) == 8


@pytest.mark.parametrize("grace", ["0", pytest.param("30", marks=pytest.mark.long)])
def test_a_hurried_stop_ends_streams_with_an_error(start_server, toy_model, grace):
    server = start_server(str(toy_model), "--memory", "0.05", "--grace", grace)
    lines = []

    def read():
        body = {"prompt": "x", "max_tokens": 120, "n": 16, "ignore_eos": True, "stream": True, "logprobs": 20}
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            for line in filter(None, answer.iter_lines()):
                lines.append(line)
                begun.set()

    thread, begun = threading.Thread(target=read), threading.Event()
    thread.start()
    assert begun.wait(30)  # before, the answer would be one error without a stream
    server.process.terminate()
    if grace == "30":
        server.process.terminate()
    assert server.process.wait(30) == 0
    thread.join()
    assert lines[-1] == "data: [DONE]"
