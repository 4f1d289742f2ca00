"""Names of special tokens in the texts of requests: a header names them, and `allow_special` reads them."""

from __future__ import annotations

import pytest

import foretell

TEXT = "ab<|endoftext|>cd"
REQUESTS = [
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 1}),
    ("/v1/completions", {"prompt": ["ab", TEXT], "max_tokens": 1}),
    ("/v1/score", {"text": TEXT}),
    ("/v1/score", {"context": TEXT, "continuations": ["e"]}),
    ("/v1/score", {"context": "e", "continuations": [TEXT]}),
    ("/v1/embeddings", {"input": [TEXT]}),
    ("/tokenize", {"prompt": TEXT}),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_names_of_special_tokens_are_in_a_header_or_read_as_tokens(server, path, body):
    plain, allowed = server.post(path, **body), server.post(path, **body, allow_special=True)
    assert plain.headers["x-foretell-special"] == "<|endoftext|>"
    assert allowed.status_code == 200 and "x-foretell-special" not in allowed.headers
    assert "x-foretell-ignored" not in allowed.headers
    counts = [answer.json().get("count") or answer.json()["usage"]["prompt_tokens"] for answer in (plain, allowed)]
    assert counts[0] - counts[1] == len("<|endoftext|>") - 1


def test_a_stream_has_the_header_too(server):
    answer = server.post("/v1/completions", prompt=TEXT, max_tokens=1, stream=True)
    assert answer.headers["x-foretell-special"] == "<|endoftext|>"


ANSWERED = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]}),
    ("/v1/responses", {"input": TEXT, "max_output_tokens": 1}),
    ("/v1/responses", {"input": "ab", "instructions": TEXT, "max_output_tokens": 1}),
    ("/v1/responses", {"input": [{"role": "user", "content": TEXT}], "max_output_tokens": 1}),
    ("/explore", {"text": TEXT}),
    ("/tokenize", {"messages": [{"role": "user", "content": TEXT}]}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERED)
def test_messages_have_the_header_too(server, path, body):
    assert server.post(path, **body).headers["x-foretell-special"] == "<|endoftext|>"


@pytest.mark.parametrize("prompt", ["abcd", [97, 98]])
def test_without_such_a_name_there_is_no_header(server, prompt):
    assert "x-foretell-special" not in server.post("/v1/completions", prompt=prompt, max_tokens=1).headers


def test_ids_of_allowed_names_are_those_of_the_library(server, model):
    ids = server.ask("/tokenize", prompt=TEXT, allow_special=True)["tokens"]
    assert ids == model.encode(TEXT, allow_special=True)


def test_messages_never_become_special_tokens(server):
    messages = [{"role": "user", "content": TEXT}]
    assert (
        "allow_special goes with prompt" in server.refuse("/tokenize", messages=messages, allow_special=True)["message"]
    )


def test_a_text_that_begins_with_the_start_token_gets_no_second_one(start_server, toy_model, tmp_path):
    model = foretell.load(toy_model).with_start("<|endoftext|>")
    model.save(tmp_path / "started")
    served = start_server(str(tmp_path / "started"))
    ids = served.ask("/tokenize", prompt="ab")["tokens"]
    assert ids == [256, 97, 98]
    assert served.ask("/tokenize", prompt="<|endoftext|>ab", allow_special=True)["tokens"] == ids
