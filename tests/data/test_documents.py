"""Files too large to hold are read in pieces, with errors and notes as for others; the embedded corpus."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.training import DataConfig
from foretell.data import documents, sources
from foretell.data import documents as module
from foretell.data.documents import FileDocument, cut_position_in_bytes, describe_embedded_corpus, embedded_corpus
from foretell.data.sources import DocumentReader, read_documents
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


# --- the embedded corpus ---------------------------------------------------------------------------------------------


def paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def test_corpus_is_large_enough_and_deterministic() -> None:
    documents = list(embedded_corpus())
    assert len(documents) > 40
    assert sum(len(document.text) for document in documents) > 250_000
    assert documents == list(embedded_corpus())


def test_topics_are_sorted_and_not_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    reverse = dict(sorted(module._reference_topics().items(), reverse=True))
    monkeypatch.setattr(module, "_reference_topics", lambda: reverse)
    documents = list(embedded_corpus())
    sources = [document.source for document in documents]
    assert sources == sorted(sources)
    assert min(len(document.text) for document in documents) >= 200


def test_repeated_paragraphs_are_left_out() -> None:
    raw = Counter(part for text in module._reference_topics().values() for part in paragraphs(text))
    kept = Counter(part for document in embedded_corpus() for part in paragraphs(document.text))
    assert max(kept.values()) == 1
    assert raw.total() - len(raw) > 100  # else the test above proves nothing
    assert kept.keys() <= raw.keys()
    assert len(kept) > 0.95 * len(raw)


def test_paragraphs_are_compared_with_whitespace_normalised() -> None:
    seen: set[str] = set()
    assert module._unseen_paragraphs("one two\n\n   indented\n", seen) == "one two\n\n   indented\n"
    assert module._unseen_paragraphs("one\n   two\n \nnew\n\nindented", seen) == "new\n"
    assert module._unseen_paragraphs("new", seen) == ""


@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="the documented numbers are those of Python 3.11.7")
def test_documented_numbers() -> None:
    texts = [document.text for document in embedded_corpus()]
    assert (len(texts), sum(map(len, texts))) == (68, 372_303)
    topics = module._reference_topics()
    assert (len(topics), sum(map(len, topics.values()))) == (79, 464_970)
    assert "79 topics" in (embedded_corpus.__doc__ or "")
    assert "372,303" in (embedded_corpus.__doc__ or "")


def test_description_has_version_and_size_in_one_line() -> None:
    line = describe_embedded_corpus()
    size = sum(len(document.text.encode()) for document in embedded_corpus())
    assert f"{size:,} bytes" in line
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}" in line
    assert "\n" not in line


def test_python_without_its_language_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="give text files instead"):
        list(embedded_corpus())


ENDS = DataConfig(special=("<|endoftext|>",))
SEPARATED = "\ufeffone ☃\n<|endoftext|>\r\n<|endoftext|> \ntwo\r\n<|endoftext|>three<|endoftext|>\n"


@pytest.mark.parametrize("large", [1, 10**6])
def test_names_of_end_tokens_separate_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(sources, "LARGE", large)
    path = tmp_path / "x.txt"
    path.write_text(SEPARATED, encoding="utf-8", newline="")
    found = list(DocumentReader([path], ENDS).read())
    assert {isinstance(document, FileDocument) for document in found} == {large == 1}
    texts = [document.text for document in found]
    assert texts == ["one ☃\n<|endoftext|>", " \ntwo\n<|endoftext|>", "three<|endoftext|>"]
    assert [document.source for document in found] == [f"{path}, document {number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "config", [DataConfig(), DataConfig(special=("<|im_end|>",)), DataConfig(special=ENDS.special, rows=True)]
)
def test_without_the_name_of_an_end_token_or_in_rows_a_text_is_not_separated(
    tmp_path: Path, config: DataConfig
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("one <|endoftext|> two <|im_end|> three", encoding="utf-8")
    (document,) = DocumentReader([path], config).read()
    assert document.text == "one <|endoftext|> two <|im_end|> three"
