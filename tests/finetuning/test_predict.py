"""Predictions of a tuned model: for texts and for files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from foretell.data.table import open_table, text_line
from foretell.errors import DataError, OutputError, UsageError
from foretell.evaluation.perplexity import TextEvaluation
from foretell.finetuning.head import head_of, with_truncation
from foretell.finetuning.inputs import EncodedExample, make_task_batch
from foretell.finetuning.label_kind import LabelPrediction
from foretell.finetuning.predict import as_task_input, predict, predict_file, write_predictions
from foretell.finetuning.report import evaluate_task
from foretell.finetuning.settings import Columns
from foretell.inference.query import evaluate
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.typesetting.text import document_text

NONE = Columns(texts=())


@pytest.fixture(scope="module")
def model(tuned: Path) -> LanguageModel:
    return load(tuned)


def test_batched_predictions_are_those_of_each_text_alone(model: LanguageModel) -> None:
    texts = ["the film was great", "the book was dull and long", "play"]
    together = predict(model, texts)
    for text, prediction in zip(texts, together, strict=True):
        assert predict(model, text)[0].probabilities == pytest.approx(prediction.probabilities, rel=1e-4)


@pytest.mark.parametrize("second", [float("nan"), None, ("play", 3), {"text": "play"}])
def test_what_is_not_a_string_is_refused_with_its_index(model: LanguageModel, second) -> None:
    with pytest.raises(UsageError, match=r"^texts\[1\] has (nan|None|3|{'text': 'play'}), which is not a string$"):
        predict(model, ["play", second])


def test_a_frame_is_refused_because_its_items_are_the_names_of_its_columns(model: LanguageModel) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"text": ["play"]})
    with pytest.raises(UsageError, match=r"not DataFrame; give a column, such as frame\['text'\]"):
        predict(model, frame)
    assert predict(model, frame["text"])[0].label == predict(model, "play")[0].label


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_file_of_predictions_keeps_the_columns(
    model: LanguageModel, review_file: Path, tmp_path: Path, suffix
) -> None:
    out = tmp_path / f"out{suffix}"
    table = open_table(review_file)
    rows = predict_file(model, table, NONE)
    assert write_predictions(out, rows, head_of(model).task, lambda count: None, table) == 60
    content = out.read_text(encoding="utf-8").splitlines()
    if suffix == ".jsonl":
        first = json.loads(content[0])
        assert (first["text"], first["label"]) == ("the film was great and long", "good")
        assert first["probabilities"].keys() == {"good", "bad"}
    else:
        first = next(csv.DictReader(content, delimiter="\t" if suffix == ".tsv" else ","))
        assert list(first) == ["text", "label", "predicted_label", "probability_bad", "probability_good"]
    assert first["predicted_label"] == "good"
    with pytest.raises(OutputError, match="exists"):
        write_predictions(out, [], head_of(model).task, lambda count: None, table)


@pytest.mark.parametrize(("suffix", "written"), [(".csv", ";"), (".tsv", "\t")])
def test_predictions_have_the_separator_of_the_file(model: LanguageModel, tmp_path: Path, suffix, written) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / f"out{suffix}"
    path.write_text("text;n\nthe film;1\n", encoding="utf-8")
    table = open_table(path)
    write_predictions(out, predict_file(model, table, NONE), head_of(model).task, lambda count: None, table)
    assert out.read_text(encoding="utf-8").startswith(f"text{written}n{written}predicted_label{written}")


@pytest.mark.parametrize(("suffix", "mark"), [(".csv", b"\xef\xbb\xbf"), (".jsonl", b"")])
def test_predictions_have_the_byte_order_mark_and_line_ends_of_the_file(
    model: LanguageModel, tmp_path: Path, suffix: str, mark: bytes
) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / f"out{suffix}"
    path.write_bytes(b'\xef\xbb\xbftext;n\r\nthe film;"a\nb"\r\n')
    table = open_table(path)
    rows = predict_file(model, table, NONE)
    write_predictions(out, rows, head_of(model).task, lambda count: None, table)
    content = out.read_bytes()
    assert content.startswith(mark) and content.count(b"\xef\xbb\xbf") == len(mark) // 3
    assert content.count(b"\r\n") == (2 if mark else 0)
    path.write_bytes(b"text;n\nthe film;1\n")
    assert open_table(path).form == ("utf-8", "\n")


@pytest.mark.parametrize(("suffix", "column"), [(".csv", "probability_good"), (".jsonl", "probabilities")])
def test_no_column_of_the_file_is_overwritten(model: LanguageModel, tmp_path: Path, suffix: str, column: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text,{column}\nthe film,mine\n", encoding="utf-8")
    rows = predict_file(model, open_table(path), NONE)
    with pytest.raises(DataError, match=f"has a column '{column}' already"):
        write_predictions(tmp_path / f"out{suffix}", rows, head_of(model).task, lambda count: None, open_table(path))
    assert not (tmp_path / f"out{suffix}").exists()


def test_rows_are_read_as_they_are_needed(model: LanguageModel, review_file: Path) -> None:
    rows = predict_file(model, open_table(review_file), NONE)
    assert next(iter(rows))[0].where.endswith("line 2")


def test_an_empty_text_has_no_prediction_and_is_counted(model: LanguageModel, tmp_path: Path, caplog) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,n\nthe film,1\n ,2\nthe play,3\n", encoding="utf-8")
    predictions = [prediction for _, prediction in predict_file(model, open_table(path), NONE)]
    assert [prediction is None for prediction in predictions] == [False, True, False]
    assert "rows without a text, which have no prediction: 1" in caplog.text
    assert "line 3" in caplog.text


def test_each_line_of_a_text_file_has_its_prediction(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(b"\nthe film\r\n\nthe play\n")
    predictions = [prediction for _, prediction in predict_file(model, open_table(tmp_path / "rows.txt"), NONE)]
    assert [prediction is None for prediction in predictions] == [True, False, True, False]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_carriage_return_in_a_text_does_not_end_its_row(model: LanguageModel, tmp_path: Path, suffix: str) -> None:
    (tmp_path / "rows.txt").write_bytes(b"the film\rwas long\nthe play\n")
    table, out = open_table(tmp_path / "rows.txt"), tmp_path / f"out{suffix}"
    write_predictions(out, predict_file(model, table, NONE), head_of(model).task, lambda count: None, table)
    assert [row.cells["text"] for row in open_table(out)] == ["the film\rwas long", "the play"]
    assert out.read_bytes().count(b"\n") == 3  # as without the carriage return


QUOTED = ('the film\t"open', 'the play\tclosed"', 'the film\t"n"')  # quotes as text between tabs
WRITTEN = ('the film\t"a ""good"" one"', "the play\tb")  # quotes of a program


@pytest.mark.parametrize("lines", [QUOTED, WRITTEN], ids=["text", "CSV"])
@pytest.mark.parametrize(
    ("suffix", "written"), [(".tsv", ".tsv"), (".csv", ".csv"), (".csv", ".tsv"), (".tsv", ".csv")]
)
def test_predictions_are_read_back_as_their_table_was_read(
    model: LanguageModel, tmp_path: Path, lines: tuple[str, ...], suffix: str, written: str
) -> None:
    path, out = tmp_path / f"rows{suffix}", tmp_path / f"out{written}"
    path.write_text("\n".join(["text\tnote", *lines, ""]), encoding="utf-8")
    table = open_table(path)
    write_predictions(out, predict_file(model, table, NONE), head_of(model).task, lambda count: None, table)
    kept = [{name: row.cells[name] for name in ("text", "note")} for row in open_table(out)]
    assert kept == [row.cells for row in table] and len(kept) == len(lines)
    if written == ".tsv":
        content = out.read_text(encoding="utf-8").splitlines()
        assert [line.split("\t")[:2] for line in content] == [line.split("\t") for line in ("text\tnote", *lines)]


def test_a_label_with_a_tab_is_refused_where_quotes_are_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'a\\tb' has a tab or a line break"):
        text_line(["a", "a\tb"])


def test_null_is_named(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": null}\n', encoding="utf-8")
    with pytest.raises(DataError, match="column 'text' is null, not a text"):
        list(predict_file(model, open_table(tmp_path / "rows.jsonl"), NONE))


def test_a_label_with_a_line_break_or_of_many_characters_stays_on_one_line() -> None:
    broken = LabelPrediction(label="a\nb", probabilities={"a\nb": 0.75, "c" * 90: 0.25})
    assert broken.short().endswith("a⏎b")
    *_, first, second = (line.split()[-1] for line in document_text(broken.document()).splitlines() if line.strip())
    assert first == "a⏎b"
    assert second.startswith("ccc") and second.endswith("…")


def test_what_cannot_be_predicted_is_refused(model: LanguageModel, start) -> None:
    with pytest.raises(UsageError, match="reads one text"):
        predict(model, [("a", "b")])
    with pytest.raises(UsageError, match="has no task head"):
        predict(start.model, "the film")
    with pytest.raises(DataError, match=r"do not fit .* \(text 1\)"):
        predict(with_truncation(model, "never"), ["the film " * 20])


def test_evaluation_of_a_file(model: LanguageModel, review_file: Path) -> None:
    report = evaluate_task(model, review_file)
    assert (report.examples, report.figures["accuracy"], report.baseline["accuracy"]) == (60, 1.0, 0.5)


def test_a_tuned_model_is_not_evaluated_as_a_language_model_unasked(model: LanguageModel, review_file: Path) -> None:
    with pytest.raises(UsageError, match="foretell.predict, .* labelled rows with foretell.evaluate_task"):
        evaluate(model, review_file)
    assert isinstance(evaluate(model, review_file, task="text", limit=2), TextEvaluation)


def test_a_file_is_evaluated_with_the_columns_of_the_training(make_headed, tmp_path: Path) -> None:
    columns = Columns(texts=("start",), choices=("this", "that"), label="right")
    (tmp_path / "x.csv").write_text(
        "note,start,this,that,right\nx,the film,was great,was dull,this\n", encoding="utf-8"
    )
    model = make_headed("choice", pool="extract", columns=columns)
    assert evaluate_task(model, tmp_path / "x.csv").examples == 1


def test_columns_that_are_not_those_of_the_training_are_named(
    model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path := tmp_path / "x.csv").write_text("review,stars\nthe film was great,bad\n", encoding="utf-8")
    assert evaluate_task(model, path).examples == 1
    assert "reads 'review', 'stars' instead of the training's 'text', 'label'" in caplog.text
    caplog.clear()
    assert len([*predict_file(model, open_table(path), Columns(texts=()))]) == 1
    assert "reads 'review' instead of the training's 'text'" in caplog.text
    caplog.clear()
    evaluate_task(model, path, text_column="review", label_column="stars")
    assert "instead of" not in caplog.text


def test_a_trace_shows_the_pass_that_the_head_reads(model: LanguageModel) -> None:
    reading = as_task_input(model)
    ids = reading.encode("the film was awful")
    assert [reading.tokenizer.text_of(token) for token in ids][::5] == ["<|start|>", "<|extract|>"]
    with torch.no_grad(), Trace(reading, "trunk") as trace:
        reading(ids)
    head = head_of(model)
    expected = head.outputs(model.decoder, make_task_batch([EncodedExample((ids,))]))
    assert torch.allclose(head.linear(trace["trunk"][0, -1]), expected[0], atol=1e-5)
