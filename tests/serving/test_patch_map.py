"""The map of patches: each cell is the pass with that patch; a request whose client has left is not computed."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

import foretell
from foretell.serving.engine_thread import EngineThread

TEXT, OTHER = "some words here", "same birds, far"
BLOCK = "trunk.blocks.0"
ASKED = {"text": TEXT, "second": OTHER, "layer": 0, "positions": list(range(len(TEXT)))}


@torch.inference_mode()
def logits_after(model, ids, replace):
    with foretell.Trace(model, replace=replace):
        return model.decoder(torch.tensor([ids]))[0, -1]


@torch.inference_mode()
def stream_of(model, text, name):
    with foretell.Trace(model, name) as trace:
        model.decoder(torch.tensor([model.encode(text)]))
    return trace[name][0]


@pytest.mark.parametrize("positions", [[3], list(range(len(TEXT)))])
@pytest.mark.parametrize(("layer", "name"), [(-1, "embed"), (0, BLOCK)])
def test_a_cell_is_the_pass_with_its_patch(server, model, layer, name, positions):
    row = server.ask("/explore/patch", **ASKED | {"layer": layer, "positions": positions})
    ids, other = model.encode(TEXT), stream_of(model, OTHER, name)
    before = logits_after(model, ids, {})
    token = int(before.argmax())
    assert row["name"] == name and row["token"]["id"] == token
    assert row["logit"] == pytest.approx(float(before[token]), abs=1e-4)
    for cell in row["positions"]:

        def patch(stream, at=cell["position"]):
            return torch.where(torch.arange(stream.shape[1])[:, None] == at, other, stream)

        after = logits_after(model, ids, {name: patch})
        logprobs = model.log_probabilities(torch.stack((before, after)))[:, token]
        assert cell["logit"] == pytest.approx(float(after[token]), abs=1e-4)
        assert cell["logprob"] == pytest.approx(float(logprobs[1]), abs=1e-4)
        assert cell["logit_difference"] == pytest.approx(float(after[token] - before[token]), abs=1e-4)
        assert cell["logprob_difference"] == pytest.approx(float(logprobs[1] - logprobs[0]), abs=1e-4)


def test_a_cell_has_the_bits_of_the_pass_with_strict_layers(start_server, toy_model, model):
    """However many positions are read, and from whichever on."""
    server, strict = start_server(str(toy_model), "--memory", "0.05", "--strict"), model.strict()
    change = {"value": "trunk.blocks.1.attention", "scale": 0.5, "positions": [2, 9]}
    halve = torch.ones(len(TEXT), 1)
    halve[[2, 9]] = 0.5
    ids, other = strict.encode(TEXT), stream_of(strict, OTHER, BLOCK)
    for positions in ([3], [9, 5, 11], list(range(len(TEXT)))):
        for cell in server.ask("/explore/patch", **ASKED | {"positions": positions, "change": [change], "token": 3})[
            "positions"
        ]:

            def patch(stream, at=cell["position"]):
                return torch.where(torch.arange(stream.shape[1])[:, None] == at, other, stream)

            replace = {BLOCK: patch, "trunk.blocks.1.attention": lambda update: update * halve}
            assert cell["logit"] == float(logits_after(strict, ids, replace)[3]), cell


def test_the_last_position_after_the_last_layer_gives_the_second_text(server):
    """And where both texts have the same token, the embedding has no effect."""
    row = server.ask("/explore/patch", **ASKED | {"layer": 1, "token": 101})
    other = server.ask("/explore/patch", **ASKED | {"text": OTHER, "layer": 1, "token": 101})
    assert row["positions"][-1]["logit"] == pytest.approx(other["logit"], abs=1e-4)
    assert all(cell["logit_difference"] == 0 for cell in row["positions"][:-1])
    embedded = server.ask("/explore/patch", **ASKED | {"layer": -1})["positions"]
    assert [cell["logit_difference"] == 0 for cell in embedded] == [a == b for a, b in zip(TEXT, OTHER, strict=True)]


def test_changes_and_appended_tokens_are_part_of_both_passes(server, model):
    change = [
        {"value": BLOCK, "scale": 0.5, "positions": [1]},
        {"value": "trunk.blocks.1", "patch": OTHER, "positions": [2]},
    ]
    row = server.ask("/explore/patch", **ASKED | {"appended": [100, 101], "change": change})
    ids, other = [*model.encode(TEXT), 100, 101], stream_of(model, OTHER, "trunk.blocks.1")
    halve = torch.ones(len(ids), 1)
    halve[1] = 0.5

    def patch(stream):
        return torch.cat((stream[:, :2], other[None, 2:3], stream[:, 3:]), 1)

    before = logits_after(model, ids, {BLOCK: lambda stream: stream * halve, "trunk.blocks.1": patch})
    assert row["token"]["id"] == int(before.argmax())
    assert row["logit"] == pytest.approx(float(before.max()), abs=1e-4)


def test_a_long_row_is_read_in_parts(server, model):
    text = "word " * 24
    row = server.ask("/explore/patch", text=text, second=OTHER * 8, layer=0, positions=list(range(120)), token=3)
    assert [cell["position"] for cell in row["positions"]] == list(range(120))
    alone = server.ask("/explore/patch", text=text, second=OTHER * 8, layer=0, positions=[77], token=3)
    [cell] = alone["positions"]
    assert row["positions"][77]["logit_difference"] == pytest.approx(cell["logit_difference"], abs=1e-4)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("positions", {"positions": [len(TEXT)]}),
        ("positions", {"positions": []}),
        ("positions", {"positions": [-1]}),
        ("positions", {"second": "ab", "positions": [2]}),
        ("layer", {"layer": 2}),
        ("layer", {"layer": -2}),
        ("layer", {"layer": 10**9}),
        ("second", {"second": "x" * 500}),
        ("text", {"text": "x" * 500}),
        ("text", {"appended": [1] * 200}),
        ("text", {"text": ""}),
        ("appended", {"appended": [10**6]}),
        ("token", {"token": 10**6}),
        ("change", {"change": [{"value": "nothing", "scale": 0}]}),
        ("change", {"change": [{"value": BLOCK, "scale": 1e308}]}),
        ("change", {"change": [{"value": BLOCK, "add": [1.0]}]}),
    ],
)
def test_what_is_refused(server, field, body):
    assert server.refuse("/explore/patch", **ASKED | body)["param"] == field
    assert server.ask("/explore/patch", **ASKED)["positions"]


def test_a_call_that_was_cancelled_does_not_run(run_async):
    ran, gate = [], threading.Event()

    async def ask():
        engine = EngineThread([])
        engine.start(asyncio.get_running_loop())
        first = asyncio.ensure_future(engine.call("", gate.wait))
        second = asyncio.ensure_future(engine.call("", lambda: ran.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        gate.set()
        await first
        await engine.call("", lambda: ran.append("third"))
        engine.stop()

    run_async(ask())
    assert ran == ["third"]
