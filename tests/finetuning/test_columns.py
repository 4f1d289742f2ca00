"""Columns are found where their names leave no doubt, and asked for elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.errors import DataError
from foretell.finetuning.columns import find_columns
from foretell.finetuning.settings import Columns


def columns(texts: tuple[str, ...] = (), label: str | None = None, choices: tuple[str, ...] = ()) -> Columns:
    return Columns(texts=texts, label=label, choices=choices)


@pytest.mark.parametrize(
    ("available", "task", "given", "expected"),
    [
        (["text", "label"], "classify", columns(), columns(("text",), "label")),
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
        (["query", "choices", "gold"], "choice", columns(), columns(("query",), "gold")),
    ],
)
def test_columns_that_leave_no_doubt(available: list[str], task: Any, given: Columns, expected: Columns) -> None:
    assert find_columns(available, task, given, "file") == expected


@pytest.mark.parametrize(
    ("available", "task", "given", "message"),
    [
        (["text", "title", "label"], "classify", columns(), "which column holds the text.*--text-column.*'title'"),
        (["text", "label", "class"], "classify", columns(), "which column holds the label.*--label-column"),
        (["text", "label"], "classify", columns(("txt",)), "no column 'txt', did you mean 'text'"),
        (["text", "label"], "classify", columns(("label",), "label"), "named as text and as label"),
        (["a", "b", "c", "label"], "entailment", columns(), "which two columns"),
        (["premise", "label"], "entailment", columns(("premise",)), "reads 2 text columns, not 1"),
        (["question", "label"], "choice", columns(), "which columns hold the answers.*--choice-column"),
    ],
)
def test_columns_in_doubt_are_asked_for(available: list[str], task: Any, given: Columns, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_columns(available, task, given, "file")
