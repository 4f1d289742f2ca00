"""Every number of a pass opens into its operands, in a changed pass too; hostile addresses are refused in one line."""

from __future__ import annotations

import pytest
import torch

import foretell
from foretell.insight.explain.explain_address import explain_value

TEXT = "some words"
CORE = "trunk.blocks.0.attention.core"


@pytest.mark.parametrize(
    "address",
    [f"{CORE}[1,3,2]", f"{CORE}.weights[1,3,2]", "head[3,97]", "loss[2]", "embed.token.weight[97,3]", "head[-1,'a']"],
)
def test_a_value_is_explained_as_on_the_command_line(server, model, address):
    answer = server.ask("/explore/value", text=TEXT, address=address)
    expected = explain_value(model, TEXT, address)
    formulas = [step.pop("formula") for step in answer["steps"] if "formula" in step]
    assert answer == {**expected.to_json(), "address": expected.address, "changed": False}
    assert all(line in str(expected) for formula in formulas for line in formula)


def test_appended_tokens_and_changes_are_part_of_the_pass(server, model):
    change = [{"value": CORE, "heads": [0], "scale": 0}, {"value": "trunk.blocks.0.feedforward", "scale": 2}]
    asked = {"text": TEXT, "appended": [97, 98], "change": change}

    def halves(core):
        return torch.cat((torch.zeros_like(core[:, :1]), core[:, 1:]), 1)

    with foretell.Trace(model, ["**"], replace={CORE: halves, "trunk.blocks.0.feedforward": lambda x: 2 * x}) as trace:
        model.decoder(torch.tensor([[*model.encode(TEXT), 97, 98]]))
    for name, index, changed in ((CORE, (0, 11, 5), True), ("trunk.blocks.1", (11, 5), False)):
        answer = server.ask("/explore/value", **asked, address=f"{name}{list(index)}")
        assert answer["stored"] == float(trace[name][0][index]) and answer["changed"] == changed
        assert answer["agrees"] != changed
    zero = server.ask("/explore/value", **asked, address="trunk.blocks.0.attention.output[11,0]")
    x = zero["steps"][0]["columns"]["x"]
    assert x[:32] == [0.0] * 32 and any(x[32:]) and zero["agrees"]


def test_a_long_listing_keeps_its_first_rows(server, monkeypatch):
    from foretell.insight.explain.steps import Listing
    from foretell.serving import values

    monkeypatch.setattr(values, "MOST_ROWS", 300)
    numbers = [float(row) for row in range(400)]
    cut = values.step_json(Listing("", {"element": range(400), "x": numbers}, ("x",), focus=200))
    assert cut["columns"]["element"] == [*range(100), 200, 399] and cut["row"] == 100
    assert cut["sums"] == {"x": sum(numbers)} and cut["left_out"] == 298


@pytest.mark.parametrize("address", ["trunk.blocks.0[0,0]", "head[3,97]", "loss[2]", "probabilities[3,97]"])
@pytest.mark.parametrize("size", [{"scale": 1e38}, {"set": -1e30}, {"add": 1e20}])
def test_a_number_of_a_pass_with_numbers_that_are_too_large_is_refused(server, address, size):
    change = [{"value": "trunk.blocks.0", **size}]
    error = server.refuse("/explore/value", text=TEXT, address=address, change=change)
    assert error["param"] == "change" and "beyond 1e10; use smaller numbers" in error["message"]


def test_a_masked_score_is_explained_in_a_changed_pass(server):
    change = [{"value": "trunk.blocks.0.attention.core.scores", "scale": 2}]
    answer = server.ask("/explore/value", text=TEXT, address=f"{CORE}.masked[0,1,2]", change=change)
    assert answer["stored"] == "-inf"


@pytest.mark.parametrize(
    "address",
    [
        "nothing",
        "nothing[0]",
        CORE,
        f"{CORE}[0]",
        f"{CORE}[0,0,99]",
        f"{CORE}[{'9' * 200},0,0]",
        f"{CORE}[{'(' * 200}]",
        f"{CORE}[1 .__class__,0,0]",
        f"{CORE}[True,0,0]",
        f"{CORE}[1.5,0,0]",
        f"{CORE}['a',0,0]",
        "head[0,'two tokens']",
        "loss[9]",
        "[0]",
        "head[0,\n1]",
        "head\x00[0,1]",
        "<script>alert(1)</script>[0]",
        "embed.token.weight[999,0]",
        "x" * 301,
        "",
    ],
)
def test_hostile_addresses_are_refused_in_one_line(server, address):
    error = server.refuse("/explore/value", text=TEXT, address=address)
    assert error["param"] == "address" and error["message"].isprintable(), error
