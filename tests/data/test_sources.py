"""Reading documents: every supported form, the notes that are logged, and one line for every bad input."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import logging
import lzma
import os
import random
import re
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest
import zstandard

from foretell.data.documents import TextDocument
from foretell.data.lines import TextFile
from foretell.data.sources import DocumentReader, read_documents
from foretell.errors import DataError, ForetellError, UsageError

REAL_DATA = Path(os.environ.get("FORETELL_SHARED") or Path(__file__).parents[3] / "shared") / "data"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


class KeptRecords(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def read(*paths: str | Path, text_field: str | None = None) -> tuple[list[str], list[str]]:
    """The texts and the lines that were logged, all of them warnings."""
    handler, logger = KeptRecords(), logging.getLogger("foretell.data.sources")
    logger.addHandler(handler)
    try:
        documents = list(read_documents(list(paths), text_field=text_field))
    finally:
        logger.removeHandler(handler)
    assert {record.levelno for record in handler.records} <= {logging.WARNING}
    return [document.text for document in documents], [record.getMessage() for record in handler.records]


def give_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def real(name: str) -> Path:
    path = REAL_DATA / name
    if not path.exists():
        pytest.skip(f"real data is not here: {path}")
    return path


# --- what can be read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.unknown", "README"])
def test_text_file_of_any_name_is_one_unchanged_document(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, " two\n\nlines \u2028 é 🙂\x0c\rend\n")
    assert list(read_documents([path])) == [TextDocument(str(path), " two\n\nlines \u2028 é 🙂\x0c\rend\n")]


def test_byte_order_mark_and_crlf_are_dropped_and_logged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n")
    texts, notes = read(path)
    assert texts == ["one\ntwo\n"]
    assert notes == [f"byte order mark dropped: {path}", f"CRLF line ends read as LF: {path}"]


def test_clean_file_logs_nothing(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", "one\ntwo\n")) == (["one\ntwo\n"], [])


def test_notes_are_logged_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    list(read_documents([write(tmp_path / "a.txt", "one\r\n")]))
    assert "CRLF" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_notes_of_a_text_that_is_read_twice_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = DocumentReader([write(tmp_path / "a.txt", "one\r\n"), write(tmp_path / "b" / "c.txt", "two").parent])
    write(tmp_path / "b" / "d.png", "png")
    for _ in range(2):
        assert [document.text for document in reader.read()] == ["one\n", "two"]
    assert [line.partition(":")[0] for line in caplog.messages] == ["suffix .png skipped", "CRLF line ends read as LF"]


def test_json_lines_of_strings_and_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '"one\\u2028"\n{"text": "two \\ud83d\\ude42", "label": 1}\n')
    assert list(read_documents([path])) == [
        TextDocument(f"{path}, line 1", "one\u2028"),
        TextDocument(f"{path}, line 2", "two 🙂"),
    ]


def test_json_line_is_not_cut_at_a_line_separator_in_a_string(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", '"one\u2028two\x85three"\n'))[0] == ["one\u2028two\x85three"]


def test_json_list_of_strings_and_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '["one",\n {"body": "two"}]')
    assert read(path, text_field="body")[0] == ["one", "two"]


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".CSV", ",")])
def test_text_column_of_a_table_with_quotes_and_line_breaks(tmp_path: Path, suffix: str, delimiter: str) -> None:
    table = io.StringIO()
    rows = [["label", "text"], ["1", "a, b\tc"], ["0", 'he notes "hi"\nand left'], ["1", "last"]]
    csv.writer(table, delimiter=delimiter, lineterminator="\n").writerows(rows)
    path = write(tmp_path / f"a{suffix}", table.getvalue())
    documents = list(read_documents([path]))
    assert [document.text for document in documents] == [row[1] for row in rows[1:]]
    assert [document.source for document in documents] == [f"{path}, line {line}" for line in (2, 3, 5)]


def test_only_column_of_a_table_is_read_and_logged(tmp_path: Path) -> None:
    texts, notes = read(write(tmp_path / "a.csv", "review\ngood\nbad\n"))
    assert texts == ["good", "bad"]
    assert len(notes) == 1
    assert "'review'" in notes[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"body": "yes", "text": "no"}\n'),
        ("a.csv", "text,body\nno,yes\n"),
        ("a.tsv", "text\tbody\nno\tyes"),
    ],
)
def test_text_field_names_another_field(tmp_path: Path, name: str, content: str) -> None:
    assert read(write(tmp_path / name, content), text_field="body")[0] == ["yes"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", '"one"\n\n"  "\n"two"\n'), ("a.json", '["one", "", " ", "two"]'), ("a.csv", "text\none\n\n \ntwo\n")],
)
def test_empty_documents_are_skipped_counted_and_logged(tmp_path: Path, name: str, content: str) -> None:
    texts, notes = read(write(tmp_path / name, content))
    assert texts == ["one", "two"]
    empty = [line for line in notes if line.startswith("empty document skipped")]
    assert len(empty) == 1
    assert empty[0].endswith(" and 1 more")


def test_cell_longer_than_the_default_limit_of_csv(tmp_path: Path) -> None:
    text = "x" * 200_000
    assert read(write(tmp_path / "a.csv", f"text\n{text}\n"))[0] == [text]
    assert csv.field_size_limit() >= len(text)


def test_standard_input_is_one_document(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    give_standard_input(monkeypatch, "grüß\r\n".encode())
    assert list(read_documents(["-"])) == [TextDocument("standard input", "grüß\n")]
    assert caplog.messages == ["CRLF line ends read as LF: standard input"]


def test_named_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe")
    os.close(writing)
    try:
        assert read(f"/dev/fd/{reading}")[0] == ["from a pipe"]
    finally:
        os.close(reading)


def test_documents_come_in_the_order_of_the_paths(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, name) for name in ("b.txt", "a.txt")]
    assert read(*paths)[0] == ["b.txt", "a.txt"]


# --- folders ---------------------------------------------------------------------------------------------------------


def test_folder_is_read_recursively_in_sorted_order_and_skipped_files_are_counted(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.py", "a/c.md", "C.TXT", "x.png", "a/y.png", "Makefile", ".hidden/d.txt", ".e.txt"):
        write(tmp_path / name, name)
    texts, notes = read(tmp_path)
    assert texts == ["C.TXT", "a/c.md", "a/z.py", "b.txt"]
    assert notes == [
        f"hidden, skipped: {tmp_path / '.e.txt'} and 1 more",
        f"no suffix, skipped: {tmp_path / 'Makefile'}",
        f"suffix .png skipped: {tmp_path / 'a/y.png'} and 1 more",
    ]


def test_hidden_folder_given_by_name_is_read(tmp_path: Path) -> None:
    write(tmp_path / ".notes" / "a.txt", "text")
    assert read(tmp_path / ".notes")[0] == ["text"]


def test_empty_files_in_a_folder_are_skipped_and_logged_once(tmp_path: Path) -> None:
    for name, content in (("a.py", ""), ("b.py", "\n"), ("c.py", "code"), ("d.csv", "text\n")):
        write(tmp_path / name, content)
    texts, notes = read(tmp_path)
    assert texts == ["code"]
    assert notes == [f"file without text skipped: {tmp_path / 'a.py'} and 2 more"]


def test_notes_of_many_files_are_one_line_for_each_kind(tmp_path: Path) -> None:
    for index in range(5):
        write(tmp_path / f"{index}.txt", b"\xef\xbb\xbfone\r\n")
    notes = read(tmp_path)[1]
    assert len(notes) == 2
    assert all(line.endswith("and 4 more") for line in notes)


def test_loops_of_links_end_and_linked_folders_are_read_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder / "a.txt", "text")
    write(tmp_path / "elsewhere" / "b.txt", "linked")
    (folder / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "linked_too").symlink_to(tmp_path / "elsewhere")
    texts, notes = read(folder)
    assert sorted(texts) == ["linked", "text"]
    assert any(line.startswith("reached before") and "loop" in line for line in notes)


def test_text_given_twice_is_read_once_and_logged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text")
    for paths in ([path, path], [path, tmp_path], [tmp_path, path]):
        texts, notes = read(*paths)
        assert texts == ["text"]
        assert any(line.startswith("given twice, read once") for line in notes)


def test_notes_are_logged_if_the_reader_stops_early(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [write(tmp_path / "a.txt", "one\r\n"), write(tmp_path / "b.txt", "two")]
    documents = read_documents(paths)
    assert isinstance(documents, Generator)
    next(documents)
    documents.close()
    assert len(caplog.messages) == 1


# --- what cannot -----------------------------------------------------------------------------------------------------

BAD_FILES: list[tuple[str, str, str | bytes, list[str]]] = [
    ("empty text", "a.txt", "", ["no text"]),
    ("only whitespace", "a.txt", " \n\t\n", ["no text"]),
    ("only a byte order mark", "a.txt", b"\xef\xbb\xbf", ["no text"]),
    ("empty jsonl", "a.jsonl", "", ["no text"]),
    ("jsonl of empty documents", "a.jsonl", '""\n{"text": ""}\n', ["no text"]),
    ("empty json", "a.json", "", ["no text"]),
    ("empty list", "a.json", "[]", ["no text"]),
    ("empty csv", "a.csv", "", ["no text"]),
    ("csv with only a header", "a.csv", "text,label\n", ["no text"]),
    ("binary", "a.txt", b"\x89PNG\r\n\x1a\n\x00\x01", ["line 1", "NUL"]),
    ("binary after text", "a.txt", b"text\n\xff\x00", ["line 2", "NUL"]),
    ("binary csv", "a.csv", b"text\nab\0c\n", ["line 2", "NUL"]),
    ("utf-16", "a.txt", "hello\n".encode("utf-16"), ["UTF-16", "iconv -f UTF-16"]),
    ("latin-1", "a.txt", "fine\ncaf\xe9\n".encode("latin-1"), ["line 2", "0xe9", "offset 8", "iconv"]),
    ("latin-1 jsonl", "a.jsonl", b'"a"\n"\xe9"\n', ["line 2", "offset 5", "iconv"]),
    ("latin-1 csv", "a.csv", b"text\na\n\xe9\n", ["line 3", "offset 7", "iconv"]),
    ("cut in a character", "a.txt", "é".encode()[:1], ["line 1", "0xc3", "offset 0"]),
    ("surrogate bytes", "a.txt", b"\xed\xa0\x80", ["not UTF-8"]),
    ("half a pair", "a.jsonl", '"fine"\n"\\ud83d"\n', ["line 2", "\\ud83d", "surrogate"]),
    ("broken json line", "a.jsonl", '"fine"\n{"text": \n', ["line 2", "not JSON", "column"]),
    (
        "missing field",
        "a.jsonl",
        '{"text": "a"}\n{"txt": "b", "n": 1}\n',
        ["line 2", "'txt', 'n'", "did you mean 'txt'"],
    ),
    ("no field at all", "a.jsonl", "{}\n", ["line 1", "none"]),
    ("field of a number", "a.jsonl", '{"text": 3}\n', ["line 1", "a number", "string"]),
    ("field of null", "a.jsonl", '{"text": null}\n', ["line 1", "null"]),
    ("line of a list", "a.jsonl", '"a"\n["a"]\n', ["line 2", "a list"]),
    ("line of true", "a.jsonl", "true\n", ["line 1", "true or false"]),
    ("deeply nested", "a.jsonl", '{"text": ' + "[" * 100_000 + "\n", ["line 1", "nested too deeply"]),
    ("endless number", "a.jsonl", "1" * 10_000 + "\n", ["line 1", "digits"]),
    ("broken json", "a.json", '["a",\n"b"\n', ["line 3", "not JSON"]),
    ("json lines", "a.json", '{"text": "a"}\n{"text": "b"}\n', ["not a list", ".jsonl"]),
    ("json object", "a.json", '{"text": "a"}', ["not a list", ".jsonl"]),
    ("json item without field", "a.json", '["a", {"Text": "b"}]', ["item 2", "did you mean 'Text'"]),
    ("no text column", "a.csv", "label,body\n1,a\n", ["line 1", "'label', 'body'", "text_field"]),
    ("nearly a text column", "a.csv", "label,texts\n1,a\n", ["line 1", "did you mean 'texts'"]),
    ("two text columns", "a.csv", "text,text\na,b\n", ["line 1", "2 columns"]),
    ("row too short", "a.csv", "text,label\na,1\nb\n", ["line 3", "1 cells", "2"]),
    ("row too long", "a.tsv", "text\tlabel\na\t1\tx\n", ["line 2", "3 cells"]),
    ("open quote", "a.csv", 'text\na\n"b\nc\n', ["line 3", "quotes"]),
    ("stray quote", "a.csv", 'text,label\n"a" b,1\n', ["line 2", "quotes"]),
    ("lone carriage returns", "a.csv", b"text,label\rb,2\r", ["line 1"]),
    ("columns by the hundred", "a.csv", ",".join(f"c{i}" for i in range(500)) + "\n", ["and 492 more"]),
    ("column names of a novel", "a.csv", '"' + "x\ny" * 5000 + '",b\n1,2\n', ["line 1", "…', 'b'"]),
]


@pytest.mark.parametrize(
    ("name", "content", "parts"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES]
)
def test_bad_file_is_named_in_one_line(tmp_path: Path, name: str, content: str | bytes, parts: list[str]) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 600
    assert [part for part in parts if part not in message] == []


def test_empty_file_given_by_name_is_an_error_even_with_another_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"empty\.txt: holds no text"):
        read(write(tmp_path / "full.txt", "text"), write(tmp_path / "empty.txt", ""))


def test_missing_path_is_refused_by_the_call_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "shakespeare.txt", "text")
    with pytest.raises(DataError, match=r"no such file or folder, did you mean 'shakespeare\.txt'"):
        read_documents([tmp_path / "shakespear.txt"])


def test_path_in_a_missing_folder_names_the_nearest_folder(tmp_path: Path) -> None:
    write(tmp_path / "corpus" / "a.txt", "text")
    with pytest.raises(DataError, match="did you mean 'corpus'"):
        read_documents([tmp_path / "corpsu" / "deeper" / "a.txt"])


def test_missing_path_without_a_similar_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder; check the path"):
        read_documents([tmp_path / "a.txt" / "b"])


def make_loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def make_folder_of_itself(folder: Path) -> Path:
    (folder / "inside").mkdir()
    (folder / "inside" / "again").symlink_to(folder / "inside")
    return folder / "inside"


def make_folder_without_text(folder: Path) -> Path:
    write(folder / "images" / "a.png", "png")
    return folder / "images"


def make_folder_of_empty_files(folder: Path) -> Path:
    write(folder / "empty" / "a.txt", "")
    return folder / "empty"


def make_broken_file_in_folder(folder: Path) -> Path:
    write(folder / "mixed" / "b.txt", b"\xff")
    return folder / "mixed"


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (make_loop, "a broken or circular link"),
        (make_folder_of_itself, "contains only links to itself"),
        (make_folder_without_text, "1 skipped"),
        (lambda folder: folder, "0 skipped"),
        (make_folder_of_empty_files, "holds no text"),
        (make_broken_file_in_folder, "b.txt, line 1: not UTF-8"),
        (lambda _: Path("/dev/zero"), "a device"),
        (lambda folder: folder / ("x" * 5000), "cannot be read"),
    ],
)
def test_bad_folder_or_path_is_named_in_one_line(tmp_path: Path, make, part: str) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["open", "iterdir", "exists"])
def test_unreadable_path_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    write(tmp_path / "a.txt", "text")

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        read(tmp_path)


def test_standard_input_that_is_not_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, part in ((b"", "no text"), (b"a\n\xff", "line 2: not UTF-8"), (b"\0", "NUL")):
        give_standard_input(monkeypatch, content)
        with pytest.raises(DataError, match=f"^standard input.*{part}"):
            read("-")


EMPTY = "^a path is empty; give a file, a folder or '-'"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        *((paths, "give a list") for paths in ([], "a.txt", Path("a.txt"))),
        *((paths, EMPTY) for paths in ([""], ["a.txt", ""])),
    ],
)
def test_invalid_paths_are_a_usage_error(paths, message) -> None:
    with pytest.raises(UsageError, match=message):
        read_documents(paths)


# --- real files ------------------------------------------------------------------------------------------------------


def test_real_book_with_byte_order_mark_and_crlf() -> None:
    texts, notes = read(real("lm_corpora/war_and_peace.txt"))
    assert len(texts) == 1
    assert not texts[0].startswith("\ufeff")
    assert "\r" not in texts[0]
    assert len(notes) == 2


def test_real_text_is_read_unchanged() -> None:
    path = real("char_lm/tinyshakespeare_input.txt")
    assert read(path) == ([path.read_text(encoding="utf-8")], [])


def test_every_row_of_a_real_table() -> None:
    path = real("classification/twitter_financial_news_valid.csv")
    with path.open(encoding="utf-8", newline="") as file:
        expected = [row["text"].replace("\r\n", "\n") for row in csv.DictReader(file)]
    assert read(path)[0] == expected


def test_real_table_without_a_header_is_refused() -> None:
    with pytest.raises(DataError, match="line 1: no column 'text' among the columns 'one long string"):
        read(real("classification/sst2_dev.tsv"))


def test_real_latin_1_file_is_refused_with_the_offset_of_the_byte() -> None:
    path = real("classification/trec_train.txt")
    with pytest.raises(ForetellError) as caught:
        read(path)
    with pytest.raises(UnicodeDecodeError) as decoding:
        path.read_bytes().decode("utf-8")
    assert f"offset {decoding.value.start})" in str(caught.value)


def test_real_json_lines_with_a_named_field() -> None:
    path = real("eval/lambada_openai.jsonl")
    expected = [json.loads(line)["context"] for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert read(path, text_field="context")[0] == expected


def test_hundreds_of_nested_folders_are_entered_quickly(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a"] * 900)
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("text")
    start = time.process_time()
    assert [document.text for document in read_documents([tmp_path])] == ["text"]
    assert time.process_time() - start < 2  # 8 s when every path was resolved


# --- a folder with an odd file ---------------------------------------------------------------------------------------

ODD = {
    "package.json": (b'{"name": "x"}', "not a list of strings or objects"),
    "table.csv": (b"label,body\n1,a\n", "no column 'text' among .*text.field"),
    "latin.txt": (b"caf\xe9", "not UTF-8"),
    "image.txt": (b"\x89PNG\0\0", "NUL bytes|not UTF-8"),
    "broken.jsonl": (b'{"text": "first"}\n{"text"\n', "line 2: not JSON"),
    "damaged.txt.gz": (b"\x1f\x8b\x08 and so on", "damaged, cut short"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_file_of_a_folder_that_cannot_be_read_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    content, message = ODD[name]
    write(tmp_path / "in" / "good.txt", "text")
    write(tmp_path / "in" / name, content)
    texts, notes = read(tmp_path / "in")
    assert texts == ["text"]  # and not the first line of broken.jsonl
    assert len(notes) == 1
    assert re.match(f"left out: .*{name}.*({message})", notes[0])
    with pytest.raises(DataError, match=message):
        list(read_documents([tmp_path / "in"], strict=True))
    with pytest.raises(DataError, match=message):  # named by itself
        list(read_documents([tmp_path / "in" / name]))


def test_a_folder_where_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, "{}")
    with pytest.raises(DataError, match="a.json: not a list"):
        list(read_documents([tmp_path]))


def test_only_the_first_files_left_out_are_named(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "text")
    for index in range(20):
        write(tmp_path / f"{index:02d}.json", "{}")
    notes = read(tmp_path)[1]
    assert len(notes) == 9
    assert notes[-1] == "left out: 12 more files"


# --- compressed files ------------------------------------------------------------------------------------------------

COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_texts_and_records_are_read(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a.txt{suffix}", COMPRESS[suffix](b"line\r\nline"))
    write(tmp_path / f"b.jsonl{suffix}", COMPRESS[suffix](b'{"text": "one"}\n{"text": "two"}\n'))
    write(tmp_path / f"c.tar{suffix}", COMPRESS[suffix](b"no text"))
    texts, notes = read(tmp_path)
    assert texts == ["line\nline", "one", "two"]
    assert any(note.startswith(f"suffix {suffix} skipped") for note in notes)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_cut_short_is_one_line(tmp_path: Path, suffix: str) -> None:
    content = COMPRESS[suffix](random.Random(1).randbytes(9000).hex().encode())
    write(tmp_path / f"a.txt{suffix}", content[:-100])
    with pytest.raises(DataError, match=f"a.txt{suffix}: damaged, cut short") as raised:
        list(read_documents([tmp_path / f"a.txt{suffix}"]))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", [b"a" * 5000, b"a\n" * 5000])
def test_a_small_file_that_expands_beyond_the_bounds_is_refused(tmp_path: Path, text: bytes, monkeypatch) -> None:
    monkeypatch.setattr("foretell.data.lines.LONGEST_LINE", 1000)
    monkeypatch.setattr("foretell.data.lines.LARGEST_TEXT", 2000)
    write(tmp_path / "a.txt.gz", gzip.compress(text))
    with pytest.raises(DataError, match="too large to read compressed"):
        list(read_documents([tmp_path / "a.txt.gz"]))


def test_zstd_is_read_line_by_line(tmp_path: Path) -> None:
    text = "".join(f"line {index} of a text\n" for index in range(5000))
    write(tmp_path / "a.txt.zst", zstandard.compress(text.encode()))
    assert read(tmp_path / "a.txt.zst")[0] == [text]
    write(tmp_path / "b.jsonl.zst", zstandard.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert read(tmp_path / "b.jsonl.zst")[0] == ["one", "two"]


def test_zstd_of_several_frames_is_read_to_its_end(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.zst", zstandard.compress(b'{"text": "one"}\n') + zstandard.compress(b'{"text": "two"}\n'))
    assert read(tmp_path / "a.jsonl.zst")[0] == ["one", "two"]


def test_damaged_zstd_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "a.txt.zst", zstandard.compress(b"text" * 1000)[:-9])
    with pytest.raises(DataError, match="damaged, cut short or not compressed this way"):
        list(read_documents([tmp_path / "a.txt.zst"]))


def test_without_its_package_zstd_is_refused_by_name(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path / "a.txt.zst", b"x")
    for module in ("compression.zstd", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'foretell\[data\]', or decompress it: zstd -d a.txt.zst"):
        list(read_documents([tmp_path / "a.txt.zst"]))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"ALWAYS_READ": 5_000, "MOST_RATIO": 2}, "its files expand to more than 2 times"),
        ({"MOST_MEMBERS": 2}, "3 files"),
    ],
)
def test_a_zip_is_refused_as_a_whole_before_any_file_is_read(tmp_path: Path, monkeypatch, limits, reason) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "abc":
            archive.writestr(f"{name}.txt", "\n" * 2_000)
    for name, value in limits.items():
        monkeypatch.setattr(f"foretell.data.lines.{name}", value)
    monkeypatch.setattr("foretell.data.lines.open_member", None)
    with pytest.raises(DataError, match=f"x.zip: .*{reason}.*; unpack the zip first"):
        read_documents([path])


@pytest.mark.long
def test_a_text_of_short_lines_takes_a_few_times_its_size(tmp_path: Path) -> None:
    """Held as a list of lines, it takes 35 times its size."""
    path = write(tmp_path / "a.txt.gz", gzip.compress(b"a\n" * 500_000))
    tracemalloc.start()
    content = TextFile(path).text()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(content) == 1_000_000
    assert peak < 12 * len(content)  # StringIO joins 100,000 strings at a time: 6 MB


def test_a_disk_image_is_refused_by_its_first_block(tmp_path: Path) -> None:
    with (tmp_path / "disk.txt").open("wb") as file:
        file.truncate(2**28)
    tracemalloc.start()
    with pytest.raises(DataError, match="line 1: NUL bytes"):
        TextFile(tmp_path / "disk.txt").text()
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
