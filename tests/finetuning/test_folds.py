"""Groups stay together, and a cross-validation: every example is predicted by a model that was trained without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import DataError, Interrupted, UsageError
from foretell.files import read_json
from foretell.finetuning.finetune import FoldTraining
from foretell.finetuning.kind import Example
from foretell.finetuning.report import REPORT, FinetuneReport
from foretell.finetuning.request import FinetuneRequest
from foretell.finetuning.settings import Columns, TuningSettings
from foretell.finetuning.split import split_folds, split_off_dev
from foretell.finetuning.task import read_files
from foretell.loading import load
from foretell.runs.run import FOLDS
from foretell.session.session import Session


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
    folds = split_folds(rows, 4, 1, by_label=True)
    assert Counter(each.where for _, dev in folds for each in dev) == Counter(each.where for each in rows)
    for train, dev in folds:
        one, other = sides(train, dev)
        assert not one & other and len(train) + len(dev) == 60
        assert groups or Counter(each.labels[0] for each in dev) == {"a": 10, "b": 5}
    with pytest.raises(UsageError, match="^folds 61 needs 61 different texts or groups"):
        split_folds(examples(), 61, 1, by_label=True)


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


def test_folds_are_trained_and_reported_before_the_model_that_has_all_examples(
    grouped: Path, start, tmp_path: Path, tiny_request, finetune, monkeypatch
):
    settings = {"finetuning": {"folds": 3, "group_column": "thing"}, "training": {"steps": 20, "checkpoint_every": 10}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    session = finetune(tiny_request(grouped, whole, overrides=settings, start=start))
    assert (len(session.task.data.train), len(session.task.data.dev)) == (60, 0)
    report = read_json(whole / REPORT)
    accuracies = [figures["accuracy"] for figures in report["folds"]]
    assert report["dev"]["accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert sum(map(sum, report["dev"]["confusion"])) == report["examples"]["dev"] == 60
    shown = " ".join(str(FinetuneReport(report)).split())
    assert "mean of 3 folds" in shown and "standard error" in shown and "TF-IDF" in shown
    assert not (whole / FOLDS).exists()
    assert load(whole).parts

    def stop(self: FoldTraining, fold: Session[Any]) -> None:
        if fold.run.name == "2":
            raise Interrupted("stopped after step 3", 143)

    with monkeypatch.context() as patch:
        patch.setattr(FoldTraining, "opened", stop)
        with pytest.raises(Interrupted, match=r"fold 2 of 3; resume with: .*--out \S*cut --resume auto"):
            finetune(tiny_request(grouped, cut, overrides=settings, start=start))
    finetune(FinetuneRequest(out=cut), resume=True)
    again = read_json(cut / REPORT)
    assert {**again, "minutes": 0} == {**report, "minutes": 0}
    finetune(FinetuneRequest(out=cut), resume=True)  # the folds are not trained again
    assert read_json(cut / REPORT) == again


@pytest.mark.parametrize(
    ("task", "width", "rate"),
    [("classify", 64, 1e-3), ("regress", 64, 5e-4), ("entailment", 64, 5e-4), ("classify", 768, 6.25e-5)],
)
def test_the_learning_rate_is_measured_per_kind(task: str, width: int, rate: float, tmp_path: Path):
    request = FinetuneRequest(out=tmp_path, overrides={"finetuning": {"task": task}})
    assert request.training_config(100, width, None, has_dev=True).learning_rate == rate


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dev": Path("dev.csv")}, "omit dev"),
        ({"minutes": 1.0, "training": {}}, "folds trains 4 models; give epochs or steps"),
        ({"finetuning": {"folds": 3, "best_by": "accuracy"}}, "omit best_by"),
    ],
)
def test_options_that_need_held_out_examples_are_refused(changes: dict[str, Any], message: str, tmp_path: Path):
    sections = {"finetuning": changes.pop("finetuning", {"folds": 3}), "training": changes.pop("training", {})}
    request = FinetuneRequest(data=tmp_path / "x.csv", out=tmp_path / "run", overrides=sections, **changes)
    with pytest.raises(UsageError, match=message):
        request.tuning()
