"""Files too large to hold: read in pieces as the same text, cut without being read, errors and notes as for others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.data import documents, sources
from foretell.data.documents import FileDocument, cut_position_in_bytes
from foretell.data.sources import read_documents
from foretell.data.split import Part, split_documents
from foretell.errors import DataError

TEXT = "Größe\r\nzählt 🐈 nicht.\n" * 40


@pytest.fixture(autouse=True, scope="module")
def small_limits() -> Iterator[None]:
    """Files of 64 bytes or more are large, and are read 7 bytes at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "LARGE", 64)
        patch.setattr(documents, "BLOCK", 7)
        yield


def read(path: Path, content: bytes) -> FileDocument:
    path.write_bytes(content)
    (document,) = read_documents([path])
    assert isinstance(document, FileDocument)
    return document


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=64))
def test_joined_pieces_are_the_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("large") / "x.txt"
    content = ("." + text).encode()
    document = read(path, content)
    assert document.text == ("." + text).replace("\r\n", "\n")
    assert document.utf8_bytes == len(document.text.encode())
    assert list(document.pieces()) == list(document.pieces())


def test_byte_order_mark_and_crlf_are_dropped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    document = read(tmp_path / "x.txt", b"\xef\xbb\xbf" + TEXT.encode())
    assert document.text == TEXT.replace("\r\n", "\n")
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "byte order mark dropped",
        "CRLF line ends read as LF",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TEXT.encode() + b"\xff\n", "line 81: not UTF-8 (byte 0xff at offset"),
        (TEXT.encode() + b"a\0b", "line 81: NUL bytes"),
        (TEXT.encode() + "ß".encode()[:1], "line 81: not UTF-8"),
        (b" \n" * 100, "holds no text"),
    ],
)
def test_errors_are_those_of_small_files(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=".") as raised:
        read(tmp_path / "x.txt", content)
    assert words in str(raised.value)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 1e-6])
def test_cut_parts_join_to_the_text_and_follow_a_line_break(fraction: float, tmp_path: Path) -> None:
    document = read(tmp_path / "x.txt", (TEXT * 20).encode())
    parts = dict(split_documents([document], fraction))
    assert list(parts) == list(get_args(Part))
    assert parts["train"].text + parts["validation"].text == document.text
    assert parts["train"].text.endswith("\n")
    assert len(parts["validation"].text) == pytest.approx(fraction * len(document.text), abs=0.02 * len(document.text))


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1), data=st.data())
def test_cut_without_a_line_break_falls_between_characters(text: str, data: st.DataObject) -> None:
    window = text.encode()
    position = cut_position_in_bytes(window, data.draw(st.integers(0, len(window) - 1)))
    assert window[:position].decode() + window[position:].decode() == text


def test_changed_file_is_refused(tmp_path: Path) -> None:
    document = read(tmp_path / "x.txt", TEXT.encode())
    (tmp_path / "x.txt").write_text("another\n" * 100)
    with pytest.raises(DataError, match="changed while it was read"):
        _ = document.text
    (tmp_path / "x.txt").unlink()
    with pytest.raises(DataError, match="changed while it was read"):
        _ = document.text


def test_large_json_lines_are_read_record_by_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a line of many"}\n' * 30)
    assert len(list(read_documents([tmp_path / "x.jsonl"]))) == 30
