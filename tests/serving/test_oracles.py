"""Other programs that speak OpenAI's protocol work with the server unchanged, and find the numbers of the library.

Their packages come with `make test-oracles`. None of these tests needs a network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import foretell
from foretell.evaluation.perplexity import TextEvaluation

pytestmark = [pytest.mark.oracles, pytest.mark.filterwarnings("ignore")]  # their own warnings
MISSING = "{} is not installed; run make test-oracles"
QUESTIONS = [
    ("The sky is", ["blue", "a green box", "é"], 0),
    ("two and two are", ["5", "four"], 1),
    ("x =", ["1", "2", "3", "some words 🙂"], 2),
]


@pytest.mark.parametrize("options", [[], ["--no-stream"], ["--responses"], ["--schema", '{"enum": ["red", "green"]}']])
def test_llm_asks_an_endpoint(server, tmp_path, options):
    pytest.importorskip("llm", reason=MISSING.format("llm"))
    command = [sys.executable, "-m", "llm", "openai", "endpoint", f"{server.address}/v1", "-m", "toy", *options]
    command += ["-o", "max_tokens", "12", "say it"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() in ('"red"', '"green"') if "--schema" in options else len(found.stdout) > 5


def test_llm_lists_the_models(server, tmp_path):
    pytest.importorskip("llm", reason=MISSING.format("llm"))
    command = [sys.executable, "-m", "llm", "openai", "endpoint", f"{server.address}/v1", "--models"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}
    assert "toy" in subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120).stdout


@pytest.fixture(scope="module")
def litellm(server):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network when it is imported
    return pytest.importorskip("litellm", reason=MISSING.format("litellm"))


def ask_litellm(server, **fields):
    return {"api_base": f"{server.address}/v1", "api_key": "unused", **fields}


def test_litellm_chats(server, litellm):
    messages = [{"role": "user", "content": "Hi"}]
    asked = ask_litellm(server, model="openai/toy", messages=messages, max_tokens=9, seed=3, logprobs=True)
    plain = litellm.completion(**asked)
    assert plain.usage.completion_tokens == 9 and len(plain.choices[0].logprobs.content) == 9
    chunks = list(litellm.completion(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain.choices[0].message.content


def test_litellm_completes_and_embeds(server, litellm, model):
    fields = {"max_tokens": 9, "seed": 3, "temperature": 1}
    answer = litellm.text_completion(
        **ask_litellm(server, model="text-completion-openai/toy", prompt="some words", **fields)
    )
    assert answer.choices[0].text == foretell.generate(model, "some words", 9, seed=3, temperature=1, top_p=1.0).text
    answer = litellm.embedding(**ask_litellm(server, model="openai/toy", input=["first"], encoding_format="float"))
    assert np.allclose(answer.data[0]["embedding"], foretell.embed(model, "first", pool="mean"), atol=1e-6)


def test_langchain_chats(server):
    langchain = pytest.importorskip("langchain_openai", reason=MISSING.format("langchain-openai"))
    chat = langchain.ChatOpenAI(
        model="toy", base_url=f"{server.address}/v1", api_key="unused", max_tokens=9, seed=3, stream_usage=True
    )
    plain = chat.invoke([("system", "Be brief."), ("user", "Hi")])
    assert plain.usage_metadata["output_tokens"] == 9
    parts = list(chat.stream([("system", "Be brief."), ("user", "Hi")]))
    assert "".join(part.content for part in parts) == plain.content
    assert [part.usage_metadata for part in parts if part.usage_metadata][-1] == plain.usage_metadata


def test_langchain_embeds(server, model):
    langchain = pytest.importorskip("langchain_openai", reason=MISSING.format("langchain-openai"))
    embeddings = langchain.OpenAIEmbeddings(
        model="toy", base_url=f"{server.address}/v1", api_key="unused", check_embedding_ctx_length=False
    )
    for row, text in zip(embeddings.embed_documents(["first", "é"]), ["first", "é"], strict=True):
        assert np.allclose(row, foretell.embed(model, text, pool="mean"), atol=1e-6)


# --- lm-evaluation-harness -------------------------------------------------------------------------------------------

SHARED = {"dataset_path": "json", "test_split": "test", "metric_list": [{"metric": "acc"}]}
CHOICE = {
    "task": "toy_choice",
    "output_type": "multiple_choice",
    "doc_to_text": "{{query}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "gold",
}
REST = {
    "task": "toy_rest",
    "output_type": "loglikelihood",
    "doc_to_text": "{{query[:1]}}",
    "doc_to_target": "{{query[1:]}}",
    "target_delimiter": "",
}
UNTIL = {
    "task": "toy_until",
    "output_type": "generate_until",
    "doc_to_text": "{{query}}",
    "doc_to_target": "x",
    "generation_kwargs": {"until": ["e", "zq"], "max_gen_toks": 20, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}


def evaluated(address, folder, task, **arguments):
    """The samples of a local task, by lm-evaluation-harness."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    rows = [{"query": query, "choices": choices, "gold": gold} for query, choices, gold in QUESTIONS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = {"test": str(folder / "rows.jsonl")}
    description = {**SHARED, **task, "dataset_kwargs": {"data_files": source}}  # JSON is YAML
    (folder / "task.yaml").write_text(json.dumps(description), encoding="utf-8")
    name = task["task"]
    fields = {"model": "toy", "base_url": f"{address}/v1/completions", "max_length": 128, **arguments}
    found = simple_evaluate(
        model="local-completions",
        model_args=fields,
        tasks=[name],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    return sorted(found["samples"][name], key=lambda sample: sample["doc_id"])


@pytest.fixture
def harness(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    return pytest.importorskip("lm_eval.models.openai_completions", reason=MISSING.format("lm-eval[api]"))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_harness_finds_the_numbers_of_score(server, harness, model, tmp_path, batch_size):
    samples = evaluated(server.address, tmp_path, CHOICE, batch_size=batch_size)
    for sample, (query, choices, _) in zip(samples, QUESTIONS, strict=True):
        first = len(model.encode(query))
        scores = [foretell.score(model, f"{query} {choice}") for choice in choices]
        expected = [sum(token.logprob or 0 for token in score.tokens[first:]) for score in scores]
        assert [float(logprob) for logprob, _ in sample["filtered_resps"]] == pytest.approx(
            expected, abs=1e-5, rel=1e-6
        )


def test_the_harness_finds_the_numbers_of_evaluate(server, harness, model, tmp_path):
    """`evaluate` predicts all tokens of a text after the first one."""
    samples = evaluated(server.address, tmp_path, REST)
    found = [float(sample["filtered_resps"][0][0]) for sample in samples]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": query}) + "\n" for query, _, _ in QUESTIONS), encoding="utf-8")
    result = foretell.evaluate(model, texts)
    assert isinstance(result, TextEvaluation)
    assert -sum(found) / result.tokens == pytest.approx(result.loss, abs=1e-5)


def test_the_harness_generates_the_text_of_generate(server, harness, model, tmp_path):
    samples = evaluated(server.address, tmp_path, UNTIL)
    for sample, (query, _, _) in zip(samples, QUESTIONS, strict=True):
        expected = foretell.generate(model, query, 20, temperature=0, stop=["e", "zq"]).text
        assert sample["resps"][0][0] == expected
