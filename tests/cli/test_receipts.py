"""`foretell generate --receipt`: the same text, and how each token was sampled."""

from __future__ import annotations

import json
from pathlib import Path

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


# --- foretell verify -------------------------------------------------------------------------------------------------


@pytest.fixture
def answers(foretell, trained, tmp_path) -> Path:
    """A file of two answers with receipts."""
    asked = ("--max-tokens", "6", "--strict", "--receipt", "--n", "2", "--out", "answers.jsonl")
    assert foretell("generate", trained, "The cat", *asked).code == 0
    return tmp_path / "answers.jsonl"


def test_answers_are_verified(foretell, trained, answers):
    first = json.loads(answers.read_text(encoding="utf-8").splitlines()[0])
    assert "receipts" not in first
    shown = foretell("verify", answers, "--model", trained)
    assert shown.code == 0 and shown.out.count("verified: this model writes this answer") == 2
    lines = foretell("verify", answers, "--model", trained, "--positions", "2", "--json").out.splitlines()
    assert [(json.loads(line)["verdict"], json.loads(line)["num_checked"]) for line in lines] == [("verified", 2)] * 2
    assert json.loads(lines[0])["text"] == first["text"]


def test_a_changed_answer_is_exit_code_1_with_a_line_for_each_finding(foretell, trained, answers, tmp_path):
    first = json.loads(answers.read_text(encoding="utf-8").splitlines()[0])
    first["receipt"]["tokens"][-1] ^= 1
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(first["receipt"]), encoding="utf-8")
    outcome = foretell("verify", changed, "--model", trained)
    assert (outcome.code, outcome.last_line) == (1, f"foretell: {changed}: 1 of 1 receipts rejected")
    assert "sha256: the receipt was changed" in outcome.out and "token 5: the receipt has" in outcome.out


def test_what_is_not_a_receipt(foretell, trained, tmp_path):
    file = tmp_path / "file.json"
    other = '{"request": {}, "format": 99}'
    for content, words in [
        ("{}", "has no receipt"),
        (other, "format = 99"),
        ("nothing", "is not readable JSON"),
        ("[" * 10_000, "JSON"),
    ]:
        file.write_text(content, encoding="utf-8")
        outcome = foretell("verify", file, "--model", trained)
        assert outcome.code == 1 and words in outcome.last_line
    assert foretell("verify", tmp_path / "none", "--model", trained).code == 1
