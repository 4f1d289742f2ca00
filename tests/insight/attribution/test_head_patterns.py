"""The measures of known attention patterns, and the weights of a model."""

from __future__ import annotations

import math

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.attribution.head_patterns import HeadPatterns, head_patterns, measure_tables
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
    patterns = HeadPatterns(["a"] * len(weights), list(range(len(weights))), weights[None, None])
    assert {name: float(patterns.measured(name)) for name in expected} == pytest.approx(expected)


IDS = [5, 6, 7, 5, 6]  # the last two tokens are repeated


def reading(keys: dict[int, int]) -> torch.Tensor:
    """Weights of a head that reads one key per query, by default the first."""
    return torch.eye(LENGTH)[[keys.get(query, 0) for query in range(LENGTH)]]


HEADS = {
    "induction": reading({3: 1, 4: 2}),
    "same token": reading({3: 0, 4: 1}),
    "previous token": reading({query: query - 1 for query in range(1, LENGTH)}),
    "itself": reading({query: query for query in range(LENGTH)}),
    "spread evenly": EVEN,
}


@pytest.mark.parametrize(("does", "looks"), [("induction", {(3, 1), (4, 2)}), ("same token", {(3, 0), (4, 1)})])
def test_repeated_tokens_show_who_reads_their_earlier_occurrence(does, looks) -> None:
    patterns = HeadPatterns(["a"] * LENGTH, IDS, torch.stack([HEADS[does], FIRST, FIRST, FIRST])[:, None])
    assert float(patterns.measured("induction" if does == "induction" else "duplicate")[0]) == 1
    best = patterns.roles()[0]
    assert (best.layer, best.does, best.share, best.weight) == (0, does, 1, 1) and (best.query, best.key) in looks


@pytest.mark.parametrize("does", HEADS)
def test_one_head_that_differs_is_named_before_many_that_read_the_first_token(does) -> None:
    weights = torch.stack([FIRST] * 7 + [HEADS[does]])[:, None]
    best = HeadPatterns(["a"] * LENGTH, IDS, weights).roles()[0]
    assert (best.layer, best.head, best.does) == (7, 0, does)


def test_without_repeated_tokens_no_head_is_said_to_do_induction() -> None:
    patterns = HeadPatterns(["a"] * LENGTH, list(range(LENGTH)), torch.stack([PREVIOUS, EVEN])[None])
    assert not patterns.measured("induction").any() and not patterns.measured("duplicate").any()
    assert "No token is repeated" in str(patterns)


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
    assert {"first", "previous", "duplicate", "induction", "entropy"} <= set(heads[3])
    assert (heads[3]["role"]["layer"], heads[3]["role"]["head"]) == (1, 1)
    assert len(heads[3]["weights"]) == 7


def test_the_twelve_most_telling_of_many_heads_fit_80_columns() -> None:
    weights = torch.rand(30, 9, 9, 9).tril()
    patterns = HeadPatterns([" a long token of a text"] * 9, [*range(8), 0], weights / weights.sum(-1, keepdim=True))
    lines = str(patterns).splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines if line.endswith("%") or "→" in line]
    assert shown == [f"{role.layer}.{role.head}" for role in patterns.roles()[:12]]
    assert len(patterns.to_json()["heads"]) == 270


def test_many_heads_are_split_into_several_tables() -> None:
    tables = measure_tables(torch.ones(1, 25), "{:.2f}".format)
    assert [len(table.header) - 1 for table in tables] == [12, 12, 1]


def test_a_head_is_printed_as_a_heat_map() -> None:
    patterns = HeadPatterns(list("abcde"), list(range(5)), PREVIOUS[None, None])
    shades = [line for line in str(patterns.layer(0)).splitlines() if line.endswith("▕")]
    assert [line.count("██") for line in shades] == [1] * 5
    for shown in (patterns.head(0, 0), patterns.layer(0)):
        assert "over all query tokens but the first" in " ".join(str(shown).split())
    with pytest.raises(UsageError, match="layer 0 has no head 1; the layers are 0 to 0, the heads 0 to 0"):
        patterns.head(0, 1)
    with pytest.raises(UsageError, match="layer 1 does not exist; the layers are 0 to 0"):
        patterns.layer(1)
