"""Keys: every route but two needs one, and only the Authorization header carries it."""

from __future__ import annotations

import pytest

from tests.serving.conftest import error_of

KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def locked(toy_model, tmp_path_factory, start_server):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\nanother-key-of-length\n", encoding="utf-8")
    return start_server(str(toy_model), "--key-file", str(keys), "--memory", "0.05")


ROUTES = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/score"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/toy"),
    ("GET", "/tokenizer_info"),
    ("GET", "/metrics"),
    ("GET", "/explore"),
    ("POST", "/explore"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_opens_without_a_key(locked, method, path):
    answer = locked.client.request(method, path, json={"prompt": "x"} if method == "POST" else None)
    assert error_of(answer, 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/page/live/live.js"])
def test_health_and_the_files_of_the_page_are_public(locked, path):
    assert locked.client.get(path).status_code == 200


@pytest.mark.parametrize("key", [KEY, "another-key-of-length"])
def test_each_key_opens(locked, key):
    assert locked.client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"authorization": b"Bearer \xff\xfe"},
        {"x-api-key": KEY},
        {"api-key": KEY},
    ],
)
def test_nothing_else_opens(locked, headers):
    assert locked.client.get("/v1/models", headers=headers).status_code == 401


def test_two_keys_in_one_request_are_refused(locked):
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")]
    assert locked.client.get("/v1/models", headers=headers).status_code == 401
    assert locked.client.get(f"/v1/models?key={KEY}").status_code == 401
