"""The kinds of fine-tuning: the columns they find, the targets they make of labels, and their figures."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from foretell.data.table import Row
from foretell.errors import DataError, UsageError
from foretell.finetuning.choice_kind import ChoiceKind
from foretell.finetuning.examples import Example
from foretell.finetuning.figures import calibration, confusion, label_figures, number_figures
from foretell.finetuning.inputs import EncodedExample
from foretell.finetuning.kind import find_kind, kind_of
from foretell.finetuning.label_kind import ClassifyKind, LabelKind
from foretell.finetuning.number_kind import NumberKind
from foretell.finetuning.settings import Columns, HeadSettings, TuningSettings
from foretell.finetuning.split import split_off_dev

# --- columns: found where their names leave no doubt, and asked for elsewhere -----------------------------------------


def columns(texts: tuple[str, ...] = (), label: str | None = None, choices: tuple[str, ...] = ()) -> Columns:
    return Columns(texts=texts, label=label, choices=choices)


@pytest.mark.parametrize(
    ("available", "task", "given", "expected"),
    [
        (["text", "label"], "classify", columns(), columns(("text",), "label")),
        (["text", "stars", "Label"], "classify", columns(), columns(("text",), "Label")),
        (["Label", "Anything"], "classify", columns(), columns(("Anything",), "Label")),
        (["id", "review", "stars"], "regress", columns(), columns(("review",), "stars")),
        (["a", "b", "c"], "classify", columns(("b",), "c"), columns(("b",), "c")),
        (["premise", "hypothesis", "label"], "entailment", columns(), columns(("premise", "hypothesis"), "label")),
        (["x", "y1", "score"], "similarity", columns(), columns(("x", "y1"), "score")),
        (
            ["question", "choice1", "choice2", "label"],
            "choice",
            columns(),
            columns(("question",), "label", ("choice1", "choice2")),
        ),
        (["", "text", "price"], "regress", columns(), columns(("text",), "price")),
        (["q1", "q2", "is_same"], "similarity", columns(("q1", "q2")), columns(("q1", "q2"), "is_same")),
        (["query", "choices", "gold"], "choice", columns(), columns(("query",), "gold")),
    ],
)
def test_columns_that_leave_no_doubt(available: list[str], task: Any, given: Columns, expected: Columns) -> None:
    assert find_kind(task).reader.find_columns(available, given, "file") == expected


@pytest.mark.parametrize(
    ("available", "task", "given", "message"),
    [
        (["text", "title", "label"], "classify", columns(), "which column holds the text.*text_column.*'title'"),
        (["text", "stars", "class"], "classify", columns(), "which column holds the label.*label_column"),
        (["messages"], "classify", columns(), "its columns are 'messages'; for conversations: task chat"),
        (["text", "label"], "classify", columns(("txt",)), "no column 'txt', did you mean 'text'"),
        (["text", "label"], "classify", columns(("label",), "label"), "named as text and as label"),
        (["a", "b", "c", "label"], "entailment", columns(), "which two columns"),
        (["premise", "label"], "entailment", columns(("premise",)), "reads 2 text columns, not 1"),
        (["question", "label"], "choice", columns(), "which columns hold the answers.*choice_column"),
    ],
)
def test_columns_in_doubt_are_asked_for(available: list[str], task: Any, given: Columns, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_kind(task).reader.find_columns(available, given, "file")


# --- labels as targets -----------------------------------------------------------------------------------------------


def settings_of(task: Any, labels: list[str]) -> HeadSettings:
    settings = HeadSettings(task=task, columns=Columns(texts=("text",), label="label"))
    examples = [Example((f"text {index}",), (label,), "row") for index, label in enumerate(labels)]
    return find_kind(task).fit(settings, examples)


@pytest.mark.parametrize(
    ("task", "labels", "names"),
    [
        ("classify", ["b", "a", "b", "a"], ("a", "b")),
        ("classify", ["10", "2", "10", "2"], ("2", "10")),
        ("similarity", ["0", "1", "1", "0"], ("0", "1")),
        ("similarity", ["0.5", "1", "1", "0"], ()),
        ("regress", ["3", "1", "1", "3"], ()),
    ],
)
def test_labels_and_numbers(task: str, labels: list[str], names: tuple[str, ...]) -> None:
    settings = settings_of(task, labels)
    assert settings.labels == names
    assert isinstance(kind_of(settings), LabelKind if names else NumberKind)


def test_numeric_labels_are_noted_with_the_task_for_numbers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        settings_of("classify", ["1", "2", "3"] * 2)
    assert "regress is the task that predicts a number" in caplog.text


def test_numbers_are_learned_on_their_own_scale() -> None:
    settings = settings_of("regress", ["1", "3"] * 5)
    assert (settings.mean, settings.deviation) == (2, 1)
    assert kind_of(settings).target(Example(("a",), ("5",), "row")) == (3,)


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("classify", ["x"] * 9, "every row has the label 'x'"),
        ("classify", [f"id{n}" for n in range(2000)] * 2, "2,000 different labels"),
        ("classify", ["a", "b", "c", "d"], "4 different labels in 4 rows"),
        ("regress", ["1", "nan"], "'nan' is not a finite number"),
        ("regress", ["1", "1e308"], "1e\\+308 is too large to compute with"),
        ("regress", ["1", "word"], "'word' is not a finite number"),
        ("regress", ["1", "1,234"], "'1,234' can be 1.234 or 1234; give decimal , for 1.234"),
        ("regress", ["1", "0,5"], "'0,5' is not a finite number, such as 0.5 with a point"),
        ("similarity", ["0,5", "1,25"] * 5, "'0,5' is not a finite number, such as 0.5 with a point"),
        ("regress", ["1", "1"], "every number is 1"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(task: str, labels: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        settings_of(task, labels)


def test_labels_that_differ_in_case_alone_are_named(caplog: pytest.LogCaptureFixture) -> None:
    assert settings_of("classify", ["Good", "good", "bad"] * 2).labels == ("Good", "bad", "good")
    assert "'Good' and 'good' differ only in case" in caplog.text
    caplog.clear()
    settings_of("classify", ["good", "bad"] * 2)
    assert caplog.text == ""


def test_a_label_that_was_never_learned_is_refused() -> None:
    with pytest.raises(DataError, match="the label 'c' is not one of a, b"):
        kind_of(settings_of("classify", ["a", "b"] * 2)).target(Example(("text",), ("c",), "row"))


@pytest.mark.parametrize(
    ("labels", "names"),
    [(["0", "1"], ("0", "1")), (["0.0", "1.0"], ("0.0", "1.0")), (["0", "1.0", "1"], ("0", "1"))],
)
def test_whole_numbers_with_and_without_a_fraction_are_one_label(labels: list[str], names: tuple[str, ...]) -> None:
    settings = settings_of("classify", labels * 2)
    assert settings.labels == names
    targets = [kind_of(settings).target(Example(("text",), (label,), "row")) for label in ("0", "0.0", "1", "1.0")]
    assert targets == [(0,), (0,), (1,), (1,)]


def test_true_is_one_label_in_csv_and_json() -> None:
    settings = settings_of("classify", ["false", "true"] * 2)
    targets = [kind_of(settings).target(Example(("text",), (label,), "row")) for label in ("False", "true", "TRUE")]
    assert targets == [(0,), (1,), (1,)]


def test_versions_are_different_labels() -> None:
    settings = settings_of("classify", ["v1", "v1.0", "1.1", "1.10", "1.1.0"] * 2)
    assert len(settings.labels) == 5
    with pytest.raises(DataError, match="the label '1.1.0.0' is not one of"):
        kind_of(settings).target(Example(("text",), ("1.1.0.0",), "row"))


CHOICE = Columns(texts=("q",), label="gold")


@pytest.mark.parametrize("gold", [1, 1.0, "1", "B", "right"])
def test_the_right_answer_has_several_forms(gold: Any) -> None:
    row = Row("row 1", {"q": "why", "choices": ["wrong", "right"], "gold": gold})
    assert ChoiceKind.reader.read(row, CHOICE) == Example(("why", "wrong", "right"), ("1",), "row 1")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"text": " ", "label": "a"}, "row 1: the text in column 'text' is empty"),
        ({"text": "a", "label": ""}, "row 1: the label in column 'label' is empty"),
        ({"text": "a", "label": None}, "row 1: the label in column 'label' is empty"),
        ({"text": "a", "label": ["x", "y"]}, "row 1: .label. holds several labels; train a model for each"),
        ({"text": 7, "label": "a"}, "row 1: column 'text' is '7', not a text"),
        ({"label": "a"}, "row 1: column 'text' is missing"),
    ],
)
def test_rows_without_text_or_label_are_refused(cells: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ClassifyKind.reader.read(Row("row 1", cells), Columns(texts=("text",), label="label"))


def test_the_split_keeps_shares_and_ignores_the_order_of_rows() -> None:
    examples = [Example((f"text {index}",), ("ab"[index % 4 == 0],), f"row {index}") for index in range(80)]
    train, dev = split_off_dev(examples, 0.1, 1, by_label=True)
    assert sorted(example.labels[0] for example in dev) == ["a"] * 6 + ["b"] * 2
    assert {*train, *dev} == {*examples}
    assert (
        {*split_off_dev(examples[::-1], 0.1, 1, by_label=True)[1]}
        == {*dev}
        != {*split_off_dev(examples, 0.1, 2, by_label=True)[1]}
    )
    assert len(train) + len(dev) == 80


def test_class_weights_have_the_mean_one() -> None:
    examples = [EncodedExample(([1],), (target,)) for target in (0, 0, 0, 1)]
    kind = kind_of(settings_of("classify", ["a", "b"] * 2))
    assert kind.weights(examples, "balanced").tolist() == [4 / 6, 4 / 6, 4 / 6, 2]
    assert kind.weights(examples, "none").tolist() == [1] * 4


# --- figures, by scikit-learn's definitions worked out by hand --------------------------------------------------------

LOGITS = np.log(np.array([[0.92, 0.08], [0.61, 0.39], [0.17, 0.83], [0.74, 0.26]]))
TARGETS = np.array([0, 0, 1, 1])


def test_accuracy_f1_and_confusion() -> None:
    figures = label_figures(LOGITS, TARGETS)
    assert figures["accuracy"] == 0.75
    assert figures["loss"] == pytest.approx(-np.log([0.92, 0.61, 0.83, 0.26]).mean())
    assert figures["macro_f1"] == pytest.approx((0.8 + 2 / 3) / 2)  # precision 2/3, recall 1; precision 1, recall 1/2
    assert confusion(LOGITS.argmax(1), TARGETS, 2).tolist() == [[2, 0], [1, 1]]


def test_the_calibration_error_is_the_mean_distance() -> None:
    report = calibration(LOGITS, TARGETS)
    assert report["expected_calibration_error"] == pytest.approx((0.08 + 0.39 + 0.17 + 0.74) / 4)
    assert sum(each["examples"] for each in report["bins"]) == 4


def test_numbers() -> None:
    figures = number_figures(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    assert figures == {"rmse": pytest.approx((1 / 3) ** 0.5), "mae": pytest.approx(1 / 3), "r2": pytest.approx(0.5)}


def test_baselines_and_the_report() -> None:
    columns, rows, targets = Columns(texts=("text",)), list(LOGITS), [(0,), (0,), (1,), (1,)]
    labels = ClassifyKind(HeadSettings(task="classify", labels=("x", "y"), columns=columns))
    baseline = labels.baseline([(1,), (1,), (0,)], targets)
    assert (baseline["label"], baseline["accuracy"]) == ("y", 0.5)
    assert labels.report(rows, targets)["by_label"]["y"]["recall"] == 0.5
    number = NumberKind(HeadSettings(task="regress", mean=10, deviation=2, columns=columns))
    assert number.report([np.array([1.0]), np.array([0.0])], [(1.0,), (-1.0,)])["mae"] == 1.0  # 0 and 2
    assert number.baseline([(1.0,), (-1.0,)], [(1.0,), (-1.0,)])["r2"] == 0


@pytest.mark.parametrize(
    ("task", "tuning", "message"),
    [
        ("regress", {"class_weights": "balanced"}, "class_weights balanced needs labels, which task regress lacks"),
        ("choice", {"class_weights": "balanced"}, "needs labels"),
        ("regress", {"best_by": "accuracy"}, "task regress has no best_by accuracy; give loss"),
    ],
)
def test_settings_without_a_meaning_for_the_task_are_refused(task: Any, tuning: dict[str, Any], message: str) -> None:
    kind = kind_of(HeadSettings(task=task, columns=Columns(texts=())))
    with pytest.raises(UsageError, match=message):
        kind.check(TuningSettings(task=task, **tuning))


# --- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n", "a category of complaints about deliveries"])
@pytest.mark.parametrize("count", [3, 12, 20, 50])
def test_labels_and_counts_of_a_confusion_do_not_overlap(count: int, name: str) -> None:
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    figure = figure_class(figsize=(10, 4.6), dpi=150, layout="constrained")
    labels = [f"{name} {index}" for index in range(count)]
    kind = ClassifyKind(HeadSettings(task="classify", labels=tuple(labels), columns=Columns(texts=("text",))))
    targets = [(float(index % count),) for index in range(8 * count)]
    outputs = [np.eye(count)[int(index)] for (index,) in targets]
    report = kind.report(outputs, targets) | {"confusion": np.full((count, count), 10_000).tolist()}
    kind.draw(figure, report, outputs, targets)
    figure.draw_without_rendering()
    confusion = figure.axes[0]
    rows, columns = confusion.get_yticklabels(), confusion.get_xticklabels()
    if count <= 20:
        assert len({row.get_text() for row in rows}) == count
        boxes = [text.get_window_extent() for text in confusion.texts[:count]]  # of the first row
        assert all(one.x1 <= two.x0 for one, two in pairwise(boxes))
    if not columns[0].get_rotation():
        boxes = [column.get_window_extent() for column in columns]
        assert all(one.x1 <= two.x0 for one, two in pairwise(boxes))
    else:
        assert name == "n"
    boxes = [row.get_window_extent() for row in rows]
    assert all(one.y0 >= two.y1 - 1 for one, two in pairwise(boxes))
