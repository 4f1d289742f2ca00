"""Globs that match module paths."""

from __future__ import annotations

import pytest

from foretell.errors import UsageError
from foretell.paths import matches, select, starred, suggest

NAMES = [
    "embed",
    "embed.token",
    "trunk.blocks.0",
    "trunk.blocks.0.attention",
    "trunk.blocks.10.attention.query",
    "head",
]


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("head", "head", True),
        ("head", "heads", False),
        ("hea.", "head", False),
        ("*", "head", True),
        ("*", "embed.token", False),
        ("embed.*", "embed.token", True),
        ("embed.*", "embed", False),
        ("embed.**", "embed", True),
        ("**.query", "query", True),
        ("**.query", "trunk.blocks.10.attention.query", True),
        ("**.query", "trunk.blocks.10.attention.query_norm", False),
        ("trunk.**.query", "trunk.blocks.10.attention.query", True),
        ("trunk.*.query", "trunk.blocks.10.attention.query", False),
        ("trunk.blocks.*.attention.**", "trunk.blocks.10.attention", True),
        ("**.*_norm", "trunk.blocks.10.attention.query_norm", True),
        ("**", "trunk.blocks.10.attention.query", True),
        ("", "head", False),
        ("head[0]", "head", False),
    ],
)
def test_a_glob_matches_whole_names(glob: str, name: str, expected: bool) -> None:
    assert matches(glob, name) == expected


def test_selected_names_are_unique_and_in_order() -> None:
    assert select(["head", "**.attention", "trunk.**", "head"], NAMES) == NAMES[2:]


def test_an_empty_list_of_globs_selects_nothing() -> None:
    assert select([], NAMES) == []


@pytest.mark.parametrize(
    ("glob", "similar"),
    [("haed", "head"), ("trunk.blocks.*.atention", "trunk.blocks.*.attention"), ("**.querry", "**.query")],
)
def test_a_glob_without_a_match_is_refused_with_similar_names(glob: str, similar: str) -> None:
    with pytest.raises(UsageError, match="nothing here is named") as error:
        select(["**", glob], NAMES)
    assert similar in str(error.value).partition("near it: ")[2]


def test_a_glob_unlike_any_name_is_refused_without_a_suggestion() -> None:
    with pytest.raises(UsageError, match="nothing here is named 'xyzzy'$"):
        select("xyzzy", NAMES)


def test_only_segments_that_are_numbers_become_stars() -> None:
    assert starred("trunk.blocks.10.attention") == "trunk.blocks.*.attention"
    assert starred("trunk.blocks.0") == "trunk.blocks.*"
    assert starred("layer2.up") == "layer2.up"


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("transformer.h.0.attn", "trunk.blocks.0.attention"),
        ("transformer.h.10.attn.c_attn.weight", "trunk.blocks.10.attention.query, .key and .value"),
        ("h.*.attn", "trunk.blocks.*.attention"),
        ("model.layers.0.self_attn.q_proj", "trunk.blocks.0.attention.query"),
        ("blocks.0.attn.hook_pattern", "trunk.blocks.0.attention.core.weights"),
        ("blocks.0.hook_resid_post", "trunk.blocks.0"),
        ("transformer.wte.weight", "embed.token"),
        ("lm_head", "head"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(foreign: str, ours: str) -> None:
    names = [*NAMES, "trunk.blocks.0.attention.query", "trunk.blocks.0.attention.core.weights"]
    assert suggest(foreign, names) == f"; here it is called {ours}"
    with pytest.raises(UsageError, match="here it is called"):
        select(foreign, names)


def test_a_foreign_name_of_a_part_that_the_model_lacks_is_not_suggested() -> None:
    assert "called" not in suggest("transformer.wpe", NAMES)
    assert "called" not in suggest("blocks.0.attn.nonsense", NAMES)
