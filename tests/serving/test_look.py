"""A look inside a request gives the values of `Trace`, changes are those of `Trace`, and neighbours do not notice."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import foretell
from foretell.generation.sequence import Sequence
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.attribution.logit_lens import logit_lens
from foretell.insight.replacement import without_heads
from foretell.serving.changes import Changes
from foretell.serving.json_bodies import to_json
from foretell.serving.look import make_recorder
from foretell.serving.models import ModelSettings, serve_model
from foretell.serving.requests import CompletionRequest
from foretell.serving.tokens import key_of

PROMPT, TOKENS = "some words", 6
CONTEXT = 128  # of the toy model
CORE, BLOCK, WEIGHTS = (f"trunk.blocks.0{part}" for part in (".attention.core", "", ".attention.core.weights"))
ASKED = {"prompt": PROMPT, "max_tokens": TOKENS, "seed": 3}


@pytest.fixture(scope="module")
def model(toy_model):
    """With strict layers, so that a pass has the same bits in parts and whole, whichever kernels run."""
    return foretell.load(toy_model).strict()


@pytest.fixture(scope="module")
def server(start_server, toy_model):
    return start_server(str(toy_model), "--strict", "--memory", "0.05")


@pytest.fixture(scope="module")
def fast(start_server, toy_model):
    """A server without strict layers, and with little memory for looks."""
    return start_server(str(toy_model), "--memory", "0.05", "--look-budget", "0.01")


def test_an_array_as_json_has_the_bits_of_every_float32():
    powers = np.array([0, -0.0, 9.9999999, 3.4028235e38, 1e-45, *(10.0**k for k in range(-44, 39))], np.float32)
    powers = np.concatenate([powers, np.nextafter(powers, np.float32(0)), -powers])
    array = np.frombuffer(np.random.default_rng(1).bytes(4 * 50_000), np.float32)
    for numbers in (powers, array[np.isfinite(array)]):
        found = np.array(json.loads(to_json(numbers)), np.float64).astype(np.float32)
        assert np.array_equal(found.view(np.uint32), numbers.view(np.uint32))


def test_an_array_as_json_is_nested_and_has_null_for_what_json_lacks():
    array = np.array([[[1, np.nan, np.inf], [-np.inf, -2, 0.5]]], np.float32)
    found = json.loads(to_json({"first": array, "empty": [np.zeros((2, 0), np.float32), np.zeros(0, np.float32)]}))
    assert found == {"first": [[[1, None, None], [None, -2, 0.5]]], "empty": [[[], []], []]}


def traced(model, names, replace=None):
    """The values of a generation, traced with the library, and its text."""
    with foretell.Trace(model, names, replace=replace) as trace:
        text = foretell.generate(model, PROMPT, TOKENS, seed=3, temperature=1, top_p=1.0).text
    return trace, text


def test_values_are_those_of_a_trace_bit_by_bit(server, model):
    answer = server.ask("/v1/completions", **ASKED, look={"values": [BLOCK, WEIGHTS]})
    [look] = answer["foretell"]["look"]
    trace, text = traced(model, [BLOCK, WEIGHTS])
    assert answer["choices"][0]["text"] == text == server.ask("/v1/completions", **ASKED)["choices"][0]["text"]
    [hidden] = look["values"][BLOCK]
    expected = torch.cat([call[0] for call in trace.calls(BLOCK)])
    assert hidden["position"] == 0 and hidden["shape"] == [len(PROMPT) + TOKENS - 1, 64]
    assert torch.equal(torch.tensor(hidden["values"]), expected)
    for row, call in zip(look["values"][WEIGHTS], trace.calls(WEIGHTS), strict=True):
        assert torch.equal(torch.tensor(row["values"]), call[0])


def test_the_example_of_the_document(server):
    text = (Path(__file__).parents[2] / "docs/serving.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    body = json.loads(example.replace("primer", "toy").replace("blocks.2", "blocks.1"))
    [look] = server.ask("/v1/completions", **body | {"prompt": PROMPT})["foretell"]["look"]
    assert set(look) == {"values", "lens"} and "trunk.blocks.1" in look["values"]


def test_only_some_positions(server, model):
    whole = server.ask("/v1/completions", **ASKED, look={"values": [BLOCK]})["foretell"]["look"][0]["values"][BLOCK][0]
    new = server.ask("/v1/completions", **ASKED, look={"values": [BLOCK], "tokens": "new"})
    [row] = new["foretell"]["look"][0]["values"][BLOCK]
    assert row["position"] == len(PROMPT) and row["values"] == whole["values"][len(PROMPT) :]
    chosen = server.ask("/v1/completions", **ASKED, look={"values": [BLOCK], "positions": [1, 2, 7]})
    rows = chosen["foretell"]["look"][0]["values"][BLOCK]
    assert [(row["position"], len(row["values"])) for row in rows] == [(1, 2), (7, 1)]
    assert rows[1]["values"][0] == whole["values"][7]


def test_safetensors_hold_the_same_numbers(server):
    plain = server.ask("/v1/completions", **ASKED, look={"values": [BLOCK]})["foretell"]["look"][0]["values"][BLOCK]
    packed = server.ask("/v1/completions", **ASKED, look={"values": [BLOCK], "format": "safetensors"})
    tensors = safetensors.torch.load(base64.b64decode(packed["foretell"]["look"][0]["values"]))
    assert torch.equal(tensors[f"{BLOCK}@0"], torch.tensor(plain[0]["values"]))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_ends_with_the_look(server, path):
    body = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    body |= {"max_tokens": 3, "seed": 1, "n": 2, "look": {"values": [BLOCK]}}
    plain, chunks = server.ask(path, **body), server.stream(path, **body)
    assert chunks[-1]["foretell"] == plain["foretell"] and chunks[-1]["choices"] == []
    assert len(plain["foretell"]["look"]) == 2


@pytest.mark.parametrize("look", [None, {"values": [CORE, WEIGHTS]}], ids=["shared", "recorded"])
@pytest.mark.parametrize("part", ["weights", "scores"])
def test_weights_and_scores_change_prepare_for_generation_too(fast, server, part, look):
    """They are values of an explicit core, which replaces the one that is compiled with its block."""
    fast.ask("/v1/completions", **ASKED)  # the first pass of a model uses plain modules

    def likeliest(asked, **options):
        """The log-probabilities of tokens that are not the likeliest: this model is sure of its tokens."""
        answer = asked.ask("/v1/completions", **ASKED, logprobs=5, **options)
        [first, *_] = answer["choices"][0]["logprobs"]["top_logprobs"]
        return torch.tensor([first.get("l", 0.0), first.get("bytes:\\xf5", 0.0)])

    change = [{"value": f"{CORE}.{part}", "scale": 0}]
    found, expected = (likeliest(each, change=change, look=look) for each in (fast, server))
    assert torch.allclose(found, expected, atol=1e-2)
    assert not torch.allclose(found, likeliest(fast), atol=0.1)


def test_a_head_that_is_switched_off(server, model):
    answer = server.ask("/v1/completions", **ASKED, change=[{"value": CORE, "heads": [1], "scale": 0}], logprobs=0)
    _, text = traced(model, [], {CORE: without_heads(1)})
    assert answer["choices"][0]["text"] == text
    plain = server.ask("/v1/completions", **ASKED, logprobs=0)
    assert answer["choices"][0]["logprobs"] != plain["choices"][0]["logprobs"]
    assert "look" not in answer["foretell"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"add": 0.5}, lambda old: old + 0.5),
        ({"scale": 2, "neurons": [3]}, lambda old: torch.cat((old[..., :3], 2 * old[..., 3:4], old[..., 4:]), -1)),
        ({"set": [1.0] * 64}, torch.ones_like),
        ({"add": [1.0] * 64}, lambda old: old + 1),
    ],
)
def test_operations(server, model, change, expected):
    asked = {**ASKED, "change": [{"value": BLOCK, **change}], "look": {"values": ["trunk.blocks.1"]}}
    [row] = server.ask("/v1/completions", **asked)["foretell"]["look"][0]["values"]["trunk.blocks.1"]
    trace, _ = traced(model, ["trunk.blocks.1"], {BLOCK: expected})
    assert torch.equal(torch.tensor(row["values"]), torch.cat([call[0] for call in trace.calls("trunk.blocks.1")]))


def test_positions_and_patches(server, model):
    """Values of another text at one position; before it nothing changes, after it everything may."""
    look = {"values": [BLOCK, "trunk.blocks.1"]}
    changed = server.ask(
        "/v1/completions", **ASKED, look=look, change=[{"value": BLOCK, "patch": "other text", "positions": [4]}]
    )
    plain = server.ask("/v1/completions", **ASKED, look=look)
    new, old = (torch.tensor(each["foretell"]["look"][0]["values"][BLOCK][0]["values"]) for each in (changed, plain))
    with foretell.Trace(model, BLOCK) as trace, torch.inference_mode():
        model(model.encode("other text"))
    assert torch.allclose(new[4], trace[BLOCK][0, 4], atol=1e-6) and not torch.allclose(new[4], old[4])
    assert torch.equal(new[:4], old[:4]) and torch.equal(new[5:10], old[5:10])  # blocks before do not see the change
    later = [
        torch.tensor(each["foretell"]["look"][0]["values"]["trunk.blocks.1"][0]["values"]) for each in (changed, plain)
    ]
    assert torch.equal(later[0][:4], later[1][:4]) and not torch.equal(later[0][5:10], later[1][5:10])


def test_a_lens(server, model):
    answer = server.ask("/v1/completions", **ASKED, look={"lens": 2, "positions": [5]})
    [position] = answer["foretell"]["look"][0]["lens"]
    [expected] = logit_lens(model, PROMPT, at=5, top=2).positions
    for reading, other in zip(position["readings"], expected.readings, strict=True):
        assert reading["name"] == other.name
        assert [token["id"] for token in reading["top"]] == [token.id for token in other.tokens]
        assert [token["token"] for token in reading["top"]] == [
            key_of(token.id, model.tokenizer) for token in other.tokens
        ]
        assert reading["top"][0]["logprob"] == pytest.approx(other.tokens[0].logprob, abs=1e-5)


def test_contributions_add_up(server, model):
    answer = server.ask("/v1/completions", **ASKED, look={"contributions": True}, return_token_ids=True)
    found = answer["foretell"]["look"][0]["contributions"]
    ids = " ".join(map(str, model.encode(PROMPT)))
    token = answer["choices"][0]["token_ids"][0]
    expected = direct_logit_attribution(model.on_ids(), ids, token=token)
    assert found == {**expected.to_json(), "text": key_of(token, model.tokenizer)}


def test_logits_have_their_positions(server, model):
    """The head reads the last tokens of a pass alone: of a prompt, all if their log-probabilities are asked for."""
    trace, _ = traced(model, ["head"])
    logits = torch.cat(trace.calls("head"))
    for prompt_logprobs, first in ((None, len(PROMPT) - 1), (0, 0)):
        asked = {**ASKED, "prompt_logprobs": prompt_logprobs, "look": {"values": ["head"]}}
        [row] = server.ask("/v1/completions", **asked)["foretell"]["look"][0]["values"]["head"]
        assert row["position"] == first and row["shape"] == [len(PROMPT) - 1 - first + TOKENS, logits.shape[1]]
        assert torch.equal(torch.tensor(row["values"])[-TOKENS:], logits)


@pytest.mark.parametrize("tokens", ["all", "new"])
def test_a_lens_at_many_positions(server, model, tokens):
    """More than are computed between two steps."""
    asked = {**ASKED, "prompt": 2 * PROMPT, "max_tokens": 25, "return_token_ids": True}
    answer = server.ask("/v1/completions", **asked, look={"lens": 1, "tokens": tokens})
    found = answer["foretell"]["look"][0]["lens"]
    ids = [*model.encode(2 * PROMPT), *answer["choices"][0]["token_ids"]]
    expected = logit_lens(model.on_ids(), " ".join(map(str, ids)), top=1).positions
    first = 2 * len(PROMPT) if tokens == "new" else 0
    assert [row["position"] for row in found] == list(range(first, 2 * len(PROMPT) + 24))
    for row, position in zip(found, expected[first:-1], strict=True):
        ids, others = (
            [each["top"][0]["id"] for each in row["readings"]],
            [each.tokens[0].id for each in position.readings],
        )
        assert ids == others


def test_a_text_is_read_once_for_all_values_to_patch(server, model):
    asked = {"n": 16, "change": [{"value": "trunk.blocks.*.attention.core.query", "patch": "other text"}] * 64}
    changed = server.ask("/v1/completions", **ASKED, **asked)
    once = server.ask("/v1/completions", **ASKED, **asked | {"change": asked["change"][:1]})
    assert [choice["text"] for choice in changed["choices"]] == [choice["text"] for choice in once["choices"]]


@pytest.mark.parametrize(
    "body",
    [
        {"look": {"values": ["nothing.*"]}},
        {"look": {"contributions": True}, "change": [{"value": BLOCK, "scale": 1}]},
        {"look": {"values": [BLOCK], "positions": [CONTEXT]}},
        {"look": {}, "n": 16, "prompt": ["x", "y"]},
        {"change": [{"value": "nothing.*", "scale": 0}]},
        {"change": [{"value": BLOCK, "scale": 0, "positions": [CONTEXT]}]},
        {"change": [{"value": "trunk.norm.*", "scale": 0}]},
        {"change": [{"value": "head", "scale": 0, "positions": [0]}]},
        {"change": [{"value": WEIGHTS, "patch": "xy"}]},
        {"change": [{"value": BLOCK, "patch": text} for text in "abcde"]},
        {"change": [{"value": "trunk.blocks.*.attention.*", "scale": 1}] * 64},
        {"look": {"cheese": 1}},
        {"look": {"lens": 21}},
        {"look": {"values": [BLOCK], "positions": [-1]}},
        {"change": [{"value": BLOCK}]},
        {"change": [{"value": BLOCK, "scale": 0, "add": 1}]},
        {"change": [{"value": BLOCK, "scale": 0, "heads": [0]}]},
        {"change": [{"value": CORE, "scale": 0, "heads": [99]}]},
        {"change": [{"value": BLOCK, "add": [1.0, 2.0]}]},
        {"change": [{"value": BLOCK, "set": "__import__('os')"}]},
        {"change": [{"value": WEIGHTS, "patch": "x" * 500}]},
        {"change": [{"value": BLOCK, "scale": 1e308}]},
    ],
)
def test_looks_that_are_refused(server, body):
    error, field = server.refuse("/v1/completions", **ASKED | body), next(iter(body))
    assert error["param"] == field and error["message"].startswith(field), error
    assert server.ask("/v1/completions", **ASKED)["choices"]


def test_a_budget_ends_one_request_alone(fast):
    error = fast.refuse("/v1/completions", **ASKED, look={"values": ["**"]})
    assert error["param"] == "look" and "may hold" in error["message"]
    assert "a larger --look-budget" in error["message"] and "Python" not in error["message"]
    error = fast.refuse("/v1/completions", **ASKED | {"max_tokens": 60}, look={"values": [BLOCK]})  # on all's pass
    assert error["param"] == "look" and "may take" in error["message"]
    assert "a larger --look-budget" in error["message"]
    assert fast.ask("/v1/completions", **ASKED)["choices"]


def test_fast_kernels_give_nearly_the_same(fast, server):
    """Without --strict the kernels of a watched pass may round differently."""
    asked = {**ASKED, "temperature": 0, "look": {"values": [BLOCK]}}
    rows = [each.ask("/v1/completions", **asked)["foretell"]["look"][0]["values"][BLOCK][0] for each in (fast, server)]
    first, second = (torch.tensor(row["values"]) for row in rows)
    assert torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize(
    "extra",
    [
        {"look": {"values": [BLOCK]}},
        {"look": {"values": [WEIGHTS]}},
        {"change": [{"value": CORE, "scale": 0}]},
        {"change": [{"value": BLOCK, "set": 0}]},
        {"change": [{"value": BLOCK, "scale": 1e308}]},  # refused in its first pass
    ],
)
def test_neighbours_do_not_notice(server, extra):
    bodies = [{"prompt": "y", "seed": seed, "max_tokens": 40} for seed in range(6)]
    expected = [server.ask("/v1/completions", **body)["choices"] for body in bodies]
    *found, _ = at_once(server, [*bodies, {**ASKED, **extra}])
    assert [answer["choices"] for answer in found] == expected


def test_each_of_many_changes_acts_on_its_own_sequence(server):
    """Changes of the stream share a pass, and the bits are the ones of each change alone."""
    look = {"values": ["trunk.blocks.1"], "tokens": "new"}
    changes = [{"value": BLOCK, "add": 0.5 * step, "positions": [step, 12]} for step in range(6)]
    bodies = [{**ASKED, "max_tokens": 30, "look": look, "change": [change]} for change in changes]
    expected = [server.ask("/v1/completions", **body) for body in bodies]
    for alone, together in zip(expected, at_once(server, bodies), strict=True):
        assert together["choices"] == alone["choices"]
        assert together["foretell"]["look"] == alone["foretell"]["look"]
    assert len({str(answer["foretell"]["look"]) for answer in expected}) == len(bodies)


def test_equal_changes_share_a_form_of_the_model(server, model):
    served = serve_model("toy", model, ModelSettings(memory=2**20))
    head, other = [{"value": CORE, "heads": [1], "scale": 0}], [{"value": CORE, "heads": [0], "scale": 0}]
    recorders = []
    for change in (head, head, other, [{**head[0], "positions": [1]}], [{**head[0], "positions": [1]}]):
        request = CompletionRequest.model_validate({"prompt": PROMPT, "change": change})
        changes = Changes(served, request.change)
        recorders.append(make_recorder(served, Sequence([1, 2]), request, 2**20, changes))
        recorders[-1].begin()
    first, *others = [recorder.sequence.decoder for recorder in recorders]
    assert [form is first for form in others] == [True, False, False, False] and others[2] is not others[3]
    for recorder in recorders:
        recorder.end()
    assert not served.changed_forms
    bodies = [
        {**ASKED, "seed": seed, "max_tokens": 30, "change": change} for seed in range(3) for change in (head, other)
    ]
    expected = [server.ask("/v1/completions", **body)["choices"] for body in bodies]
    assert [answer["choices"] for answer in at_once(server, bodies)] == expected


def at_once(server, bodies):
    """The answers to requests that are sent at the same time."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return [answer.json() for answer in pool.map(lambda body: server.post("/v1/completions", **body), bodies)]
