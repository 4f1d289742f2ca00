"""`foretell train --show-batch`: the rows of a step of training, with the loss of each token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.data.loader import Loader

TOY = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--training.batch-size", "4"]
EXACT = ["--model.dropout", "0", "--dtype", "float32", "--checkpoint-every", "1", "--training.keep-checkpoints", "9"]
STEPS = 4


@pytest.fixture
def seen(foretell, corpus, monkeypatch) -> list[list[list[int]]]:
    """The rows (B, T + 1) of every step of a run `x` that was just trained."""
    batches: dict[int, list[list[int]]] = {}
    original = Loader.batch

    def batch(self: Loader, step: int):
        found = original(self, step)
        batches[step] = [
            [*ids, targets[-1]] for ids, targets in zip(found.ids.tolist(), found.targets.tolist(), strict=True)
        ]
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Loader, "batch", batch)
        options = [*TOY, *EXACT, "--kind", "bytes", "--steps", str(STEPS), "--training.log-every", "1"]
        assert foretell("train", corpus, *options, "--out", "x").code == 0
    return [batches[step] for step in range(STEPS)]


def test_the_rows_are_those_of_the_training(foretell, seen):
    for step in range(1, STEPS + 1):
        told = foretell("train", "--show-batch", step, "--out", "x", "--json").json
        assert told["step"] == step
        assert [[token["id"] for token in row["tokens"]] for row in told["rows"]] == seen[step - 1]


def test_with_the_weights_of_the_step_the_loss_is_the_logged_one(foretell, seen):
    for step in range(2, STEPS + 1):
        told = foretell("train", "--show-batch", step, "--out", f"x@step-{step - 1:06d}", "--json").json
        assert told["loss"] == pytest.approx(told["logged_loss"], rel=1e-6)
        losses = [token["loss"] for row in told["rows"] for token in row["tokens"] if token["loss"] is not None]
        assert sum(losses) / len(losses) == pytest.approx(told["loss"], rel=1e-6)
    other = foretell("train", "--show-batch", 2, "--out", "x@step-000003", "--json").json
    assert other["loss"] != pytest.approx(other["logged_loss"], rel=1e-6)


def test_a_row_has_its_position_in_the_text(foretell, seen, corpus):
    told = foretell("train", "--show-batch", 1, "--out", "x", "--json").json
    text = corpus.read_text()
    for row in told["rows"]:
        shown = "".join(token["text"] for token in row["tokens"])
        assert text[row["start"] : row["start"] + 33] == shown  # tokens are bytes here
        assert row["tokens"][0]["loss"] is None


def test_every_token_is_shown_with_its_loss_below_it(foretell, seen):
    told = foretell("train", "--show-batch", 2, "--out", "x", "--json").json
    outcome = foretell("train", "--show-batch", 2, "--out", "x")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("row 0: tokens ")
    tokens = told["rows"][0]["tokens"]
    shown = lines[2].split()
    assert shown == ["-", *(f"{token['loss']:.2f}" for token in tokens[1 : len(shown)])]
    assert lines[1].split()[0] == tokens[0]["text"].replace(" ", "·")
    assert lines[-1].startswith(f"step 2: loss {told['loss']:.3f}; {told['logged_loss']:.3f} in training")
    assert all(len(line) <= 80 for line in lines)


def test_documents_that_do_not_see_each_other_are_separated(foretell, tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / "data" / f"{number}.txt").write_text(f"Story {number}.")
    options = [*TOY, "--kind", "bytes", "--steps", "1", "--data.document-mask", "true", "--out", "x"]
    assert foretell("train", "data", *options).code == 0
    told = foretell("train", "--show-batch", 1, "--out", "x", "--json").json
    for row in told["rows"]:
        numbers = [token["document"] for token in row["tokens"]]
        assert numbers == sorted(numbers)
        assert numbers[-1] >= 2
        begins = [place for place in range(1, 33) if numbers[place] != numbers[place - 1]]
        without = [place for place, token in enumerate(row["tokens"]) if token["loss"] is None]
        assert without == [0, *begins]
    assert "-- another document" in foretell("train", "--show-batch", 1, "--out", "x").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--show-batch", "1"], ["--out"]),
        (["--show-batch", "0", "--out", "RUN"], ["steps 1 to 12", "not 0"]),
        (["--show-batch", "13", "--out", "RUN"], ["steps 1 to 12", "not 13"]),
        (["--show-batch", "1", "--out", "nonesuch"], ["nonesuch"]),
        (["--show-batch", "1", "--out", "RUN@step-999"], ["999"]),
        (["--show-batch", "1", "--out", "RUN", "--steps", "3"], ["--show-batch", "trains nothing"]),
        (["--show-batch", "1", "--out", "RUN", "--resume", "auto"], ["--show-batch", "trains nothing"]),
        (["--show-batch", "1", "--out", "RUN", "--model.width", "8"], ["--show-batch", "trains nothing"]),
        (["--json"], ["--show-batch", "metrics.jsonl"]),
        (["--report", "wandb"], ["wandb", "tensorboard"]),
    ],
)
def test_a_batch_that_cannot_be_shown_is_refused_in_one_line(foretell, trained, arguments, words):
    outcome = foretell("train", *(argument.replace("RUN", str(trained)) for argument in arguments))
    assert outcome.code in (1, 2)
    assert outcome.out == ""
    assert all(word in outcome.last_line for word in words), outcome.last_line
    assert not Path("runs").exists()


def test_a_run_can_be_named_without_its_folder(foretell, seen):
    Path("runs").mkdir()
    Path("x").rename("runs/x")
    told = foretell("train", "--show-batch", 1, "--out", "x@last", "--json")
    assert json.loads(told.out)["step"] == 1
