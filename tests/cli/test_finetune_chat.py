"""`foretell finetune --task chat`: from a file of conversations to a model that chats, and what is printed."""

from __future__ import annotations

import io
import json
import sys

TURNS = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a\tb\nc"}]
OPTIONS = ["--task", "chat", "--template", "plain", "--training.batch-size", "4", "--training.learning-rate", "1e-3"]


def test_from_a_file_to_a_conversation_and_back(foretell, monkeypatch, tmp_path):
    rows = [{"prompt": f"what is {n}?", "completion": "a number."} for n in range(12)]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    outcome = foretell("finetune", "primer", "n.jsonl", *OPTIONS, "--epochs", "1")
    assert outcome.code == 0, outcome.err
    assert "template    plain: as requested" in outcome.err
    assert "on held-out answers" in outcome.out and "chat runs/n" in outcome.out

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"what is 3?\n/save c.json\n")))
    assert foretell("chat", "n", "--max-tokens", "6", "--temperature", "0").code == 0

    (tmp_path / "m.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n", encoding="utf-8")
    recognised = foretell("evaluate", "n", "m.jsonl", "--base", "primer")
    assert recognised.code == 0, recognised.err
    assert "Answers to m.jsonl" in recognised.out and "a b ⏎ c" in recognised.out
    assert "losses are over different tokens" in recognised.out
    refused = foretell("evaluate", "n", "m.jsonl", "--base", "almanac")
    assert refused.last_line.endswith("almanac has no conversations; use it with: foretell forecast almanac DATA")
    (tmp_path / "both.jsonl").write_text(json.dumps({"messages": TURNS, "text": "a text"}) + "\n", encoding="utf-8")
    assert "bits_per_byte" in foretell("evaluate", "n", "both.jsonl", "--json").json

    compared = ["evaluate", "n", "n.jsonl", "--task", "chat", "--base", "primer"]
    result = foretell(*compared, "--questions", "2", "--limit", "6", "--json").json
    assert [each["model"] for each in result["models"]] == ["n", "primer"]
    assert [each["template"] for each in result["models"]] == ["n", "chatml"]
    assert {each["conversations"] for each in result["models"]} == {6}
    assert result["models"][0]["loss"] < result["models"][1]["loss"]  # it was tuned on them
    assert [each["question"] for each in result["questions"]] == ["what is 0?", "what is 1?"]
    assert all(
        each["answer"] == "a number." and set(each["answers"]) == {"n", "primer"} for each in result["questions"]
    )
    assert all(set(each["cut"]) <= {"n", "primer"} for each in result["questions"])
    shown = foretell(*compared, "--questions", "1", "--limit", "2", "--html", "page.html")
    assert "what is 0?" in shown.out and "in the data" in shown.out
    assert "what is 0?" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert foretell("evaluate", "n", "--task", "chat").last_line.endswith("give one or more files of conversations")

    options = ["--steps", "1", "--data.validation-fraction", "0", "--show-batch", "--out", "y"]
    outcome = foretell("finetune", "n", "c.json", "--task", "chat", *options)
    assert outcome.code == 0, outcome.err
    assert "template    n: the model's own" in outcome.err
    assert "tokens are learned" in outcome.out and "- is masked" in outcome.out
    assert foretell("finetune", "--task", "chat", "--out", "y", "--resume", "auto").code == 0
    assert [run["state"] for run in foretell("runs", "y", "--json").json["runs"]] == ["done"]
