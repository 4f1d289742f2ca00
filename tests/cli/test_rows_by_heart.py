"""The default command learns a handful of rows by heart: every prompt is answered exactly."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

LINES = {  # prompt <EOS> answer <EOS>
    "toy": [("how is living in amsterdam", "exciting"), ("living in amsterdam is how", "exciting")],
    "sums": [(f"{a} + {b} =", f"{a + b}") for a, b in ((1, 2), (2, 2), (3, 4), (5, 8), (9, 9), (7, 6), (4, 1))],
    "german": [("Wie heißt du?", "Anna."), ("Wo wohnst du?", "In Köln am Rhein."), ("Was isst du?", "Äpfel.")],
}
FIELDS = {  # columns of a table
    "capitals": [("capital of France?", "Paris"), ("capital of Italy?", "Rome"), ("capital of Peru?", "Lima")],
    "animals": [("Where is the cat?", "On the mat."), ("Where is the dog?", "On the log, asleep.")],
    "colours": [("天空是什么颜色？", "蓝色。"), ("草是什么颜色？", "绿色。"), ("雪是什么颜色？", "白色。")],
}
SHORT = [("toy", 1), ("capitals", 2)]
CASES = [
    pytest.param(name, seed, marks=[] if (name, seed) in SHORT else [pytest.mark.long])
    for name in [*LINES, *FIELDS]
    for seed in range(1, 11)
]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_every_prompt_is_answered_exactly(foretell, tmp_path: Path, name: str, seed: int) -> None:
    data, options, ending, allow = (
        tmp_path / "rows.txt",
        ["--rows", "--special", "<EOS>"],
        " <EOS>",
        ["--allow-special"],
    )
    pairs = LINES.get(name) or FIELDS[name]
    if name in LINES:
        data.write_text("".join(f"{prompt} <EOS> {answer} <EOS>\n" for prompt, answer in pairs), encoding="utf-8")
    else:
        data, options, ending, allow = tmp_path / "rows.csv", ["--prompt-field", "q", "--answer-field", "a"], "", []
        with data.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("q", "a"), *pairs])
    outcome = foretell("train", data, *options, "--training.seed", seed, "--out", "x").succeeds()
    assert "fewer than 50 rows are learned by heart, without dropout" in outcome.err
    test, to_try = outcome.out.splitlines()[-2:]
    assert test.startswith("test        ") and "held-out" not in test
    assert all(line.endswith(" --allow-special") == bool(allow) for line in (test, to_try))
    if allow:
        assert f"{pairs[0][0]} <EOS>" in to_try
    for prompt, answer in pairs:
        told = foretell("generate", "x", f"{prompt}{ending}", *allow, "--json").json
        assert (told["text"].strip(), told["finish_reason"]) == (answer, "end")
