"""The measures of known attention patterns, and the weights of a model."""

from __future__ import annotations

import math

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.attribution.head_patterns import MEASURES, HeadPatterns, head_patterns
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from tests.insight.attribution.conftest import MakeModel

LENGTH = 5
ITSELF = torch.eye(LENGTH)
PREVIOUS = torch.eye(LENGTH).roll(-1, 1).tril()
PREVIOUS[0, 0] = 1
FIRST = torch.zeros(LENGTH, LENGTH)
FIRST[:, 0] = 1
EVEN = torch.ones(LENGTH, LENGTH).tril() / torch.arange(1, LENGTH + 1)[:, None]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (ITSELF, {"distance": 0, "first": 0, "itself": 1, "previous": 0, "entropy": 0}),
        (PREVIOUS, {"distance": 1, "first": 1 / 4, "itself": 0, "previous": 1, "entropy": 0}),
        (FIRST, {"distance": 2.5, "first": 1, "itself": 0, "previous": 1 / 4, "entropy": 0}),
        (
            EVEN,
            {
                "distance": (0.5 + 1 + 1.5 + 2) / 4,
                **dict.fromkeys(("first", "itself", "previous"), (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4),
                "entropy": sum(math.log(n) for n in (2, 3, 4, 5)) / 4,
            },
        ),
        (torch.ones(1, 1), {"distance": 0, "first": 1, "itself": 1, "previous": 0, "entropy": 0}),
    ],
    ids=["itself", "previous", "first", "even", "one token"],
)
def test_known_patterns_have_the_expected_measures(weights, expected) -> None:
    patterns = HeadPatterns(["a"] * len(weights), weights[None, None])
    assert {name: float(patterns.measured(name)) for name in MEASURES} == pytest.approx(expected)


def test_the_weights_are_those_of_the_pass(model: LanguageModel, text: str) -> None:
    patterns = head_patterns(model, text)
    config = model.decoder.config
    assert patterns.weights.shape == (config.num_layers, config.num_heads, 7, 7)
    with torch.no_grad(), Trace(model, "trunk.blocks.1.attention.core.weights") as trace:
        model.decoder(torch.tensor([model.tokenizer.encode(text)]))
    assert torch.equal(patterns.weights[1], trace["trunk.blocks.1.attention.core.weights"][0])
    assert torch.equal(patterns.head(1, 0).weights, patterns.weights[1, 0])
    torch.testing.assert_close(patterns.weights.sum(-1), torch.ones(patterns.weights.shape[:-1]))


def test_json_has_measures_and_weights_of_each_head(make_model: MakeModel, text: str) -> None:
    heads = head_patterns(make_model("gpt2"), text).to_json()["heads"]
    assert len(heads) == 4
    assert heads[3]["name"] == "trunk.blocks.1.attention.core[1]"
    assert set(MEASURES) <= set(heads[3])
    assert len(heads[3]["weights"]) == 7


def test_twelve_layers_of_twelve_heads_fit_80_columns() -> None:
    weights = torch.rand(12, 12, 9, 9).tril()
    lines = str(HeadPatterns(["a"] * 9, weights / weights.sum(-1, keepdim=True))).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.split()[:1] == ["11"] for line in lines) == len(MEASURES)


def test_many_heads_are_split_into_several_tables() -> None:
    patterns = HeadPatterns(["a"], torch.ones(1, 25, 1, 1))
    lines = [line for line in str(patterns).splitlines() if line.startswith("layer")]
    assert [len(line.split()) - 1 for line in lines[:3]] == [12, 12, 1]
    assert max(map(len, lines)) <= 80


def test_a_head_is_printed_as_a_heat_map() -> None:
    patterns = HeadPatterns(list("abcde"), PREVIOUS[None, None])
    shades = [line for line in str(patterns.layer(0)).splitlines() if line.endswith("▕")]
    assert [line.count("██") for line in shades] == [1] * 5
    for shown in (patterns, patterns.head(0, 0), patterns.layer(0)):
        assert "over all query tokens but the first" in " ".join(str(shown).split())
    with pytest.raises(UsageError, match="layer 0 has no head 1; the layers are 0 to 0, the heads 0 to 0"):
        patterns.head(0, 1)
    with pytest.raises(UsageError, match="layer 1 does not exist; the layers are 0 to 0"):
        patterns.layer(1)
