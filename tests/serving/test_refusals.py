"""Requests that another server let through once: each is refused with one clear answer, and the server goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time

import httpx
import pytest

from foretell.serving.errors import ApiError
from foretell.serving.json_bodies import parse
from foretell.serving.requests import ChatRequest, CompletionRequest, ResponsesRequest
from tests.serving.conftest import error_of

DEEP = "[" * 100_000
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(autouse=True)
def still_alive(server):
    yield
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.ask("/v1/completions", prompt="ab", max_tokens=1)["choices"]


def refused(answer, status=400, param=None):
    """The error of an answer; it is about this field."""
    error = error_of(answer, status)
    assert error["param"] == param
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 10**6),
        ("n", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**63),
        ("temperature", -1),
        ("top_p", 0),
        ("logprobs", 21),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("prompt_logprobs", 50_257),
        ("stop", ["x" * 257]),
        ("stop", "x" * 257),
        ("structured_outputs", {"": 1}),
        ("stop_token_ids", [1] * 129),
        ("logit_bias", {str(id): 1 for id in range(301)}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"\u0665": 1}),
        ("logit_bias", {"1": 101}),
        ("best_of", 20),
        ("suffix", "x"),
        ("seed", 2**63),
        ("frequency_penalty", 3),
        ("prompt_embeds", "AAAA"),
        ("use_beam_search", True),
        ("grammar", "x"),
        ("guided_regex", "a"),
        ("allowed_token_ids", [1]),
        ("skip_special_tokens", False),
        ("prompt", [True] * 600_000),  # once an error for each: 12 s and 1.2 GB
        ("prompt", [[1]] * 3000),
    ],
)
def test_a_field_out_of_bounds(server, field, value):
    refused(server.post("/v1/completions", **{"prompt": "x", field: value}), param=field)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream_options": 5}, "stream_options: input should be an object"),
        (
            {"structured_outputs": {"cheese": 1}},
            "structured_outputs: 'cheese' is not known here; "
            "the fields are json, json_object, json_schema, regex, choice",
        ),
        ({"look": {"values": "x"}}, "look.values: input should be a valid list"),
        ({"look": {"values": ["x", ""]}}, "look.values[1]: give at least one character"),
        ({"change": [{"value": "x"}]}, "change[0]: give one of scale, add, set and patch"),
        ({"change": [{"value": "x", "add": [1, "2"]}]}, "change[0].add[1]: input should be a valid number"),
        ({"stop": ["x"] * 65}, "stop: list should have at most 64 items, not 65"),
        ({"prompt": ["x", 1]}, "prompt[1]: input should be a valid string"),
        ({"prompt": [1, "a"]}, "prompt[1]: input should be a valid integer"),
        ({"prompt": [[1], "a"]}, "prompt[1]: input should be a valid list"),
        ({"change": [{"value": 5}, {"value": 6}]}, "change[0].value: input should be a valid string"),
        ({"logit_bias": {"999": 1}}, "logit_bias: 999 is not a token of toy, which has ids below 257"),
        ({"stop_token_ids": [999]}, "stop_token_ids: 999 is not a token of toy, which has ids below 257"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9, and max_tokens 8; lower the one or raise the other"),
        (
            {"look": {"values": ["head"]}, "max_tokens": 0},  # once an internal error
            "look: head was not computed: the last token is not read; raise max_tokens",
        ),
        ({"regex": "["}, "regex: regex '[' cannot be used: unclosed character class"),
    ],
)
def test_a_message_has_the_path_of_the_value(server, fields, message):
    [field, *_] = fields
    assert refused(server.post("/v1/completions", **{"prompt": "x"} | fields), param=field)["message"] == message


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (CompletionRequest, {"prompt": [True]}, "prompt[0]: input should be a valid string or a valid integer or a"),
        (ChatRequest, {"messages": [{"role": "user", "content": 5}]}, "content: input should be a valid string or a"),
        (ChatRequest, {"messages": [{"role": "user"}]}, "messages[0].content: field required"),
        (ChatRequest, {"messages": [CALL]}, "messages[0]: tools are not supported"),
        (ResponsesRequest, {"input": [{"type": "function_call"}]}, "input[0]: items of type 'function_call' are not"),
    ],
)
def test_a_wrong_type_is_answered_with_all_types_of_the_field(kind, fields, message):
    with pytest.raises(ApiError) as error:
        parse(kind, fields)
    assert message in error.value.message


@pytest.mark.parametrize("value", ["trunk.blocks.0", "trunk.blocks.0.attention.core", "trunk.blocks.0.feedforward.up"])
@pytest.mark.parametrize("size", [{"scale": 1e38}, {"scale": 1e20}, {"add": 1e15}, {"set": -1e30}])
def test_a_change_to_numbers_that_are_too_large_is_refused(server, value, size):
    """A norm would divide by an infinite square, so that all logits are 0 and the answer is the first token."""
    change = [{"value": value, **size}]
    answer = server.post("/v1/completions", prompt="ab", max_tokens=3, change=change)
    assert "beyond 1e10; use smaller numbers" in refused(answer, param="change")["message"]


def test_a_change_to_numbers_that_are_too_large_is_refused_by_the_explorer(server):
    change = [{"value": "trunk.blocks.0", "scale": 1e38}]
    last = json.loads(server.post("/explore", text="ab", sections=["logits"], change=change).text.splitlines()[-1])
    assert "beyond 1e10; use smaller numbers" in last["error"]["message"]


def test_large_negative_scores_mask_positions(server):
    change = [{"value": "trunk.blocks.0.attention.core.masked", "positions": [0], "set": -1e9}]
    assert server.ask("/v1/completions", prompt="ab", max_tokens=3, change=change)["choices"]


def test_a_position_after_the_last_token_is_refused(server):
    change = [{"value": "embed", "positions": [90], "scale": 0}]
    last = "is outside the text; at most positions 0 to 2 are read"
    for field, asked in (("change", change), ("look", {"values": ["embed"], "positions": [3]})):
        error = refused(server.post("/v1/completions", prompt="x", max_tokens=3, **{field: asked}), param=field)
        assert error["message"].endswith(last)
    server.ask("/explore", text="x", change=change)  # the text of a page is edited, and its changes stay


def test_fields_without_an_effect_are_refused(server):
    refused(server.post("/v1/chat/completions", **CHAT, top_logprobs=2), param="top_logprobs")
    refused(server.post("/v1/chat/completions", **CHAT, echo=True), param="echo")
    refused(server.post("/v1/score", text="x", context="y"), param="context")
    refused(server.post("/detokenize", tokens=[999]), param="tokens")
    error = refused(server.post("/v1/predict", input="x"), 404, param="model")
    assert "named ''" not in error["message"]


def test_every_number_is_checked(server):
    whole = ["n", "max_tokens", "top_k", "seed", "min_tokens", "logprobs", "prompt_logprobs", "best_of"]
    real = ["temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"]
    wrong = [("1", True, 1e308, -(2**70), [1], {"a": 1}), (0.5,)]
    for name in [*whole, *real]:
        for value in [*wrong[0], *(wrong[1] if name in whole else ())]:
            refused(server.post("/v1/completions", prompt="x", **{name: value}), param=name)
        for value in (float("nan"), float("inf")):  # no JSON
            refused(server.post("/v1/completions", prompt="x", **{name: value}))
        assert server.post("/v1/completions", prompt="x", **{name: None}).status_code == 200, name


@pytest.mark.parametrize("field", ["chat_template", "chat_template_kwargs", "tools", "functions", "audio", "store"])
def test_a_field_of_chats_that_is_not_served(server, field):
    refused(server.post("/v1/chat/completions", **CHAT, **{field: {"x": 1} if "k" in field else [1]}), param=field)


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], [[], [1]], {}, 5, [1.5], [-1], [300], [[1], "x"], None])
def test_prompts_that_are_none(server, prompt):
    answer = server.post("/v1/completions", prompt=prompt)
    if prompt in ("", [""]):  # what follows the end of a document
        assert answer.status_code == 200
    else:
        refused(answer, param="prompt")


def test_too_many_prompts_are_refused_before_they_are_read(server):
    started = time.monotonic()
    refused(server.post("/v1/completions", prompt=["x"] * 100_000), param="prompt")
    refused(server.post("/v1/completions", prompt=["x"] * 100, n=16), param="n")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b"\xff\xfe",
        DEEP.encode(),
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "\\ud800": 1}',
    ],
)
def test_bodies_that_are_no_request(server, body):
    error_of(server.client.post("/v1/completions", content=body, headers={"content-type": "application/json"}))


def test_a_large_body_is_refused(server):
    body = json.dumps({"prompt": "x" * 5_000_000}).encode()
    headers = {"content-type": "application/json"}
    refused(server.client.post("/v1/completions", content=body, headers=headers), 413)
    refused(server.client.post("/v1/completions", content=iter([body]), headers=headers), 413)  # length not announced


def test_a_large_header_closes_the_connection(server):
    with contextlib.suppress(httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError):  # while it is being sent
        answer = server.client.get("/v1/models", headers={"x-large": "x" * 1_000_000})
        refused(answer, 431)


@pytest.mark.parametrize("request_head", [("/health", {"x-large": "x" * 17_000}), (f"/health?{'x' * 17_000}", {})])
def test_a_large_header_that_arrives_at_once_is_refused(server, request_head):
    path, headers = request_head
    answer = server.client.get(path, headers=headers)
    assert refused(answer, 431)["message"] == "the headers have more than 16,384 bytes"
    assert answer.headers["connection"] == "close"
    assert server.client.get("/health", headers={"x-large": "x" * 15_000}).status_code == 200


def sent(server, data):
    """The answer to these bytes, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.address).port), timeout=30) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(2**16), b"")).decode()


POST = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
MALFORMED = {
    "header": b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    "TLS": b"\x16\x03\x01\r\n\r\n",
    "version": b"POST /\r\n\r\n",
    "size of a chunk": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "end of a chunk": CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
    "later chunk": CHUNKED + b"1\r\n{\r\n-1\r\n\r\n",
    "chunk of a path that is not served": CHUNKED.replace(b"tokenize", b"nowhere") + b"zz\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_gets_an_error_in_json(server, data):
    head, _, body = sent(server, data).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 Bad Request\r\n") and "connection: close" in head
    assert json.loads(body)["error"]["message"] == "malformed HTTP request"


def test_the_length_of_a_large_body_is_the_announced_one(server):
    head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = sent(server, f"{head}connection: close\r\ncontent-length: 99999999999999\r\n\r\n".encode())
    assert "413" in answer and "the body has 99,999,999,999,999 bytes; at most 4,194,304 are read" in answer


@pytest.mark.parametrize("path", ["/tokenize", "/health", "/nowhere"])
@pytest.mark.parametrize("names", [("content-length", "transfer-encoding"), ("Transfer-Encoding", "Content-Length")])
def test_a_body_with_two_lengths_is_refused(server, path, names):
    """What follows may be a second request for one program and a part of the body for another."""
    values = {"content-length": "2", "transfer-encoding": "chunked"}
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += "".join(f"{name}: {values[name.lower()]}\r\n" for name in names)
    head, _, body = sent(server, f"{head}\r\n2\r\n{{}}\r\n0\r\n\r\n".encode() + POST).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 Bad Request\r\n") and "connection: close" in head.lower()
    error = json.loads(body)["error"]  # one answer
    assert error["message"] == "the request has both Content-Length and Transfer-Encoding; send one"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_page_cannot_send_a_simple_request(server, kind):
    answer = server.client.post("/v1/completions", content=b'{"prompt": "x"}', headers={"content-type": kind})
    refused(answer, 415)


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "latin-1"]
)
@pytest.mark.parametrize("text", ['{"prompt": "é"}', '{"é\\"":' + 5000 * "["], ids=["flat", "deep"])
def test_a_body_that_is_not_utf_8_is_refused(server, encoding, text):
    headers = {"content-type": "application/json"}
    answer = server.client.post("/v1/completions", content=text.encode(encoding), headers=headers)
    assert refused(answer)["message"] == "the body is not JSON: it is not UTF-8"


def test_a_byte_order_mark_of_utf_8_is_skipped(server):
    headers = {"content-type": 'application/json; charset="UTF-8"'}
    assert server.client.post("/tokenize", content=b'\xef\xbb\xbf{"prompt": "a"}', headers=headers).json()["count"] == 1


@pytest.mark.parametrize("charset", ["utf-16", '"latin-1"', "us-ascii", "utf-8; charset=utf-32", ""])
def test_another_charset_of_the_content_type_is_refused(server, charset):
    headers = {"content-type": f"application/json; charset={charset}"}
    answer = server.client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert refused(answer, 415)["message"] == "the charset of the body must be utf-8"


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": None}},
        {"look": {"values": ["embed"], "tokens": None, "lens": None, "format": None, "anything": None}},
        {"change": [{"value": "embed", "scale": 1, "add": None, "heads": None}]},
        {"structured_outputs": {"regex": None, "choice": None}},
        {"logit_bias": {"1": None}},
        {"response_format": None},
    ],
)
def test_null_counts_as_missing_at_every_level(server, fields):
    assert server.ask("/v1/completions", prompt="x", **fields)["choices"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "name": None, "tool_calls": None}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": None}]}]},
        ),
        ("/v1/responses", {"input": "x", "text": {"format": None, "verbosity": None}}),
        ("/v1/responses", {"input": [{"type": None, "role": "user", "content": "x"}]}),
        ("/explore/page", {"text": "x", "choice": {"token": None}, "change": None}),
    ],
)
def test_null_counts_as_missing_in_other_routes(server, path, body):
    assert server.post(path, **body).status_code == 200


@pytest.mark.parametrize("host", ["evil.com", "127.0.0.1.nip.io", "", "localhost.evil.com:8000", "[::1"])
def test_another_name_for_this_host(server, host):
    message = refused(server.client.get("/v1/models", headers={"host": host}))["message"]
    assert message.endswith("; the option --host 0.0.0.0 allows other names")


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://localhost:1/v1/models/t%6Fy", 200), ("http://localhost", 200), ("http://evil.com/v1/models", 400)],
)
def test_an_address_in_absolute_form_replaces_the_host(server, target, status):
    head = f"GET {target} HTTP/1.1\r\nhost: {'evil.com' if status == 200 else 'localhost'}\r\nconnection: close\r\n\r\n"
    assert sent(server, head.encode()).startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize("origin", ["null", "http://evil.com", "http://localhost:1", "file://"])
def test_a_page_of_another_site(server, origin):
    answer = server.client.get("/v1/models", headers={"origin": origin})
    refused(answer, 403)
    assert "access-control-allow-origin" not in answer.headers


def test_routes_and_methods_that_are_not_served(server):
    refused(server.client.get("/v1/rerank"), 404)
    refused(server.client.get("/v1/completions"), 405)
    refused(server.client.post("/v1/rerank", content=b"x"), 404)  # of any content type
    answer = server.client.post("/v1/models", json={})
    refused(answer, 405)
    assert answer.headers["allow"] == "GET, HEAD"
    assert server.client.put("/explore", json={}).headers["allow"] == "GET, HEAD, POST"
    refused(server.client.get("/v1/models/../../etc/passwd"), 404)


def test_an_image_is_not_fetched(server):
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.5)
        url = f"http://127.0.0.1:{canary.getsockname()[1]}/image.png"
        part = {"type": "image_url", "image_url": {"url": url}}
        refused(server.post("/v1/chat/completions", messages=[{"role": "user", "content": [part]}]), param="messages")
        with pytest.raises(TimeoutError):
            canary.accept()


FAR = "x" * 1_000_000


def in_every_route(text):
    """(path, body, field) of requests with this text."""
    part = {"role": "user", "content": text}
    return [
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/chat/completions", {"messages": [part]}, "messages"),
        ("/v1/responses", {"input": text}, "input"),
        ("/v1/responses", {"input": [part]}, "input"),
        ("/v1/embeddings", {"input": text}, "input"),
        ("/v1/score", {"text": text}, "text"),
        ("/v1/score", {"context": text, "continuations": ["x"]}, "context"),
        ("/v1/score", {"context": "x", "continuations": [text]}, "continuations"),
    ]


@pytest.mark.parametrize(("path", "body", "field"), in_every_route("x" * 200))
def test_a_text_that_is_too_long_is_an_error_of_its_field(server, path, body, field):
    assert refused(server.post(path, **body), param=field)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("path", "body", "field"), in_every_route(FAR))
def test_a_text_that_is_far_too_long_is_not_encoded(server, path, body, field):
    error = refused(server.post(path, **body), param=field)
    assert error["code"] == "context_length_exceeded" and f"the text has {len(FAR):,} characters" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"), [*in_every_route("\ud800"), ("/tokenize", {"prompt": "\ud800"}, "prompt")]
)
def test_an_invalid_text_is_an_error_of_its_field(server, path, body, field):
    assert "lone surrogate" in refused(server.post(path, **body), param=field)["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/score", {"text": ""}, "text"),
        ("/v1/score", {"text": ["x", ""]}, "text"),
        ("/v1/embeddings", {"input": ""}, "input"),
        ("/v1/embeddings", {"input": ["x", ""]}, "input"),
    ],
)
def test_an_empty_text_has_no_score_and_no_vector(server, path, body, field):
    assert "the text is empty" in refused(server.post(path, **body), param=field)["message"]


def test_ids_and_parts_that_are_not_served_are_errors_of_their_field(server):
    refused(server.post("/v1/embeddings", input=[999]), param="input")
    for empty in ("", ["a", ""], [[]]):
        refused(server.post("/v1/embeddings", input=empty), param="input")
    refused(server.post("/v1/score", text=["x"] * 200), param="text")
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    refused(server.post("/v1/responses", input=image), param="input")
    nothing = [{"role": "user", "content": [{"type": "text"}]}]
    assert "no text" in refused(server.post("/v1/chat/completions", messages=nothing), param="messages")["message"]


def test_a_long_text_is_not_truncated(server):
    refused(server.post("/v1/responses", input="x", truncation="auto"), param="truncation")
    assert server.post("/v1/responses", input="x", truncation="disabled").status_code == 200


@pytest.mark.parametrize("role", ["tool", "function", "", "User", 5])
def test_roles_that_are_not_served(server, role):
    refused(server.post("/v1/chat/completions", messages=[{"role": role, "content": "x"}]), param="messages")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "#/missing"},
        {"type": "string", "pattern": "("},
        {"enum": []},
        {"x": "y" * 17_000},
    ],
)
def test_schemas_that_cannot_be_compiled(server, schema):
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    server.refuse("/v1/chat/completions", **CHAT, response_format=shape, max_tokens=4)


@pytest.mark.parametrize(
    "field",
    [
        {"regex": "a{" + "9" * 5000 + "}"},
        {"regex": "a{1000}{1000}{1000}"},  # once 12 s
        {"regex": "\ud800"},
        {"regex": "("},
        {"json_schema": {"enum": ["\ud800"]}},
        {"json_schema": {"type": "integer", "maximum": 10**400}},
        {"structured_outputs": {"json_schema": '"\ud800'}},
        {"structured_outputs": {"choice": ["\ud800"]}},
        {"regex": "a", "json_schema": {}},
        {"bad_words": ["\ud800"]},
    ],
)
def test_patterns_that_cannot_be_compiled(server, field):
    server.refuse("/v1/completions", prompt="x", **field)


@pytest.mark.parametrize("shape", [{}, {"json_schema": None}, {"json_schema": {}}, {"json_schema": {"name": "x"}}])
def test_a_response_format_without_its_schema_is_refused(server, shape):
    body = {**CHAT, "response_format": {"type": "json_schema", **shape}}
    error = refused(server.post("/v1/chat/completions", **body), param="response_format")
    assert "needs a schema" in error["message"]


@pytest.mark.parametrize("shape", [{"type": "json_schema"}, "json_object"])
def test_a_text_format_without_a_schema_is_refused(server, shape):
    refused(server.post("/v1/responses", input="x", text={"format": shape}), param="text.format")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the schema is not JSON at line 1, column 2"),
        ("5", "the schema must be a JSON object"),
        ('{"a":' * 900 + "1" + "}" * 900, "the schema is nested more than 32 levels deep"),
        ('{"minimum": NaN}', "the schema is not JSON: it has NaN"),
    ],
    ids=["not JSON", "a number", "deep", "NaN"],
)
def test_a_schema_that_is_not_one_is_refused_by_its_field(server, schema, message):
    answer = server.post("/v1/completions", prompt="x", structured_outputs={"json": schema})
    assert refused(answer, param="structured_outputs")["message"].startswith(message)


def test_unknown_fields_are_named(server):
    answer = server.post("/v1/completions", prompt="x", cheese=1, user="me", **{"a\r\nb": 1})
    assert answer.status_code == 200
    assert answer.headers["x-foretell-ignored"] == "cheese, ?"
    answer = server.post("/v1/chat/completions", **CHAT, prompt_logprobs=2)
    assert answer.headers["x-foretell-ignored"] == "prompt_logprobs"


def test_unknown_entries_of_a_field_are_named(server):
    asked = {"input": "Hi", "max_output_tokens": 2}
    for field, value in {"include": ["file_search_call.results"], "text": {"formt": {"type": "json_object"}}}.items():
        answer = server.post("/v1/responses", **asked, **{field: value})
        assert answer.headers["x-foretell-ignored"] == field
    answer = server.post("/v1/responses", **asked, include=["message.output_text.logprobs"])
    assert "x-foretell-ignored" not in answer.headers


def test_harmless_fields_have_no_effect(server):
    fields = {"user": "me", "metadata": {}, "service_tier": "auto", "store": False, "tools": [], "tool_choice": "none"}
    answer = server.post("/v1/chat/completions", **CHAT, **fields, seed=1)
    assert answer.status_code == 200 and "x-foretell-ignored" not in answer.headers
    plain = server.post("/v1/chat/completions", **CHAT, seed=1)
    assert answer.json()["choices"] == plain.json()["choices"]


def test_health_answers_while_requests_are_refused(server):
    done = threading.Event()
    threading.Thread(target=lambda: (server.post("/v1/completions", prompt="x", n=10**6), done.set())).start()
    assert server.client.get("/health").status_code == 200
    assert done.wait(30)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"prompt": NaN}', "the body is not JSON: it has NaN, and JSON has only finite numbers"),
        (b'{"seed": -Infinity}', "the body is not JSON: it has -Infinity"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "a whole number in the body has more than 4,300 digits"),
        (b'{"prompt": "\xff"}', "the body is not JSON: it is not UTF-8"),
        *((body, "the body is not JSON at line 1, column ") for body in ("{bad", "[[1]", "}" * 100, '{"a": [1}')),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_its_reason(server, body, message):
    answer = server.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert refused(answer)["message"].startswith(message)


def test_a_body_with_a_content_encoding_is_refused(server):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = server.client.post("/v1/completions", content=gzip.compress(b'{"prompt": "x"}'), headers=headers)
    assert "content encoding" in error_of(answer, 415)["message"]
