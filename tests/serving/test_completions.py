"""Completions over HTTP are those of the library, whole or streamed, with log-probabilities that are the model's."""

from __future__ import annotations

import math

import pytest

import foretell
from foretell.evaluation.multiple_choice import continuation_rows, score_rows

PROMPT = "some words"


def test_a_completion_is_that_of_the_library(server, model):
    answer = server.ask("/v1/completions", prompt=PROMPT, max_tokens=20, seed=7, temperature=1)
    expected = foretell.generate(model, PROMPT, 20, seed=7, temperature=1, top_p=1.0)
    assert answer["choices"][0]["text"] == expected.text
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]])
def test_the_four_forms_of_a_prompt_are_one(server, prompt):
    answer = server.ask("/v1/completions", prompt=prompt, seed=1, echo=True)
    expected = server.ask("/v1/completions", prompt="ab", seed=1)
    assert answer["choices"][0]["text"] == "ab" + expected["choices"][0]["text"]


def test_a_drawn_seed_is_returned_and_gives_the_same_text_again(server):
    first = server.ask("/v1/completions", prompt=PROMPT)
    again = server.ask("/v1/completions", prompt=PROMPT, seed=first["foretell"]["seed"])
    assert first["choices"] == again["choices"]
    assert server.ask("/v1/completions", prompt=PROMPT, seed=-5)["foretell"]["seed"] == 2**63 - 5


def test_log_probabilities_of_a_prompt_have_the_shape_of_vllm(server, model):
    answer = server.ask("/v1/completions", prompt=PROMPT, max_tokens=1, prompt_logprobs=2)
    first, *rows = answer["choices"][0]["prompt_logprobs"]
    assert first is None and len(rows) == len(PROMPT) - 1
    for token, expected, row in zip(
        model.encode(PROMPT)[1:], foretell.score(model, PROMPT).tokens[1:], rows, strict=True
    ):
        own = row[str(token)]
        assert own["decoded_token"] == expected.text and own["logprob"] == pytest.approx(expected.logprob, abs=1e-4)
        ranks = {each["rank"]: each["logprob"] for each in row.values()}
        assert {1, 2} <= set(ranks) and len(ranks) in (2, 3)
        assert [ranks[rank] for rank in sorted(ranks)] == sorted(ranks.values(), reverse=True)


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(1, 4), (3, 1), (0, 2)])
def test_both_log_probabilities_of_an_echoed_prompt_have_as_many_tokens_as_asked(server, logprobs, prompt_logprobs):
    asked = {"max_tokens": 2, "seed": 1, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    row = server.ask("/v1/completions", prompt=PROMPT, echo=True, **asked)["choices"][0]
    assert {len(each) - prompt_logprobs for each in row["prompt_logprobs"][1:]} <= {0, 1}
    assert {len(each) - logprobs for each in (row["logprobs"]["top_logprobs"] or [])[1:]} <= {0, 1}


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"json": {"const": "a"}}, '"a"'),
        ({"json": '{"const": "a"}', "regex": None}, '"a"'),
        ({"json_schema": {"const": "a"}}, '"a"'),
        ({"json_object": True, "json": None}, "{"),
        ({"regex": "ab"}, "ab"),
        ({"choice": ["cd"]}, "cd"),
    ],
)
def test_structured_outputs_has_the_names_of_vllm(server, shape, text):
    answer = server.ask("/v1/completions", prompt=PROMPT, structured_outputs=shape, seed=1)
    assert answer["choices"][0]["text"].startswith(text)


def test_a_response_has_its_format_which_may_be_an_object_with_a_schema(server):
    shape = {"type": "json_object", "schema": {"const": {"a": 1}}}
    answer = server.ask("/v1/responses", input=PROMPT, text={"format": shape}, max_output_tokens=20, seed=1)
    assert answer["text"] == {"format": shape}
    assert '"a"' in answer["output"][0]["content"][0]["text"]


def test_choices_are_numbered_by_prompt_then_by_sample(server):
    answer = server.ask("/v1/completions", prompt=["ab", "cd"], n=3, seed=2)
    assert [row["index"] for row in answer["choices"]] == list(range(6))
    single = server.ask("/v1/completions", prompt="cd", n=3, seed=2)
    assert [row["text"] for row in answer["choices"][3:]] == [row["text"] for row in single["choices"]]


def test_log_probabilities_are_those_of_the_model(server, model):
    answer = server.ask("/v1/completions", prompt=PROMPT, max_tokens=5, logprobs=3, echo=True, seed=3)
    logprobs, text = answer["choices"][0]["logprobs"], answer["choices"][0]["text"]
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(PROMPT) + 5
    expected = [token.logprob for token in foretell.score(model, PROMPT).tokens[1:]]
    assert logprobs["token_logprobs"][1:10] == pytest.approx(expected, abs=1e-4)
    for token, value, top in zip(
        *(logprobs[name][1:] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert top[token] == value  # the same float: harnesses compare them
        assert len(top) in (3, 4)
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or text[offset : offset + len(token)] == token


def test_incomplete_characters_have_keys_of_their_own(server):
    answer = server.ask("/v1/completions", prompt="é", max_tokens=0, logprobs=5, echo=True)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["text_offset"] == [0, 0]
    assert all(len(top) >= 5 for top in logprobs["top_logprobs"][1:])
    assert answer["choices"][0]["text"] == "é"
    assert answer["usage"]["completion_tokens"] == 0


def test_echoed_log_probabilities_score_a_prompt_as_harnesses_ask(server, model):
    ids = model.encode("a text to score")
    answer = server.ask(
        "/v1/completions", prompt=[ids, ids[:4]], temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
    )
    logprobs = answer["choices"][0]["logprobs"]
    expected = foretell.score(model, "a text to score").logprob
    assert sum(logprobs["token_logprobs"][1:-1]) == pytest.approx(expected, rel=1e-6)


def test_usage_is_streamed_only_on_request(server):
    chunks = server.stream("/v1/completions", prompt="ab")
    assert all("usage" not in chunk for chunk in chunks)


def test_a_stop_string_ends_a_text_and_its_tokens(server, model):
    free = server.ask("/v1/completions", prompt=PROMPT, max_tokens=40, seed=5, logprobs=0)["choices"][0]
    stop = next(free["text"][i : i + 2] for i in range(5, 30) if free["text"][i : i + 2].isascii())
    row = server.ask("/v1/completions", prompt=PROMPT, max_tokens=40, seed=5, logprobs=0, stop=stop)["choices"][0]
    assert row["text"] == free["text"][: free["text"].index(stop)]
    assert row["finish_reason"] == "stop"
    assert len(row["logprobs"]["tokens"]) < len(free["logprobs"]["tokens"])
    offsets = row["logprobs"]["text_offset"]
    assert all(offset < len(PROMPT) + len(row["text"]) for offset in offsets)


def test_ids_can_end_a_text(server, model):
    row = server.ask("/v1/completions", prompt=PROMPT, max_tokens=60, seed=5, stop_token_ids=list(range(100, 228)))
    assert row["choices"][0]["finish_reason"] == "stop"
    assert row["usage"]["completion_tokens"] < 60


def test_penalties_and_biases_reach_the_sampler(server):
    banned = server.ask("/v1/completions", prompt="ab", max_tokens=30, logit_bias={"97": 100}, temperature=0)
    assert banned["choices"][0]["text"] == "a" * 30
    options = {"logit_bias": {"97": 100, "98": 99}, "temperature": 0, "max_tokens": 60}
    punished = server.ask("/v1/completions", prompt="x", frequency_penalty=2, **options)
    assert set(punished["choices"][0]["text"]) == {"a", "b"}


def test_scores_add_up(server, model):
    answer = server.ask("/v1/score", context="some ", continuations=["words", "other"])
    whole = server.ask("/v1/score", text="some words")["data"][0]
    words = answer["data"][0]
    assert [token["text"] for token in words["tokens"]] == list("words")
    assert words["logprob"] == pytest.approx(sum(token["logprob"] for token in whole["tokens"][5:]))
    assert whole["logprob"] == pytest.approx(foretell.score(model, "some words").logprob, rel=1e-6)
    assert math.isfinite(answer["data"][1]["logprob"])


@pytest.mark.parametrize(
    ("context", "continuation"), [("some", " words"), ("some ", "words"), ("some wor", "ds"), ("", "é")]
)
def test_a_continuation_has_one_score_on_the_server_in_evaluations_and_in_the_text(
    server, model, context, continuation
):
    row = server.ask("/v1/score", context=context, continuations=[continuation])["data"][0]
    (scored,) = score_rows(model, continuation_rows(model, context, [continuation], "here"))
    assert row["logprob"] == pytest.approx(scored.logprob, rel=1e-5)
    if context:
        tokens = foretell.score(model, context + continuation).tokens[-len(row["tokens"]) :]
        assert row["logprob"] == pytest.approx(sum(token.logprob or 0 for token in tokens), rel=1e-5)


def test_continuations_without_a_token_are_refused(server):
    answer = server.post("/v1/score", context="some", continuations=["a", ""])
    assert answer.status_code == 400 and "adds no token" in answer.json()["error"]["message"]


def test_tokens_there_and_back(server):
    tokens = server.ask("/tokenize", prompt="é!")
    assert tokens["tokens"] == [195, 169, 33] and tokens["count"] == 3
    assert server.ask("/v1/detokenize", tokens=tokens["tokens"]) == {"prompt": "é!"}
    info = server.client.get("/tokenizer_info").json()
    assert server.client.get("/v1/tokenizer_info").json() == info
    assert info["eos_token"] == "<|endoftext|>"
