"""Tables: every format, compressed or not, gives the same rows to every reader, and what cannot be read is refused by
file and line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from foretell.config.training import DataConfig
from foretell.data.lines import find_file
from foretell.data.questions import read_questions
from foretell.data.sources import DocumentReader, read_documents
from foretell.data.table import open_table
from foretell.errors import DataError
from foretell.finetuning.conversations import ConversationReader
from foretell.finetuning.label_kind import ClassifyKind
from foretell.finetuning.settings import Columns
from foretell.forecasting.series_file import read_series
from foretell.translation.pairs import read_pairs

Records = Sequence[dict[str, Any]]

CELLS = [{"text": "a, b", "label": "1"}, {"text": "café\nc", "label": "2"}]


# --- every format, compression and purpose ---------------------------------------------------------------------------


def delimited(delimiter: str) -> Callable[[Records], bytes]:
    def write(rows: Records) -> bytes:
        file = io.StringIO()
        table = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        return file.getvalue().encode()

    return write


def parquet(rows: Records) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), file)
    return file.getvalue()


FORMATS: dict[str, Callable[[Records], bytes]] = {
    ".csv": delimited(","),
    ".tsv": delimited("\t"),
    ".json": lambda rows: json.dumps(rows).encode(),
    ".jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode(),
    ".parquet": parquet,
}


def zipped(content: bytes, name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_about.txt", "This is not a row.")
        archive.writestr(f"data/{name}", content)
    return file.getvalue()


COMPRESSIONS: dict[str, Callable[[bytes, str], bytes]] = {
    "": lambda content, name: content,
    ".gz": lambda content, name: gzip.compress(content),
    ".bz2": lambda content, name: bz2.compress(content),
    ".xz": lambda content, name: lzma.compress(content),
    ".zst": lambda content, name: zstandard.compress(content),
    ".zip": zipped,
}


def read_labels(path: Path) -> list[Any]:
    table = open_table(path)
    columns = ClassifyKind.reader.find_columns(table.first_columns(), Columns(texts=()), str(path))
    return [(example.texts, *example.labels) for example in ClassifyKind.reader.read_all(table, columns)]


ANSWERED = DataConfig(prompt_field="text", answer_field="label")
QUESTION = {"sentence": "Ann met Bo, so _ sang.", "option1": "Ann", "option2": "Bo", "answer": "2"}
# the rows, a reader, what it returns
PURPOSES: dict[str, tuple[Records, Callable[[Path], Any], Any]] = {
    "texts": (CELLS, lambda path: [each.text for each in read_documents([path])], ["a, b", "café\nc"]),
    "prompts and answers": (
        CELLS,
        lambda path: [list(each.pieces()) for each in DocumentReader([path], ANSWERED).read()],
        [["a, b", "1"], ["café\nc", "2"]],
    ),
    "labels": (CELLS, read_labels, [(("a, b",), "1"), (("café\nc",), "2")]),
    "questions": (
        [QUESTION],
        lambda path: [(each.query, each.gold) for each in read_questions(path)],
        [("Ann met Bo, so ", 1)],
    ),
    "pairs": (
        [{"source": "Go.", "target": "Va !"}],
        lambda path: [(pair.source, pair.target) for pair in read_pairs([path])],
        [("Go.", "Va !")],
    ),
    "series": (
        [{"ds": "2024-01", "y": 1.5}, {"ds": "2024-02", "y": 2}],
        lambda path: [each.values.tolist() for each in read_series(path)],
        [[1.5, 2]],
    ),
    "chats": (
        [{"prompt": "p", "completion": "c"}],
        lambda path: [[turn.content for turn in each.messages] for each in ConversationReader().read([path])],
        [["p", "c"]],
    ),
}


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_read_for_every_purpose(suffix: str, compression: str, purpose: str, tmp_path: Path):
    rows, read, expected = PURPOSES[purpose]
    path = tmp_path / f"rows{suffix}{compression}"
    path.write_bytes(COMPRESSIONS[compression](FORMATS[suffix](rows), f"rows{suffix}"))
    if suffix == ".parquet" and compression:
        with pytest.raises(DataError, match="parquet inside a compressed file"):
            read(path)
    else:
        assert read(path) == expected


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_dropped_and_blank_rows_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "rows.csv"
    path.write_text('\ufefftext,label\r\n"a, b",1\r\n\r\n"café\nc",2\r\n', encoding="utf-8", newline="")
    assert [row.cells for row in open_table(path)] == CELLS
    assert caplog.messages == [f"byte order mark dropped: {path}"]


@pytest.mark.parametrize(
    ("header", "separator"),
    [("text;label", ";"), ("text\tlabel", "\t"), ('"a, b";label', ";"), ("a,b;c", ","), ('"a;b"', ","), ("text", ",")],
)
def test_the_first_line_shows_the_separator(header: str, separator: str, tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text(f"{header}\n", encoding="utf-8")
    assert open_table(path).separator == separator
    assert open_table(path, columns=("text",)).separator == ","  # a text with a semicolon


def test_a_table_with_another_separator_is_read_and_noted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "rows.csv"
    path.write_text("\ufefftext;label\na, b;1\n", encoding="utf-8")
    table = open_table(path)
    with caplog.at_level("INFO"):
        assert table.first_columns() == ["text", "label"]
        assert [row.cells for row in table] == [{"text": "a, b", "label": "1"}]
    assert caplog.messages == [f"byte order mark dropped: {path}", f"separator   a semicolon, not a comma: {path}"]


def test_the_line_of_excel_names_the_separator(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("\ufeffsep=;\ntext;label\na, b;1\n", encoding="utf-8")
    assert [(row.where, row.cells) for row in open_table(path)] == [(f"{path}, line 3", {"text": "a, b", "label": "1"})]


def test_a_header_and_the_names_of_columns_exclude_each_other(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,1\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: a header with the names of columns"):
        list(open_table(path, columns=("text", "label")))


def test_a_spreadsheet_is_refused_with_advice(tmp_path: Path):
    (tmp_path / "book.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match="a spreadsheet; save it as CSV"):
        open_table(tmp_path / "book.xlsx")


def test_rows_are_located_by_their_first_line(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n"a\nb",1\nc,2\n', encoding="utf-8")
    assert [row.where for row in open_table(path)] == [f"{path}, line 2", f"{path}, line 4"]


def test_columns_can_be_named_and_the_encoding_too(tmp_path: Path):
    path = tmp_path / "rows.tsv"
    path.write_bytes("café\t0\n".encode("latin-1"))
    assert [row.cells for row in open_table(path, "latin-1", ("text", "label"))] == [{"text": "café", "label": "0"}]


@pytest.mark.parametrize("encoding", ["latin-1", "ISO-8859-1", "cp1252"])
def test_latin_1_is_read_as_browsers_read_it(encoding: str, tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"text\n\x84caf\xe9\x93 \x96 5 \x80\n")
    assert [row.cells["text"] for row in open_table(path, encoding)] == ["„café“ – 5 €"]
    path.write_bytes(b"text\n\x81\n")
    with pytest.raises(DataError, match=r"line 2: not CP1252 \(byte 0x81 .*iconv -f ENCODING"):
        list(open_table(path, encoding))


# --- quotes between tabs ---------------------------------------------------------------------------------------------

CONTENTS: dict[str, tuple[str, list[list[str]]]] = {
    "a stray quote": ('x\ty\n"open\t1\na\t2\nclosed"\t3\n', [['"open', "1"], ["a", "2"], ['closed"', "3"]]),
    "a quoted text": ('x\ty\n"a"\t1\n"b", c\t2\n', [['"a"', "1"], ['"b", c', "2"]]),
    "doubled quotes": ('x\ty\n"say ""a"""\t1\n', [['say "a"', "1"]]),
    "doubled quotes and a text": ('x\ty\n"say ""a"""\t1\n"b" c\t2\n', [['"say ""a"""', "1"], ['"b" c', "2"]]),
    "every text in quotes": ('"x"\t"y"\n"a"\t1\n"b"\t2\n', [["a", "1"], ["b", "2"]]),
    "a quoted tab": ('x\ty\n"a\tb"\t1\n', [["a\tb", "1"]]),
    "a quoted line break": ('x\ty\n"a\nb"\t1\n', [["a\nb", "1"]]),
}


@pytest.mark.parametrize("name", ["rows.tsv", "rows.csv"])
@pytest.mark.parametrize("content", CONTENTS)
def test_quotes_are_text_where_every_line_is_a_row(content: str, name: str, tmp_path: Path):
    path, (text, rows) = tmp_path / name, CONTENTS[content]
    path.write_text(text, encoding="utf-8")
    assert [list(row.cells.values()) for row in open_table(path)] == rows


READERS: dict[str, tuple[str, str, Callable[[Path], int]]] = {
    "texts": ("text\tn", "1", lambda path: len(list(read_documents([path])))),
    "labels": ("text\tlabel", "1", lambda path: len(read_labels(path))),
    "pairs": ("source\ttarget", "Va", lambda path: len(read_pairs([path]))),
    "series": ("unique_id\tds\ty", "2024-01\t1 2024-02\t1", lambda path: len(read_series(path))),
    "chats": ("prompt\tcompletion", "c", lambda path: len(ConversationReader().read([path]))),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_stray_quote_loses_no_row_for_any_purpose(reader: str, tmp_path: Path):
    header, cells, count = READERS[reader]
    path = tmp_path / "rows.tsv"
    rows = [f"{first}\t{rest}" for first in ('"open', "x", 'closed"') for rest in cells.split(" ")]
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    assert count(path) == 3


# --- formats of text -------------------------------------------------------------------------------------------------


def test_the_lines_of_a_text_are_rows(tmp_path: Path):
    path = tmp_path / "rows.txt"
    path.write_text("one\n\ntwo\n", encoding="utf-8")
    assert [row.cells for row in open_table(path)] == [{"text": "one"}, {"text": "two"}]


def test_values_of_parquet_keep_their_types_and_dates_are_text(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    rows = [{"n": 1, "x": 0.5, "list": ["a"], "day": pa.scalar(19723, pa.date32()).as_py(), "none": None}]
    path.write_bytes(parquet(rows))
    (row,) = open_table(path)
    assert row.cells == {"n": 1, "x": 0.5, "list": ["a"], "day": "2024-01-01", "none": None}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\ncaf\xe9,1\n", "line 2: not UTF-8 .* encoding cp1252"),
        ("a.csv", b"text,label\ncaf\xe9 \x93bar\x94,1\n", "line 2: not UTF-8 .*0xe9.* encoding cp1252"),
        ("a.csv", b"text,label\na\n", "line 2: 1 cells, but the header has 2"),
        ("a.jsonl", b'{"text": 1}\n[1]\n', "line 2: a list, not an object"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, content: bytes, message: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(open_table(tmp_path / name, "utf-8"))


@pytest.mark.parametrize("content", ['[{"text": "a"}, "b"]', '\n [\n{"text": "a"},\n"b"\n]\n'])
def test_a_list_named_as_lines_is_read(content: str, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-8")
    assert [row.cells for row in open_table(tmp_path / "a.jsonl")] == [{"text": "a"}, {"text": "b"}]


def test_names_of_columns_are_for_tables_without_a_header(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(DataError, match="columns is for .csv and .tsv files, and this is neither"):
        list(open_table(tmp_path / "a.jsonl", columns=("text",)))


# --- files -----------------------------------------------------------------------------------------------------------


def test_paths_that_are_not_files_are_refused(tmp_path: Path):
    (tmp_path / "rows.csv").write_text("text\n")
    for path, message in (
        (tmp_path / "row.csv", "no such file, did you mean 'rows.csv'"),
        (tmp_path, "is a folder; give a file"),
        (Path("/dev/zero"), "not a regular file"),
    ):
        with pytest.raises(DataError, match=message):
            open_table(path)


def test_a_zip_with_several_files_is_refused_by_their_names(tmp_path: Path):
    path = tmp_path / "a.zip"
    for names in ([], ["b.csv", "a.csv"]):
        with zipfile.ZipFile(path, "w") as archive:
            for name in ["README.md", ".hidden", "_license.txt", *names]:
                archive.writestr(name, "text\n")
        with pytest.raises(DataError, match=rf"holds {len(names)} files \({', '.join(sorted(names)) or 'none'}\)"):
            find_file(path)


def test_a_zip_that_cannot_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.zip"
    whole = zipped(b"text\n" + b"0123456789" * 100, "a.csv")
    encrypted = bytearray(whole)
    for start in (whole.find(b"data/a.csv") - 24, whole.rfind(b"data/a.csv") - 38):
        encrypted[start] |= 1  # the flag in both headers
    changed = bytearray(whole)
    changed[whole.find(b"data/a.csv") + 20] ^= 255
    for content in (b"PK nothing", whole[:-30], bytes(encrypted), bytes(changed)):
        path.write_bytes(content)
        with pytest.raises(DataError, match="damaged, cut short or not compressed this way") as raised:
            list(open_table(path))
        assert "\n" not in str(raised.value)
    path.write_bytes(whole)
    monkeypatch.setattr("foretell.data.lines.LARGEST_MEMBER", 100)
    with pytest.raises(DataError, match="a.csv has 1,005 bytes; unpack the zip first"):
        open_table(path)


def test_a_compressed_line_beyond_the_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("foretell.data.lines.LONGEST_LINE", 1000)
    monkeypatch.setattr("foretell.data.lines.LARGEST_TEXT", 2000)
    many, long = [{"text": "a" * 90}] * 100, [{"text": "a" * 2000}]
    for name, rows in (("a.csv.gz", long), ("a.jsonl.gz", long), ("a.json.gz", many)):
        (tmp_path / name).write_bytes(gzip.compress(FORMATS[Path(name).with_suffix("").suffix](rows)))
        with pytest.raises(DataError, match="too large to read compressed"):
            list(open_table(tmp_path / name))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(FORMATS[".jsonl"](many)))  # record by record: any length
    assert len(list(open_table(tmp_path / "b.jsonl.gz"))) == 100


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.xz", "a.zip"])
def test_a_compressed_table_that_expands_without_end_is_refused_before_its_first_row(tmp_path: Path, name: str):
    content = b"text,label\n" + (b"a" * 997 + b",b\n") * 40_000  # 40 MB
    packed = {
        ".gz": gzip.compress,
        ".xz": lambda data: lzma.compress(data, preset=0),
        ".zip": lambda data: zipped(data, "a.csv"),
    }
    (tmp_path / name).write_bytes(packed[Path(name).suffix](content))
    rows = []
    with pytest.raises(DataError, match="expands? to more than 100 times its size"):
        rows += open_table(tmp_path / name)
    assert not rows
