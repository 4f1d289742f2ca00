"""What users rely on by name: public names, verbs and their options, frozen so that a change is a decision."""

from __future__ import annotations

import pytest

import foretell
from foretell.cli.main import VERBS, make_app

OPTIONS = {
    "demo": {"--minutes", "--out"},
    "lesson": {"--check", "--html", "--weights", "--at", "--seed", "--break", "--json"},
    "train": {
        *("--size", "--minutes", "--steps", "--out", "--resume", "--config", "--tokenizer", "--kind", "--seed"),
        "--from",
        *("--checkpoint-every", "--text-field", "--sample-prompt", "--set", "--exportable", "--device", "--dtype"),
        *("--report", "--show-batch", "--json"),
    },
    "runs": {"--png", "--json"},
    "generate": {
        *("--max-tokens", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop"),
        *("--seed", "--slide", "--receipt", "--json", "--device", "--dtype"),
    },
    "next": {"--top", "--at", "--every", "--json", "--device", "--dtype"},
    "score": {"--json", "--device", "--dtype"},
    "evaluate": {"--task", "--stride", "--text-field", "--json", "--device", "--dtype"},
    "embed": {"--pool", "--json", "--device", "--dtype"},
    "info": {"--json"},
    "explain": {
        *("--value", "--html", "--lens", "--contributions", "--heads", "--ablate", "--check"),
        *("--token", "--against", "--with", "--at", "--layer", "--json", "--device", "--dtype"),
    },
    "trace": {"--select", "--out", "--list", "--json", "--device", "--dtype"},
    "tokenize": {"--allow-special", "--json"},
    "convert": {"--to", "--family", "--dtype", "--json"},
    "tokenizer train": {"--kind", "--vocab-size", "--split", "--text-field", "--out", "--json"},
}


def test_public_names_are_sorted_and_each_can_be_had():
    assert foretell.__all__ == sorted(foretell.__all__)
    for name in foretell.__all__:
        assert getattr(foretell, name) is not None


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = foretell.nonsense


def test_the_verbs_are_these():
    assert {*VERBS, "tokenizer train"} == set(OPTIONS)


@pytest.mark.parametrize("verb", OPTIONS)
def test_the_options_of_a_verb_are_these(verb):
    app = make_app()[verb.split()[0]]
    app = app[verb.split()[1]] if " " in verb else app
    names = {name for argument in app.assemble_argument_collection() for name in argument.names if name[:2] == "--"}
    assert names == OPTIONS[verb]
