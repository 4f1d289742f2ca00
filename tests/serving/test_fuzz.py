"""Random requests, valid and broken, over all routes, from clients that leave at random moments.

FORETELL_FUZZ_REQUESTS sets the number of requests (`make fuzz`), FORETELL_FUZZ_SEED the first seed, and
FORETELL_SOAK_SECONDS the duration of the test with 64 clients.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import LEAKS

NUM_REQUESTS = int(os.environ.get("FORETELL_FUZZ_REQUESTS", "300"))
SEED = int(os.environ.get("FORETELL_FUZZ_SEED", "1"))
SOAK_SECONDS = float(os.environ.get("FORETELL_SOAK_SECONDS", "5"))
NUM_CLIENTS, ROUNDS = 8, 5
NUM_SOAKING, SOAK_ROUNDS = 64, 10
MEMORY_CHECKED_FROM, MEMORY_CHECKED_AFTER = 5000, 100  # requests, seconds: the first ones fill caches
STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
TEXTS = ["", "x", "some words", "é😀ß", "\ud800", "\0\r\n", "a" * 300, "0x7fffffff", "../../etc/passwd", "<script>"]
VALUES: list[Any] = [None, True, False, 0, 1, -1, 7, 0.5, -0.0, 1e308, 1e-320, 2**31, 2**63, -(2**70), float("nan")]
VALUES += [float("inf"), [], {}, [[]], [None], [""], {"": {}}, {"type": "text"}, *TEXTS, TEXTS, [1, "x"], [[1], [2]]]
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"enum": ["red", "green"]},
    {"$ref": "#"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 10**6},
    {"type": "string", "pattern": "(a|b){9}{9}"},
    {"not": {}},
]
BASE64 = re.compile(rb"[A-Za-z0-9+/]{99,}")  # values of a look, in which 0x12abcd may occur
LOOKS: list[Any] = [
    {"values": ["trunk.blocks.0"], "tokens": "new"},
    {"values": ["trunk.blocks.*.attention.core.weights"], "positions": [0, 3]},
    {"values": ["**"], "format": "safetensors"},
    {"lens": 3},
    {"contributions": True},
    {"values": ["no.such.name"]},
]
CHANGES: list[Any] = [
    [{"value": "trunk.blocks.0.attention.core", "heads": [1], "scale": 0}],
    [{"value": "trunk.blocks.1", "add": 0.5, "positions": [1]}, {"value": "embed", "neurons": [0, 2], "set": -1}],
    [{"value": "trunk.blocks.0", "patch": "other words"}],
    [{"value": "trunk.blocks.0", "add": [1.0, 2.0]}],
    [{"value": "trunk.blocks.*", "scale": 1e38}],
]


class Client:
    """Makes and sends the requests of one thread."""

    def __init__(self, address: str, seed: int):
        host, port = address.removeprefix("http://").split(":")
        self.address, self.draw = (host, int(port)), random.Random(seed)
        self.problems: list[str] = []
        self.num_sent = self.num_answers = 0
        self.request = ""  # the latest one

    def run(self, count: int, seconds: float = float("inf")) -> None:
        """Send this number of requests, or those that fit the time."""
        deadline = time.monotonic() + seconds
        for number in range(count):
            if time.monotonic() > deadline:
                return
            self.num_sent += 1
            try:
                self._send(number)
            except (ConnectionError, TimeoutError) as error:
                self.problems.append(f"{self.request}\n  -> {error!r}")

    # ------------------------------------------------------------------ requests

    def _messages(self) -> list[dict[str, Any]]:
        parts = [{"type": "text", "text": self.draw.choice(TEXTS[1:4])}]
        contents = [self.draw.choice(TEXTS[1:4]), parts]
        roles = ["system", "developer", "user", "assistant"]
        count = self.draw.randint(1, 3)
        return [{"role": self.draw.choice(roles), "content": self.draw.choice(contents)} for _ in range(count)]

    def _prompt(self) -> Any:
        ids = [self.draw.randrange(256) for _ in range(self.draw.randint(1, 20))]
        text = "".join(self.draw.choice("ab é😀") for _ in range(self.draw.randint(0, 30)))
        return self.draw.choice([text, ids, [text, "x"], [ids, ids[:1]]])

    def _generation(self) -> dict[str, Any]:
        fields = {
            "temperature": self.draw.choice([0, 0.7, 1, 2]),
            "top_p": self.draw.choice([0.1, 1]),
            "top_k": self.draw.choice([-1, 0, 5]),
            "n": self.draw.choice([1, 1, 3]),
            "seed": self.draw.randrange(-(2**63), 2**63),
            "stop": self.draw.choice(["a", ["b", "é"], [], ["\ud83d"]]),
            "logit_bias": {str(self.draw.randrange(300)): self.draw.choice([-100, 5])},
            "frequency_penalty": self.draw.choice([-2, 1]),
            "min_tokens": self.draw.choice([0, 3]),
            "bad_words": ["x", "é"],
            "ignore_eos": True,
            "regex": self.draw.choice(["[a-c]{3,9}", "(", "é+"]),
            "response_format": {"type": "json_schema", "json_schema": {"schema": self.draw.choice(SCHEMAS)}},
            "prompt_logprobs": 2,
            "return_token_ids": True,
            "cache_salt": self.draw.choice(TEXTS),
            "stream_options": {"include_usage": True},
            "look": self.draw.choice(LOOKS),
            "change": self.draw.choice(CHANGES),
        }
        chosen = self.draw.sample(sorted(fields), self.draw.randint(0, 4))
        return {name: fields[name] for name in chosen} | {"stream": self.draw.random() < 0.4}

    def _request(self) -> tuple[str, str, Any]:
        """Method, path and body."""
        long, some = self.draw.choice([1, 5, 60]), self._prompt()
        bodies: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": some, "max_tokens": long, "echo": long == 5, "logprobs": 2},
            "/v1/chat/completions": {"messages": self._messages(), "max_tokens": long, "logprobs": True},
            "/v1/responses": {"input": self.draw.choice([self._messages(), "x"]), "max_output_tokens": long},
            "/v1/embeddings": {"input": some, "encoding_format": self.draw.choice(["float", "base64"])},
            "/v1/score": self.draw.choice([{"text": "ab"}, {"context": "a", "continuations": ["b", "é"]}]),
            "/tokenize": self.draw.choice([{"prompt": "é"}, {"messages": self._messages()}]),
            "/detokenize": {"tokens": [self.draw.randrange(300) for _ in range(5)]},
        }
        reads = "/v1/models /v1/models/toy /tokenizer_info /health /ready /metrics /%ff/.. /?a=%00"
        if self.draw.random() < 0.15:
            return self.draw.choice(["GET", "GET", "POST", "DELETE", "HEAD"]), self.draw.choice(reads.split()), {}
        path = self.draw.choice([*STREAMED, *bodies])
        body = bodies[path] | (self._generation() if path in STREAMED else {})
        if self.draw.random() < 0.5:
            self._mutate(body)
        return "POST", path, body

    def _mutate(self, body: dict[str, Any]) -> None:
        for _ in range(self.draw.randint(1, 2)):
            name = self.draw.choice([*body, "tools", "logprobs", "surprise", "\ud800"])
            match self.draw.randrange(4):
                case 0:
                    body.pop(name, None)
                case 1 if isinstance(body.get(name), list):
                    body[name] = [*body[name], self.draw.choice(VALUES)]
                case 2 if isinstance(body.get(name), dict):
                    body[name] = {**body[name], self.draw.choice(TEXTS): self.draw.choice(VALUES)}
                case _:
                    body[name] = self.draw.choice(VALUES)

    # ------------------------------------------------------------------ connections

    def _send(self, number: int) -> None:
        method, path, body = self._request()
        content = json.dumps(body).encode()
        self.request = f"request {number}: {method} {path} {content[:2000]!r}"
        if self.draw.random() < 0.05:
            cut = self.draw.randrange(len(content))
            content = content[:cut] + self.draw.randbytes(3) + content[cut + 2 :]
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.address[1]}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        message = head.encode() + content
        with socket.create_connection(self.address, timeout=60) as connection:
            manner = self.draw.choice(["read"] * 7 + ["close", "reset", "half-close", "part", "glance", "glance"])
            connection.sendall(message[: self.draw.randrange(1, len(message))] if manner == "part" else message)
            if manner == "read":
                self._check(read_all(connection))
                return
            if manner == "half-close":
                connection.shutdown(socket.SHUT_WR)
            if manner == "glance":  # the first part of the answer
                connection.recv(self.draw.choice([1, 300]))
            time.sleep(self.draw.choice([0, 0, 0.01]))
            if self.draw.random() < 0.5 or manner == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _check(self, answer: bytes) -> None:
        self.num_answers += 1
        head, _, content = answer.partition(b"\r\n\r\n")
        status = int(head[9:12] or 0)
        wrong_shape = 400 <= status < 500 and content and b'{"error":{"message":' not in content
        error_in_stream = status == 200 and b'"type":"server_error"' in content
        if (
            not 200 <= status < 500
            or wrong_shape
            or error_in_stream
            or LEAKS.search(BASE64.sub(b"", content).replace(b"0x7fffffff", b""))
        ):
            self.problems.append(f"{self.request}\n  -> {answer[:600]!r}")


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(2**16):
        parts.append(part)
    return b"".join(parts)


def idle_state(server) -> dict[str, float]:
    """What is in use by a server after all its requests: cache blocks, descriptors, threads, private memory."""
    deadline = time.monotonic() + 20
    names = ("requests", "sequences_running", "sequences_waiting")
    while (busy := {name: server.metric(name) for name in names}) != dict.fromkeys(names, 0):
        assert time.monotonic() < deadline, busy
        time.sleep(0.05)
    time.sleep(0.1)  # connections that were reset are closed
    process = Path(f"/proc/{server.process.pid}")
    state = {"blocks": server.metric("cache_blocks_free")}
    if process.exists():  # Linux
        state |= {
            "descriptors": len(list((process / "fd").iterdir())),
            "threads": len(list((process / "task").iterdir())),
            "kilobytes": server.memory(),
        }
    return state


def fuzz(server, seed: int, num_clients: int, count: int, seconds: float = float("inf")) -> dict[str, float]:
    """The state of a server after requests of several clients (see `Client.run`). Fails with the wrong answers."""
    clients = [Client(server.address, seed + index) for index in range(num_clients)]
    threads = [threading.Thread(target=client.run, args=(count, seconds)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    problems = [problem for client in clients for problem in client.problems]
    assert not problems, f"seed {seed}: {len(problems)} problems\n" + "\n".join(problems[:10])
    num_sent, num_answers = (sum(client.num_sent for client in clients), sum(client.num_answers for client in clients))
    assert num_answers > num_sent / 4
    state = idle_state(server)
    print(f"seed {seed}: {num_sent} requests, {num_answers} answers read; {state}")
    return state


@pytest.fixture(scope="module")
def fuzzed(start_server, toy_model):
    return start_server(str(toy_model), "--memory", "0.02")


def test_random_requests_leave_nothing_behind(fuzzed):
    count = NUM_REQUESTS // ROUNDS // NUM_CLIENTS
    states = [fuzz(fuzzed, SEED + NUM_CLIENTS * number, NUM_CLIENTS, count) for number in range(ROUNDS)]
    check_growth(states[1:], NUM_REQUESTS >= MEMORY_CHECKED_FROM)


@pytest.mark.long
def test_a_soak_leaves_nothing_behind(fuzzed):
    seconds = SOAK_SECONDS / SOAK_ROUNDS
    seeds = range(SEED, SEED + NUM_SOAKING * SOAK_ROUNDS, NUM_SOAKING)
    states = [fuzz(fuzzed, seed, NUM_SOAKING, 10**9, seconds) for seed in seeds]
    check_growth(states[1:], SOAK_SECONDS >= MEMORY_CHECKED_AFTER)


def check_growth(states: list[dict[str, float]], with_memory: bool) -> None:
    """The states of a server, without the one after its warm-up, are equal, its memory within 2%."""
    sizes = [state.pop("kilobytes", 1) for state in states]
    print(states[-1], sizes, sep="\n")
    assert all(state == states[0] for state in states), states
    assert sizes[-1] < 1.02 * sizes[0] or not with_memory
