"""Labelled rows from a file, from a DataFrame and from a list of dicts are the same; what they lack is refused once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretell
from foretell.data.memory import as_source
from foretell.data.table import Row, open_table
from foretell.errors import DataError, UsageError
from foretell.finetuning.examples import columns_by_cells
from foretell.finetuning.head import head_of
from foretell.finetuning.kind import find_kind
from foretell.finetuning.report import REPORT, evaluate_task
from foretell.finetuning.settings import Columns, make_columns
from foretell.loading import load
from foretell.storage.files import read_json

SHORT: dict[str, Any] = {"training": {"steps": 2}, "device": "cpu", "progress": False}
REFUSED = "columns is for .csv"


def columns_of(reviews: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {"text": [text for text, _ in reviews], "label": [label for _, label in reviews]}


def rows_of(kind: str, reviews: list[tuple[str, str]]) -> Any:
    if kind == "dicts":
        return [{"text": text, "label": label} for text, label in reviews]
    return pytest.importorskip(kind, reason=f"{kind} is not installed").DataFrame(columns_of(reviews))


@pytest.mark.parametrize("kind", ["dicts", "pandas", "polars"])
def test_rows_in_memory_are_learned_and_measured_as_the_rows_of_a_file(
    kind: str, base: Path, review_file: Path, reviews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_of(kind, reviews)
    model = foretell.finetune(base, rows, dev=rows, **SHORT)
    run = next(Path("runs").iterdir())
    foretell.finetune(base, rows, run, dev=rows, **SHORT, resume=True)
    file = foretell.finetune(base, review_file, "of-file", dev=review_file, **SHORT)
    assert read_json(run / REPORT)["dev"] == read_json(Path("of-file") / REPORT)["dev"]
    assert evaluate_task(model, rows, limit=9).to_json() == evaluate_task(file, review_file, limit=9).to_json()
    with pytest.raises(DataError, match=REFUSED):
        evaluate_task(model, rows, columns=("text", "label"))


def test_a_model_without_a_head_is_not_measured_on_rows(base: Path, review_file: Path) -> None:
    with pytest.raises(UsageError, match="has no task head"):
        foretell.evaluate_task(load(base), review_file)


def test_missing_cells_of_a_frame_are_empty() -> None:
    pandas = pytest.importorskip("pandas")
    table = as_source(pandas.DataFrame({"text": ["a", None, "c"], "label": [1.0, 2.0, float("nan")]}))
    with pytest.raises(DataError, match=r"the frame, row 3: the label in column 'label' is empty"):
        find_kind("classify").reader.read(list(open_table(table))[2], Columns(texts=("text",), label="label"))


def read(path: Path, content: str, task: str = "classify", **given: Any) -> list[Any]:
    path.write_text(content, encoding="utf-8")
    kind, table = find_kind(task), open_table(path)
    columns = kind.reader.find_columns(table.first_columns(), make_columns((), None, (), **given), str(table))
    return kind.reader.read_all(table, columns)


def test_rows_with_empty_cells_are_refused_together(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    with pytest.raises(DataError, match=r"line 3: the text in column 'text' is empty; fill it or remove the row$"):
        read(path, "text,label\na,x\n,y\n")
    with pytest.raises(DataError) as raised:
        read(path, "text,label\n" + "a,x\n,y\nb,\n" * 4)
    begin = f"8 rows have empty cells: {path}, line 3: the text in column 'text' is empty; {path}, line 4: the label in"
    assert str(raised.value).startswith(begin) and str(raised.value).endswith(
        "line 6: the text in column 'text' is empty ..."
    )


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_of_pandas_is_not_a_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    assert read(path, f"{name},remark,label\n0,a,x\nb7,b,y\n")[1].texts == ("b",)
    assert read(path, f"{name},one,two,label\n0,a,b,x\n1,c,d,y\n", "entailment")[1].texts == ("c", "d")
    with pytest.raises(DataError, match="which column holds the text"):
        read(path, f"{name},label\n0,x\na text,y\n")


NEWS = {"id": str, "Nachricht": "Der Kurs {} steigt".format, "Tag": lambda n: "1.2.", "Ton": lambda n: "ab"[n % 2]}


@pytest.mark.parametrize(
    ("more", "label", "given", "words"),
    [
        ({}, "Ton", {}, ""),
        ({"Quelle": lambda n: "xyz"[n % 3]}, None, {}, "which column holds the label"),
        ({"Quelle": lambda n: str(n // 2)}, None, {}, "which column holds the label"),  # may be the label too
        ({"Titel": "Zur Lage {} heute".format}, None, {"label": "Ton"}, "which column holds the text"),
    ],
)
def test_columns_without_common_names_are_found_by_their_cells(more, label, given, words) -> None:
    rows = [Row("", {name: cell(n) for name, cell in {**NEWS, **more}.items()}) for n in range(60)]
    available, guessed = list(rows[0].cells), columns_by_cells(rows)
    asked = Columns(texts=(), **given)
    assert guessed.label in (label, "Ton")
    if words:
        with pytest.raises(DataError, match=words):
            find_kind("classify").reader.find_columns(available, asked, "x.csv", guessed)
        return
    found = find_kind("classify").reader.find_columns(available, asked, "x.csv", guessed)
    assert (found.texts, found.label) == (("Nachricht",), "Ton")


def test_a_column_of_numbers_is_not_found_by_its_cells(base: Path, reviews, tmp_path: Path) -> None:
    rows = [{"Nachricht": text, "Tag": "1.2.", "Ton": str(int(label == "good"))} for text, label in reviews]
    assert foretell.finetune(base, rows, tmp_path / "labels", **SHORT)
    with pytest.raises(DataError, match="which column holds the label"):
        foretell.finetune(base, rows, tmp_path / "numbers", task="regress", **SHORT)


def test_columns_for_other_things_and_groups_are_not_labels() -> None:
    rows = [Row("", {"body": f"Der Kurs {n} steigt", "split": "ab"[n % 2], "who": "xy"[n % 2]}) for n in range(60)]
    assert columns_by_cells(rows, without="split").label == "who"
    assert columns_by_cells(rows, without="who").label is None
    with pytest.raises(DataError, match="which column holds the label"):
        find_kind("classify").reader.find_columns(["text", "id"], Columns(texts=()), "x.csv")


HEADERS: dict[str, tuple[str, str, str, int]] = {  # a task, the first line, the second label, the number of warnings
    "a label": ("classify", "It was good,pos", "pos", 1),
    "a number as a label": ("classify", "It was good,5", "5", 1),
    "a number": ("regress", "It was good,4.5", "3", 1),
    "tags": ("tag", "It was,O B-X", "O B-X", 1),
    "another word": ("classify", "text,label", "pos", 0),
    "a word above numbers": ("regress", "text,stars", "3", 0),
    "a number above words": ("classify", "text,2024", "pos", 0),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_with_a_label_may_be_a_row(header: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task, first, label, count = HEADERS[header]
    (tmp_path / "rows.csv").write_text(f"{first}\nthat is,{label}\n", encoding="utf-8")
    for columns in ((), ("text", "label"))[: 1 + count]:  # named columns have no header
        table = open_table(tmp_path / "rows.csv", columns=columns)
        texts, name = table.first_columns()
        find_kind(task).reader.read_all(table, Columns(texts=(texts,), label=name))
    reported = f"the first line is read as the names of the columns, but {first.partition(',')[2]!r} may be a label"
    assert [message.startswith(reported) for message in caplog.messages] == [True] * count
    assert all("--columns text,label" in message for message in caplog.messages)


@pytest.mark.parametrize("task", ["regress", "similarity"])
def test_decimal_commas_are_read_where_they_are_named(task: str, tmp_path: Path) -> None:
    path, texts = tmp_path / "x.csv", "a;b" if task == "similarity" else "a"
    header = "text1;text2;label" if task == "similarity" else "text;label"
    content = f"{header}\n{texts};3,5\n{texts};-1,25e1\n{texts};1.604,5\n"
    assert [each.labels for each in read(path, content, task, decimal=",")] == [("3.5",), ("-1.25e1",), ("1604.5",)]
    assert read(path, content, task)[0].labels == ("3,5",)  # which is refused with the option's name


def test_a_model_reads_the_decimal_commas_that_it_was_trained_on(base: Path, reviews, tmp_path: Path) -> None:
    rows = [{"text": text, "label": "1,5" if label == "good" else "-0,5"} for text, label in reviews]
    with pytest.raises(DataError, match="'1,5' is not a finite number, such as 0.5 with a point, or give decimal ,"):
        foretell.finetune(base, rows, tmp_path / "no", task="regress", **SHORT)
    model = foretell.finetune(base, rows, tmp_path / "run", task="regress", decimal=",", **SHORT)
    assert head_of(model).settings.mean == pytest.approx(0.5, abs=0.2)
    assert evaluate_task(model, rows).examples == 60
    predictions = head_of(model).task.predictions
    assert predictions.table_cells(predictions.make(np.array([0.123]), ["a"]))["predicted_value"].count(",") == 1
    for row in rows[1:]:
        row["label"] = "817"
    rows[0]["label"] = "1.106"
    with pytest.raises(DataError, match="item 1: '1.106' can be 1.106 or 1106; give decimal"):
        foretell.finetune(base, rows, tmp_path / "unclear", task="regress", **SHORT)
    as_numbers = [{**row, "label": float(row["label"])} for row in rows]
    foretell.finetune(base, as_numbers, tmp_path / "clear", task="regress", **SHORT)
