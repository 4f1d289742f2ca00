"""Contributions to logits open into what a part wrote, and weights; they are those of the attribution and the page."""

from __future__ import annotations

import random
import re

import pytest

from foretell.errors import UsageError
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.page.contributions import logit_contributions
from foretell.insight.page.write_page import record_all
from tests.insight.explain.test_explanation import opened

TEXT = "abcafig!"
HEAD = "trunk.blocks.1.attention.core[0]"


def with_bias(make_model, config, **changes):
    bias = config if isinstance(config, str) else {**config.bias.model_dump(), "head": True}
    return make_model(config, **({} if isinstance(config, str) else {"bias": bias}), **changes)


def test_every_part_and_sum_follows_from_its_operands(config, make_model):
    model = with_bias(make_model, config)
    draw = random.Random(1)
    expected = {part.name: part.value for part in direct_logit_attribution(model, TEXT, 3, 4, against=5).parts}
    names, D = [*expected], model.config.width
    total = explain_value(model, TEXT, "contributions.difference[4,3,5,'all']")
    assert total.stored == pytest.approx(sum(expected.values()))
    for name in names:
        explanation = explain_value(model, TEXT, f"contributions.difference[4,3,5,{name!r}]")
        assert explanation.agrees and explanation.stored == pytest.approx(expected[name], abs=1e-9)
        number = explanation.index[-1]
        addresses = [f"contributions[4,3,{number}]"]
        if name != "head.bias":
            element = draw.randrange(D)
            addresses += [f"contributions.{kind}[4,{number},{element}]" for kind in ("vector", "written")]
        for address in addresses:
            assert explain_value(model, TEXT, address).agrees, str(explain_value(model, TEXT, address))


@pytest.mark.parametrize("name", ["gpt1", "llama", "smallest", "gpt2"])
def test_every_operand_opens(name, make_model):
    model, draw = make_model(name), random.Random(2)
    todo, seen = [f"contributions[4,3,{part}]" for part in ("'all'", f"{HEAD!r}", 0)], set()
    while todo:
        explanation = explain_value(model, TEXT, todo.pop())
        assert explanation.agrees
        seen.add(explanation.name)
        for step in explanation.to_json()["steps"] if explanation.name.startswith("contributions") else ():
            todo += re.findall(r"[\w.]+\[[\d,]+\]", step.get("remark", ""))
            for column, pattern in step.get("operands", {}).items():
                if "columns" not in step:
                    todo.append(pattern)
                    continue
                indices = next(iter(step["columns"].values()))
                row = draw.randrange(len(indices))
                address = opened(pattern, indices[row], model.config.head_width)
                assert explain_value(model, TEXT, address).stored == pytest.approx(
                    step["columns"][column][row], abs=1e-6
                )
                todo.append(address)
    assert {"contributions", "contributions.vector", "contributions.written"} <= seen
    assert seen & {"head.weight", "embed.token.weight"} and len(seen) > 4


def test_they_are_the_numbers_of_the_page(make_model):
    model = make_model("gpt2")
    traced = record_all(model, TEXT)
    parts, table = traced.contributions.described(), logit_contributions(traced, 0)
    for token, _, *values in table[2]:
        shown = [
            explain_value(model, TEXT, f"contributions[2,{int(token)},{part}]").stored for part in range(len(parts))
        ]
        assert shown == pytest.approx(values, rel=1e-6)
    sums = {part["sum"] for part in parts}
    assert explain_value(model, TEXT, "contributions[2,3,'trunk.blocks.1.attention']").index[-1] in sums
    assert explain_value(model, TEXT, "contributions[2,3,-1]").index[-1] == max(sums) + 1


def test_a_changed_weight_is_detected(make_model, monkeypatch):
    from foretell.insight.recorded_pass import RecordedPass

    model, weight = make_model("gpt2"), RecordedPass.weight
    monkeypatch.setattr(RecordedPass, "weight", lambda self, *index: weight(self, *index) * 1.001)
    assert not explain_value(model, TEXT, f"contributions.written[4,{HEAD!r},2]").agrees


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("contributions", "position 0 to 7, token 0 to"),
        ("contributions[0,0,99]", "part 99"),
        ("contributions[0,0,'trunk.blocks.9']", "no part is named 'trunk.blocks.9'"),
        ("contributions.vectors[0,0,0]", "near it: contributions.vector"),
        ("contributions.vector[0,'all',0]", "out of range"),
        ("task_head.contributions[0,0]", "no value is named"),
    ],
)
def test_an_invalid_address_is_refused(make_model, address, words):
    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        explain_value(make_model("gpt2"), TEXT, address)
