"""OpenAI's own client works unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import foretell

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="unused", timeout=120) as client:
        yield client


@pytest.mark.parametrize("document", ["README.md", "docs/serving.md"])
def test_the_example_of_the_documents(document, server, capsys):
    text = (Path(__file__).parents[2] / document).read_text(encoding="utf-8")
    [example] = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    exec(example.replace("http://127.0.0.1:8000", server.address).replace("primer", "toy"), {})
    assert len(capsys.readouterr().out) > 5


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").owned_by == "foretell"


def test_chat(client):
    answer = client.chat.completions.create(
        model="toy",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
        max_completion_tokens=8,
        logprobs=True,
        top_logprobs=2,
        n=2,
    )
    assert len(answer.choices) == 2
    assert all(choice.message.content is not None for choice in answer.choices)
    first = answer.choices[0].logprobs.content[0]
    assert first.logprob <= first.top_logprobs[0].logprob and len(first.top_logprobs) == 2


def test_streamed_chat(client):
    asked = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "seed": 4, "max_tokens": 12}
    plain = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == plain.usage


def test_responses(client):
    asked = {"model": "toy", "input": "Hi", "instructions": "Be brief.", "max_output_tokens": 9}
    plain = client.responses.create(**asked, extra_body={"seed": 3})
    assert plain.status == "incomplete" and plain.usage.output_tokens == 9
    events = list(client.responses.create(**asked, extra_body={"seed": 3}, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.output_text == events[-1].response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_response_that_is_whole(client):
    """The client's own helper accepts the events; the bias is for the end token."""
    biased = {"logit_bias": {"256": 100}}
    with client.responses.stream(model="toy", input="Hi", extra_body=biased) as stream:
        assert stream.get_final_response().status == "completed"


def test_embeddings_in_base64_are_the_model_s(client, toy_model):
    texts = [f"{number} " * (7 * number % 30 + 1) for number in range(20)]  # of uneven lengths, read in several passes
    answer = client.embeddings.create(model="toy", input=texts)
    assert [row.index for row in answer.data] == list(range(20))
    model = foretell.load(toy_model)
    for row, text in zip(answer.data, texts, strict=True):
        assert np.allclose(row.embedding, foretell.embed(model, text, pool="mean"), atol=1e-6)
    plain = client.embeddings.create(model="toy", input=texts, encoding_format="float")
    assert np.allclose(plain.data[0].embedding, answer.data[0].embedding)


def test_errors_are_the_client_s(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="x")
    assert unknown.value.code == "model_not_found" and "toy" in str(unknown.value)
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="toy", prompt="x" * 200)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tool:
        client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "f"}}],
        )
    assert tool.value.param == "tools"
