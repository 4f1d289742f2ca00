"""Answers and the parts of streams have the shapes of OpenAI's specification, where its file is at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.oracles, pytest.mark.filterwarnings("ignore")]
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed; run make test-oracles")
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
SHARED = os.environ.get("FORETELL_SHARED") or Path(__file__).resolve().parents[3] / "shared"
FILE = Path(SHARED) / "data" / "openai_api" / "openapi.yaml"
MESSAGES = [{"role": "user", "content": "Hi"}]
COMPLETION = {"prompt": ["ab", "é"], "max_tokens": 5, "logprobs": 2}
CHAT = {"messages": MESSAGES, "max_tokens": 5, "n": 2, "logprobs": True, "top_logprobs": 2}
RESPONSE = {"input": "Hi", "max_output_tokens": 5}


@pytest.fixture(scope="module")
def check():
    """A function that checks a value against a schema of the specification."""
    if not FILE.exists():
        pytest.skip(f"{FILE} is missing")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    schemas = with_null(yaml.load(FILE.read_text(encoding="utf-8"), loader)["components"])

    def call(name: str, value: Any) -> None:
        validator = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": schemas})
        errors = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(value)]
        assert not errors, "\n".join(errors)

    return call


def with_null(schema: Any) -> Any:
    """A schema of OpenAPI 3.1, which lacks the `nullable` of 3.0 that the file uses."""
    if isinstance(schema, list):
        return [with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {name: with_null(value) for name, value in schema.items()}
    if rest.get("nullable") is not True:
        return rest
    del rest["nullable"]
    return {"anyOf": [rest, {"type": "null"}]}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", COMPLETION, "CreateCompletionResponse"),
        ("/v1/completions", {"prompt": "x", "stop": "a"}, "CreateCompletionResponse"),
        ("/v1/chat/completions", CHAT, "CreateChatCompletionResponse"),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}, "CreateChatCompletionResponse"),
        ("/v1/responses", RESPONSE, "Response"),
        ("/v1/responses", {"input": "Hi", "logit_bias": {"256": 100}}, "Response"),
        ("/v1/embeddings", {"input": ["a", "b"], "model": "toy"}, "CreateEmbeddingResponse"),
    ],
)
def test_plain_answers(server, check, path, body, name):
    check(name, server.ask(path, **body))


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", COMPLETION, "CreateCompletionResponse"),
        ("/v1/chat/completions", CHAT, "CreateChatCompletionStreamResponse"),
    ],
)
def test_parts_of_streams(server, check, path, body, name):
    chunks = server.stream(path, **body, stream_options={"include_usage": True})
    assert len(chunks) > 2
    for chunk in chunks:
        if path == "/v1/completions":  # their streams have no schema; OpenAI writes null before the end
            for row in chunk["choices"]:
                row["finish_reason"] = row["finish_reason"] or "length"
        check(name, chunk)


def test_events_of_a_response(server, check):
    answer = server.post("/v1/responses", **RESPONSE, stream=True)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data:")]
    assert len(events) > 6
    for event in events:
        check("ResponseStreamEvent", event)


def test_models_and_errors(server, check):
    check("ListModelsResponse", server.client.get("/v1/models").json())
    check("Model", server.client.get("/v1/models/toy").json())
    check("ErrorResponse", server.post("/v1/completions", prompt=5).json())
    check("ErrorResponse", server.client.get("/nowhere").json())


def test_a_wrong_answer_is_found(check):
    with pytest.raises(AssertionError):
        check("ErrorResponse", {"error": {"message": "no param"}})
