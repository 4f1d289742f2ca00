"""`evaluate` states in every task which of its data the model was trained on or chosen by."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from foretell.cli.main import run as run_command
from foretell.runs.checkpoint import list_checkpoints

QUICK = ["--steps", "2"]
SMALL = ["--size", "toy", "--model.width", "16", "--model.context-length", "64", "--dtype", "float32"]


def words(seed: int, count: int) -> str:
    draws = random.Random(seed)
    return " ".join(draws.choice(("cat", "dog", "sat", "mat", "the", "on", "who", "ran", "log")) for _ in range(count))


def write_texts(path: Path, seed: int) -> None:
    path.write_text("\n\n".join(words(seed + index, 300) for index in range(4)), encoding="utf-8")


def write_lines(path: Path, seed: int) -> None:
    path.write_text("\n".join(words(seed + index, 9) for index in range(60)), encoding="utf-8")


def write_table(path: Path, seed: int) -> None:
    lines = [f"{words(seed + index, 9)},{'yes' if index % 2 else 'no'}" for index in range(30)]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")


def write_chats(path: Path, seed: int) -> None:
    lines = [
        json.dumps({"messages": [{"role": role, "content": words(seed + index, 4)} for role in ("user", "assistant")]})
        for index in range(12)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_pairs(path: Path, seed: int) -> None:
    path.write_text("\n".join(f"{words(seed + n, 9)}\t{words(seed + n, 9)}" for n in range(30)), encoding="utf-8")


def write_series(path: Path, seed: int) -> None:
    draws = random.Random(seed)
    rows = [f"{1980 + month // 12}-{month % 12 + 1:02}-01,{draws.randrange(100)}" for month in range(60)]
    path.write_text("\n".join(["ds,y", *rows]), encoding="utf-8")


TRAIN = {
    "text": (write_texts, "txt", ["train", "DATA", *SMALL, *QUICK], []),
    "rows": (write_lines, "txt", ["train", "DATA", "--rows", *SMALL, *QUICK], ["--rows"]),
    "table": (write_table, "csv", ["finetune", "BASE", "DATA", *QUICK], []),
    "chats": (write_chats, "jsonl", ["finetune", "BASE", "DATA", "--task", "chat", *QUICK], ["--questions", "0"]),
    "pairs": (
        write_pairs,
        "tsv",
        ["train", "DATA", "--task", "translate", "--size", "toy", *QUICK, "--pairs.validation-fraction", "0.3"],
        ["--beam", "1"],
    ),
    "series": (
        write_series,
        "csv",
        ["train", "DATA", "--task", "forecast", "--horizon", "6", *QUICK],
        ["--samples", "2", "--windows", "3"],
    ),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_texts(folder / "texts.txt", 99)
    assert run_command(["train", str(folder / "texts.txt"), *SMALL, *QUICK, "--out", str(folder / "run")]) == 0
    return folder / "run"


def shares(outcome) -> tuple[float, float]:
    told = outcome.succeeds().json
    used = told["models"][0]["used_before"] if "models" in told else told["used_before"]
    return used["trained_on"], used["selected_on"]


@pytest.mark.parametrize("task", TRAIN)
def test_an_evaluation_states_whether_its_data_were_used(foretell, base, task):
    pytest.importorskip("sacrebleu")
    write, suffix, command, options = TRAIN[task]
    used, new = Path(f"used.{suffix}"), Path(f"new.{suffix}")
    write(used, 1)
    write(new, 1000)
    named = {"DATA": str(used), "BASE": str(base)}
    trained = foretell(*(named.get(word, word) for word in command), "--out", "run").succeeds()
    assert "foretell evaluate run " in " ".join(trained.out.split())
    trained_on, selected_on = shares(foretell("evaluate", "run", used, *options, "--json"))
    assert trained_on > 0.5 and selected_on > 0.02 and trained_on + selected_on == pytest.approx(1, abs=0.1)
    assert shares(foretell("evaluate", "run", new, *options, "--json")) == (0, 0)
    stated = " ".join(foretell("evaluate", "run", used, *options).succeeds().out.split())
    assert "already used: " in stated and " chose its checkpoint" in stated and "foretell evaluate RUN " in stated
    assert "already used" not in foretell("evaluate", "run", new, *options).succeeds().out


def test_end_tokens_that_are_read_separate_texts_as_in_training(foretell):
    texts = [words(seed, 12) for seed in range(60)]
    Path("texts.txt").write_text("\n<|endoftext|>\n".join(texts), encoding="utf-8")
    command = ["train", "texts.txt", "--special", "<|endoftext|>", *SMALL, *QUICK, "--out", "run"]
    trained = foretell(*command).succeeds()
    assert all(line.endswith(" --allow-special") for line in trained.out.splitlines()[-2:])
    outcome = foretell("evaluate", "run", "texts.txt", "--allow-special")
    assert "of 60 texts" in outcome.succeeds().out and "already used: " in outcome.out
    assert sum(shares(foretell("evaluate", "run", "texts.txt", "--allow-special", "--json"))) == pytest.approx(1)
    assert "of 1 text\n" in foretell("evaluate", "run", "texts.txt").succeeds().out


def test_later_values_of_a_series_were_not_used_and_the_last_ones_of_its_file_were(foretell):
    write_series(Path("all.csv"), 1)
    header, *rows = Path("all.csv").read_text("utf-8").splitlines()
    for name, part in (("past.csv", rows[:48]), ("later.csv", rows[48:])):
        Path(name).write_text("\n".join([header, *part]), encoding="utf-8")
    foretell("train", "--task", "forecast", "past.csv", "--horizon", "6", *QUICK, "--out", "run").succeeds()
    fast = ["--samples", "2", "--json"]
    assert shares(foretell("evaluate", "run", "past.csv", "--test", "later.csv", *fast)) == (0, 0)
    assert shares(foretell("evaluate", "run", "all.csv", "--horizon", "12", *fast)) == (0, 0)
    assert shares(foretell("evaluate", "run", "past.csv", *fast)) == (0, 1)
    assert shares(foretell("evaluate", "run", "all.csv", "--horizon", "18", *fast)) == pytest.approx((0, 1 / 3))


@pytest.mark.parametrize("kept", [0, 1])
def test_a_tuned_model_has_used_the_data_of_its_start_also_if_it_was_resumed(foretell, base, kept):
    write_table(Path("rows.csv"), 1)
    foretell("finetune", base, "rows.csv", *QUICK, "--checkpoint-every", "1", "--out", "run").succeeds()
    for checkpoint in list_checkpoints(Path("run/checkpoints"))[kept:]:
        shutil.rmtree(checkpoint.directory)
    foretell("finetune", "--out", "run", "--resume").succeeds()
    assert shares(foretell("evaluate", "run", base.parent / "texts.txt", "--task", "text", "--json"))[0] > 0.5
    assert shares(foretell("evaluate", "run", "rows.csv", "--json"))[0] > 0.5


def test_a_model_without_a_record_states_nothing(foretell):
    write_texts(Path("texts.txt"), 1)
    assert foretell("evaluate", "primer", "texts.txt", "--json").succeeds().json["used_before"] is None
    assert "already used" not in foretell("evaluate", "primer", "texts.txt").succeeds().out
