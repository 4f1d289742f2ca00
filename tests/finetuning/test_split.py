"""The choice of held-out examples: groups and equal texts stay together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import DataError
from foretell.finetuning.examples import Example
from foretell.finetuning.request import FinetuneRequest
from foretell.finetuning.settings import Columns, TuningSettings
from foretell.finetuning.split import make_folds, split_off_dev
from foretell.finetuning.task import read_files


def examples(groups: list[str] | None = None, texts: int = 60) -> list[Example]:
    names = groups or [None] * texts
    return [Example((f"text {n % texts}",), ("ab"[n % 3 == 0],), f"row {n}", group) for n, group in enumerate(names)]


def sides(train: list[Example], dev: list[Example]) -> tuple[set[Any], set[Any]]:
    return {each.group or each.texts for each in train}, {each.group or each.texts for each in dev}


def test_a_group_is_never_on_both_sides():
    rows = examples([f"g{n % 7}" for n in range(60)])
    train, dev = split_off_dev(rows, 0.2, 1, by_label=True)
    one, other = sides(train, dev)
    assert not one & other and len(train) + len(dev) == 60 and 8 <= len(dev) <= 18


def test_texts_that_are_equal_but_for_case_and_space_are_never_on_both_sides():
    rows = examples(texts=10)
    rows += [replace(each, texts=(f" {each.texts[0].title()}",)) for each in rows] + [*rows]
    one, other = ({text.strip().lower() for (text,) in side} for side in sides(*split_off_dev(rows, 0.1, 1, True)))
    assert other and not one & other


def test_a_group_that_is_most_of_the_rows_stays_in_training():
    rows = examples(["large"] * 50 + ["one"] * 5 + ["two"] * 5)
    for seed in range(5):
        assert {each.group for each in split_off_dev(rows, 0.1, seed, by_label=True)[1]} < {"one", "two"}
    with pytest.raises(DataError, match="none can be held out"):
        split_off_dev(examples(["all"] * 9), 0.1, 1, by_label=True)


@pytest.mark.parametrize("groups", [None, [f"g{n % 9}" for n in range(60)]])
def test_every_example_is_held_out_once(groups: list[str] | None):
    rows = examples(groups)
    held_out = [[rows[index] for index in fold] for fold in make_folds(rows, 4, 1, by_label=True)]
    folds = [([row for row in rows if row not in dev], dev) for dev in held_out]
    assert Counter(each.where for _, dev in folds for each in dev) == Counter(each.where for each in rows)
    for train, dev in folds:
        one, other = sides(train, dev)
        assert not one & other and len(train) + len(dev) == 60
        assert groups or Counter(each.labels[0] for each in dev) == {"a": 10, "b": 5}


@pytest.fixture
def grouped(tmp_path: Path, reviews) -> Path:
    path = tmp_path / "grouped.csv"
    lines = [f"{text},{label},{text.split()[1]}" for text, label in reviews]
    path.write_text("\n".join(["text,label,thing", *lines]) + "\n")
    return path


def test_the_group_column_is_not_a_text(grouped: Path, tmp_path: Path):
    settings, columns = TuningSettings(group_column="thing"), Columns(texts=())
    files = read_files(grouped, None, settings, {}, columns, 1)
    assert files.settings.columns.texts == ("text",) and files.dev[0].group in ("film", "book", "meal", "play", "song")
    assert files.split_rule.endswith("of seed 1 and thing")
    with pytest.raises(DataError, match="group 'film' is in the training file too"):
        read_files(grouped, grouped, settings, {}, columns, 1)
    with pytest.raises(DataError, match="no column 'things', did you mean 'thing'"):
        read_files(grouped, None, TuningSettings(group_column="things"), {}, columns, 1)


@pytest.mark.parametrize(("rows", "count"), [(("the film was great and long,good", "new,bad"), 1), (("new,bad",), 0)])
def test_held_out_texts_that_are_also_learned_from_are_counted(review_file, tmp_path, caplog, rows, count):
    (tmp_path / "dev.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    read_files(review_file, tmp_path / "dev.csv", TuningSettings(), {}, Columns(texts=()), 1)
    noted = "held out    1 of 2 examples have texts that are also learned from"
    assert caplog.messages == [noted] * count


@pytest.mark.parametrize(
    ("task", "width", "rate"),
    [("classify", 64, 1e-3), ("regress", 64, 5e-4), ("entailment", 64, 5e-4), ("classify", 768, 6.25e-5)],
)
def test_the_learning_rate_is_measured_per_kind(task: str, width: int, rate: float, tmp_path: Path):
    request = FinetuneRequest(out=tmp_path, overrides={"finetuning": {"task": task}})
    assert request.training_config(100, width, None, has_dev=True).learning_rate == rate
