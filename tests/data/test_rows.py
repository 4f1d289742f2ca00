"""Rows with named columns: every format gives the same rows, and what cannot be read is refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.data.rows import RowFile
from foretell.errors import DataError

CELLS = [{"text": "a, b", "label": "1"}, {"text": "café\nc", "label": "2"}]
FILES = {
    "rows.csv": 'text,label\n"a, b",1\n"café\nc",2\n',
    "rows.tsv": 'text\tlabel\na, b\t1\n"café\nc"\t2\n',
    "rows.jsonl": '{"text": "a, b", "label": "1"}\n\n{"text": "café\\nc", "label": "2"}\n',
    "rows.json": '[{"text": "a, b", "label": "1"}, {"text": "café\\nc", "label": "2"}]',
    "bom.csv": '\ufefftext,label\r\n"a, b",1\r\n"café\nc",2\r\n',
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8", newline="")
    assert [row.cells for row in RowFile(path)] == CELLS
    assert RowFile(path).first_columns() == ["text", "label"]


def test_rows_say_where_they_start(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n"a\nb",1\nc,2\n', encoding="utf-8")
    assert [row.where for row in RowFile(path)] == [f"{path}, line 2", f"{path}, line 4"]


def test_columns_can_be_named_and_the_encoding_too(tmp_path: Path):
    path = tmp_path / "rows.tsv"
    path.write_bytes("café\t0\n".encode("latin-1"))
    assert [row.cells for row in RowFile(path, "latin-1", ("text", "label"))] == [{"text": "café", "label": "0"}]


def test_the_lines_of_a_text_are_rows(tmp_path: Path):
    path = tmp_path / "rows.txt"
    path.write_text("one\n\ntwo\n", encoding="utf-8")
    assert [row.cells for row in RowFile(path)] == [{"text": "one"}, {"text": "two"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\ncaf\xe9,1\n", "line 2: not UTF-8 .* --encoding latin-1"),
        ("a.csv", b"text,text\na,b\n", "2 columns are called 'text'"),
        ("a.csv", b"text,label\na\n", "line 2: 1 cells, but the header has 2"),
        ("a.jsonl", b'{"text": 1}\n[1]\n', "line 2: not an object"),
        ("a.jsonl", b'{"text"\n', "line 1: not JSON"),
        ("a.json", b'{"text": 1}', "not a list of objects"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, content: bytes, message: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(RowFile(tmp_path / name))
