"""`foretell generate --receipt`: the same text, and how each token was sampled."""

from __future__ import annotations

import json

import pytest

from foretell.insight.receipt import Receipt
from foretell.loading import load

SETTINGS = ["--temperature", "0.9", "--top-k", "20", "--repetition-penalty", "1.1", "--min-p", "0.01"]
WAYS = {
    "settings": ["The", "--max-tokens", "8", *SETTINGS],
    "greedy": ["The", "--max-tokens", "5", "--temperature", "0"],
    "several prompts": ["The cat", "A", "--max-tokens", "6"],
    "sliding": ["The", "--max-tokens", "40", "--slide"],
    "a stop string": ["The", "--max-tokens", "25", "--temperature", "2", "--top-p", "1", "--stop", "e", "--stop", " "],
}


@pytest.mark.parametrize("arguments", WAYS.values(), ids=WAYS)
def test_the_text_is_the_same_and_the_receipts_come_after_it(foretell, trained, arguments):
    plain = foretell("generate", trained, *arguments).out
    receipts = foretell("generate", trained, *arguments, "--receipt").succeeds()
    assert receipts.out.startswith(plain)
    rest = receipts.out[len(plain) :]
    assert "each replayed from its receipt" in rest
    assert max(map(len, rest.splitlines())) <= 80


@pytest.mark.parametrize("arguments", WAYS.values(), ids=WAYS)
def test_json_gains_receipts_that_replay_and_is_otherwise_the_same(foretell, trained, arguments):
    def objects(*more: str) -> list[dict]:

        return [
            json.loads(line) for line in foretell("generate", trained, *arguments, "--json", *more).out.splitlines()
        ]

    tokenizer = load(trained).tokenizer
    for plain, full in zip(objects(), objects("--receipt"), strict=True):
        assert list(plain) == ["prompt", "text", "token_ids", "finish_reason"]
        receipts = [Receipt.from_json(values, tokenizer) for values in full.pop("receipts")]
        assert full == plain
        assert [receipt.replay() for receipt in receipts][: len(plain["token_ids"])] == plain["token_ids"]
        assert len(receipts) >= len(plain["token_ids"])  # tokens removed by a stop string were sampled too
        for receipt in receipts:
            receipt.check()


def test_a_receipt_names_every_filter_with_its_setting(foretell, trained):
    lines = foretell("generate", trained, "The", "--max-tokens", "1", *SETTINGS, "--receipt").out.splitlines()
    names = ("logits", "repetition-penalty 1.1", "temperature 0.9", "top-k 20", "top-p 0.95", "min-p 0.01", "draw 0.")
    assert all(line.startswith(name) for line, name in zip(lines[-7:], names, strict=True))


def test_no_tokens_give_no_receipts(foretell, trained):
    assert "0 tokens after 'The'" in foretell("generate", trained, "The", "--max-tokens", "0", "--receipt").out


def test_receipts_of_strict_layers_are_those_of_each_token(foretell, trained):
    completion = foretell("generate", trained, "The", "--max-tokens", "3", "--strict", "--receipt", "--json").json
    for receipt in (Receipt.from_json(values) for values in completion["receipts"]):
        receipt.check()
