"""Labels of any form become targets; the held-out examples do not depend on the order of the rows."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.data.table import Row
from foretell.errors import DataError
from foretell.finetuning.dev_split import split_off_dev
from foretell.finetuning.examples import Example, read_example
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.finetuning.targets import class_weights, target_of, with_targets


def settings_of(task: Any, labels: list[str]) -> HeadSettings:
    settings = HeadSettings(task=task, columns=Columns(texts=("text",), label="label"))
    return with_targets(settings, [Example((f"text {index}",), label, "row") for index, label in enumerate(labels)])


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
    assert settings.is_number == (not names)


def test_numbers_are_learned_on_their_own_scale() -> None:
    settings = settings_of("regress", ["1", "3"] * 5)
    assert (settings.mean, settings.deviation) == (2, 1)
    assert target_of(Example(("a",), "5", "row"), settings) == 3


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        ("classify", ["x"] * 9, "every row has the label 'x'"),
        ("classify", [f"id{n}" for n in range(2000)] * 2, "2,000 different labels"),
        ("classify", ["a", "b", "c", "d"], "4 different labels in 4 rows"),
        ("regress", ["1", "nan"], "'nan' is not a finite number"),
        ("regress", ["1", "1e308"], "1e\\+308 is too large to compute with"),
        ("regress", ["1", "word"], "'word' is not a finite number"),
        ("regress", ["1", "1"], "every number is 1"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(task: str, labels: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        settings_of(task, labels)


def test_a_label_that_was_never_learned_is_refused() -> None:
    with pytest.raises(DataError, match="the label 'c' is not one of a, b"):
        target_of(Example(("text",), "c", "row"), settings_of("classify", ["a", "b"] * 2))


CHOICE = Columns(texts=("q",), label="gold")


@pytest.mark.parametrize("gold", [1, "1", "B", "right"])
def test_the_right_answer_has_several_forms(gold: Any) -> None:
    row = Row("row 1", {"q": "why", "choices": ["wrong", "right"], "gold": gold})
    assert read_example(row, CHOICE, "choice") == Example(("why", "wrong", "right"), "1", "row 1")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"text": " ", "label": "a"}, "row 1: the text in column 'text' is empty"),
        ({"text": "a", "label": ""}, "row 1: the label in column 'label' is empty"),
        ({"text": "a", "label": None}, "row 1: the label in column 'label' is empty"),
        ({"text": 7, "label": "a"}, "row 1: column 'text' is '7', not a text"),
        ({"label": "a"}, "row 1: column 'text' is missing"),
    ],
)
def test_rows_without_text_or_label_are_refused(cells: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_example(Row("row 1", cells), Columns(texts=("text",), label="label"), "classify")


def test_the_split_keeps_shares_and_ignores_the_order_of_rows() -> None:
    examples = [Example((f"text {index}",), "ab"[index % 4 == 0], f"row {index}") for index in range(80)]
    train, dev = split_off_dev(examples, 0.1, 1, by_label=True)
    assert sorted(example.label for example in dev) == ["a"] * 6 + ["b"] * 2
    assert {*train, *dev} == {*examples}
    assert (
        {*split_off_dev(examples[::-1], 0.1, 1, by_label=True)[1]}
        == {*dev}
        != {*split_off_dev(examples, 0.1, 2, by_label=True)[1]}
    )
    assert len(train) + len(dev) == 80


def test_class_weights_have_the_mean_one() -> None:
    targets = [0, 0, 0, 1]
    weights = class_weights(targets, 2)
    assert weights == [4 / 6, 2]
    assert sum(weights[target] for target in targets) == pytest.approx(4)
