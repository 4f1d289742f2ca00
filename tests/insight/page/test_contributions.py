"""Direct contributions on a page: the numbers of `direct_logit_attribution`, which add up to the logit."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.page.contributions import logit_contributions
from foretell.insight.page.write_page import record_all
from foretell.insight.trace import Trace

TEXT = "abcdefghij"


def test_contributions_are_those_of_the_attribution(config, make_model):
    model = make_model(config, bias={**config.bias.model_dump(), "head": True})
    traced = record_all(model, TEXT)
    table, names = logit_contributions(traced, 0), [part["name"] for part in traced.contributions.described()]
    for position in (0, 4, 9):
        for token, logit, *parts in table[position, [0, 2, -1]]:
            expected = direct_logit_attribution(model, TEXT, int(token), position)
            assert [part.name for part in expected.parts] == names
            np.testing.assert_allclose(parts, [part.value for part in expected.parts], rtol=0, atol=1e-5)
            assert logit == pytest.approx(expected.logit, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "factor"), [("trunk.blocks.0", 0.5), ("trunk.blocks.0.attention", 0), ("trunk.blocks.1.attention", 0.5)]
)
def test_a_contribution_to_a_changed_pass_is_the_number_that_opens(make_model, name, factor):
    model = make_model("gpt2")
    with Trace(model, replace={name: lambda value: factor * value}):
        traced = record_all(model, TEXT)
        token, logit, *parts = logit_contributions(traced, 0)[4, 0]
        if name.endswith("attention"):  # one part, so that all add up to the logit
            assert sum(parts) == pytest.approx(logit, abs=1e-5)
            assert (parts[traced.contributions.parts.index(name)] == 0) == (factor == 0)
        for index, part in enumerate(parts):
            opened = explain_value(model, TEXT, f"contributions[4,{int(token)},{index}]")
            assert opened.stored == pytest.approx(part, abs=1e-5), index


def test_the_last_token_of_the_list_is_the_next_token_of_the_text(make_model):
    traced = record_all(make_model("gpt2"), TEXT)
    table = logit_contributions(traced, 0)
    assert table[:-1, -1, 0].tolist() == traced.ids[1:]
    assert table[-1, -1, 0] == table[-1, 0, 0]


def test_a_part_belongs_to_its_layer_and_head(make_model):
    traced = record_all(make_model("gpt2"), TEXT)
    parts = {part["name"]: part for part in traced.contributions.described()}
    head = parts["trunk.blocks.1.attention.core[1]"]
    assert (head["layer"], head["module"], head["head"]) == (1, "attention", 1)
    assert parts["embed.token"]["layer"] is None


def rows(opened):
    cells = [line.split("\t") for line in opened.page.locator("#contribution-sums tbody tr").all_inner_texts()]
    return {row[0]: float(row[1].replace("−", "-")) for row in cells}


def test_the_table_adds_up_to_the_logit(primer, primer_page):
    primer_page.page.locator("#token-select").select_option("3")
    found = rows(primer_page)
    total, remainder, logit = found.pop("Sum"), found.pop("Remainder"), found.pop("Logit of the model")
    assert sum(found.values()) == pytest.approx(total, abs=1e-3)
    assert abs(remainder) <= 1e-4
    model, text = primer
    expected = direct_logit_attribution(model, text, at=3)
    assert logit == pytest.approx(expected.logit, abs=6e-5)
    heads = {part.name: part.value for part in expected.parts}
    cells = primer_page.page.locator("#contribution-attention-heads tbody td").all_inner_texts()
    shown = [f"{heads[f'trunk.blocks.{layer}.attention.core[{head}]']:.2f}" for layer in range(4) for head in range(3)]
    assert [cell.replace("−", "-") for cell in cells] == shown


def test_the_difference_of_two_tokens_can_be_shown(primer, primer_page):
    primer_page.page.locator("#token-select").select_option("3")
    primer_page.page.locator("#contribution-against").select_option("1")
    model, text = primer
    ids = primer_page.ask("""async () => {
        const { data } = (await import("page/main.js")).shown;
        return [0, 1].map((k) => data.get("contributions.0").at(3, k, 0));
    }""")
    expected = direct_logit_attribution(model, text, ids[0], 3, against=ids[1])
    assert rows(primer_page)["Difference"] == pytest.approx(expected.logit, abs=6e-5)
    primer_page.page.locator("#contribution-against").select_option("")


def test_a_click_on_a_head_chooses_it(primer_page):
    primer_page.page.locator("#contribution-attention-heads tbody button").nth(7).click()
    assert primer_page.page.locator("#layer-select").input_value() == "2"
    assert primer_page.page.locator("#head-select").input_value() == "1"
