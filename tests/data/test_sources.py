"""Reading documents: every supported form, what is said about liberties taken, and one line for every bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from foretell.data.sources import Document, read_documents
from foretell.errors import DataError, ForetellError, UsageError

REAL_DATA = Path(__file__).parents[3] / "shared" / "data"


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def read(*paths: str | Path, text_field: str | None = None) -> tuple[list[str], list[str]]:
    """The texts and what was said."""
    said: list[str] = []
    documents = list(read_documents(list(paths), text_field=text_field, say=said.append))
    return [document.text for document in documents], said


def give_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def real(name: str) -> Path:
    path = REAL_DATA / name
    if not path.exists():
        pytest.skip(f"real data is not here: {path}")
    return path


# --- what can be read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.unknown", "README"])
def test_a_text_file_of_any_name_is_one_document_with_nothing_changed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, " two\n\nlines \u2028 é 🙂\x0c\rend\n")
    assert list(read_documents([path])) == [Document(" two\n\nlines \u2028 é 🙂\x0c\rend\n", str(path))]


def test_a_byte_order_mark_and_crlf_are_dropped_and_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n")
    texts, said = read(path)
    assert texts == ["one\ntwo\n"]
    assert said == [f"byte order mark dropped: {path}", f"CRLF line ends read as LF: {path}"]


def test_a_clean_file_says_nothing(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", "one\ntwo\n")) == (["one\ntwo\n"], [])


def test_without_a_callback_notes_go_to_stderr_and_not_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list(read_documents([write(tmp_path / "a.txt", "one\r\n")]))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "CRLF" in captured.err


def test_json_lines_hold_strings_and_objects_one_a_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '"one\\u2028"\n{"text": "two \\ud83d\\ude42", "label": 1}\n')
    assert list(read_documents([path])) == [
        Document("one\u2028", f"{path}, line 1"),
        Document("two 🙂", f"{path}, line 2"),
    ]


def test_a_json_line_is_not_cut_at_a_line_separator_within_a_string(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", '"one\u2028two\x85three"\n'))[0] == ["one\u2028two\x85three"]


def test_a_json_file_is_a_list_of_strings_and_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '["one",\n {"body": "two"}]')
    assert read(path, text_field="body")[0] == ["one", "two"]


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".CSV", ",")])
def test_a_table_is_read_by_its_text_column_with_quotes_and_line_breaks_in_cells(
    tmp_path: Path, suffix: str, delimiter: str
) -> None:
    table = io.StringIO()
    rows = [["label", "text"], ["1", "a, b\tc"], ["0", 'he said "hi"\nand left'], ["1", "last"]]
    csv.writer(table, delimiter=delimiter, lineterminator="\n").writerows(rows)
    path = write(tmp_path / f"a{suffix}", table.getvalue())
    documents = list(read_documents([path]))
    assert [document.text for document in documents] == [row[1] for row in rows[1:]]
    assert [document.source for document in documents] == [f"{path}, line {line}" for line in (2, 3, 5)]


def test_the_only_column_of_a_table_is_read_and_that_is_said(tmp_path: Path) -> None:
    texts, said = read(write(tmp_path / "a.csv", "review\ngood\nbad\n"))
    assert texts == ["good", "bad"]
    assert len(said) == 1
    assert "'review'" in said[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"body": "yes", "text": "no"}\n'),
        ("a.csv", "text,body\nno,yes\n"),
        ("a.tsv", "text\tbody\nno\tyes"),
    ],
)
def test_another_text_field_can_be_named(tmp_path: Path, name: str, content: str) -> None:
    assert read(write(tmp_path / name, content), text_field="body")[0] == ["yes"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", '"one"\n\n"  "\n"two"\n'), ("a.json", '["one", "", " ", "two"]'), ("a.csv", "text\none\n\n \ntwo\n")],
)
def test_empty_documents_are_skipped_counted_and_said(tmp_path: Path, name: str, content: str) -> None:
    texts, said = read(write(tmp_path / name, content))
    assert texts == ["one", "two"]
    empty = [line for line in said if line.startswith("empty document skipped")]
    assert len(empty) == 1
    assert empty[0].endswith(" and 1 more")


def test_a_cell_longer_than_the_csv_module_allows_is_read_whole(tmp_path: Path) -> None:
    text = "x" * 200_000
    assert read(write(tmp_path / "a.csv", f"text\n{text}\n"))[0] == [text]
    assert csv.field_size_limit() >= len(text)


def test_standard_input_is_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    give_standard_input(monkeypatch, "grüß\r\n".encode())
    said: list[str] = []
    assert list(read_documents(["-"], say=said.append)) == [Document("grüß\n", "standard input")]
    assert said == ["CRLF line ends read as LF: standard input"]


def test_a_named_pipe_is_read_like_a_file(tmp_path: Path) -> None:
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


def test_a_folder_is_read_recursively_in_sorted_order_and_what_is_skipped_is_counted_by_suffix(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.py", "a/c.md", "C.TXT", "x.png", "a/y.png", "Makefile", ".hidden/d.txt", ".e.txt"):
        write(tmp_path / name, name)
    texts, said = read(tmp_path)
    assert texts == ["C.TXT", "a/c.md", "a/z.py", "b.txt"]
    assert said == [
        f"hidden, skipped: {tmp_path / '.e.txt'} and 1 more",
        f"no suffix, skipped: {tmp_path / 'Makefile'}",
        f"suffix .png skipped: {tmp_path / 'a/y.png'} and 1 more",
    ]


def test_a_hidden_folder_that_is_asked_for_is_read(tmp_path: Path) -> None:
    write(tmp_path / ".notes" / "a.txt", "text")
    assert read(tmp_path / ".notes")[0] == ["text"]


def test_empty_files_in_a_folder_are_skipped_and_said_once(tmp_path: Path) -> None:
    for name, content in (("a.py", ""), ("b.py", "\n"), ("c.py", "code"), ("d.csv", "text\n")):
        write(tmp_path / name, content)
    texts, said = read(tmp_path)
    assert texts == ["code"]
    assert said == [f"file without text skipped: {tmp_path / 'a.py'} and 2 more"]


def test_liberties_in_many_files_are_one_line_a_kind(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.txt", b"\xef\xbb\xbfone\r\n")
    said = read(tmp_path)[1]
    assert len(said) == 2
    assert all(line.endswith("and 4 more") for line in said)


def test_loops_of_links_end_and_linked_folders_are_read_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder / "a.txt", "text")
    write(tmp_path / "elsewhere" / "b.txt", "linked")
    (folder / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "there").symlink_to(tmp_path / "elsewhere")
    (folder / "there_too").symlink_to(tmp_path / "elsewhere")
    texts, said = read(folder)
    assert sorted(texts) == ["linked", "text"]
    assert any(line.startswith("reached before") and "loop" in line for line in said)


def test_a_text_given_twice_is_read_once_and_that_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text")
    for paths in ([path, path], [path, tmp_path], [tmp_path, path]):
        texts, said = read(*paths)
        assert texts == ["text"]
        assert any(line.startswith("given twice, read once") for line in said)


def test_notes_are_passed_on_even_when_the_reader_stops_early(tmp_path: Path) -> None:
    said: list[str] = []
    paths = [write(tmp_path / "a.txt", "one\r\n"), write(tmp_path / "b.txt", "two")]
    documents = read_documents(paths, say=said.append)
    assert isinstance(documents, Generator)
    next(documents)
    documents.close()
    assert len(said) == 1


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
    ("line of a list", "a.jsonl", '["a"]\n', ["line 1", "a list"]),
    ("line of true", "a.jsonl", "true\n", ["line 1", "true or false"]),
    ("deeply nested", "a.jsonl", "[" * 100_000 + "\n", ["line 1", "nested too deeply"]),
    ("endless number", "a.jsonl", "1" * 10_000 + "\n", ["line 1", "digits"]),
    ("broken json", "a.json", '["a",\n"b"\n', ["line 3", "not JSON"]),
    ("json object", "a.json", '{"text": "a"}', ["not a list", ".jsonl"]),
    ("json item without field", "a.json", '["a", {"Text": "b"}]', ["item 2", "did you mean 'Text'"]),
    ("no text column", "a.csv", "label,body\n1,a\n", ["line 1", "'label', 'body'", "set the text field"]),
    ("nearly a text column", "a.csv", "label,texts\n1,a\n", ["line 1", "did you mean 'texts'"]),
    ("two text columns", "a.csv", "text,text\na,b\n", ["line 1", "2 columns"]),
    ("row too short", "a.csv", "text,label\na,1\nb\n", ["line 3", "1 cells", "2"]),
    ("row too long", "a.tsv", "text\tlabel\na\t1\tx\n", ["line 2", "3 cells"]),
    ("open quote", "a.csv", 'text\na\n"b\nc\n', ["line 3", "quotes"]),
    ("stray quote", "a.tsv", 'text\tlabel\n"a" b\t1\n', ["line 2", "quotes"]),
    ("lone carriage returns", "a.csv", b"text,label\rb,2\r", ["line 1"]),
    ("columns by the hundred", "a.csv", ",".join(f"c{i}" for i in range(500)) + "\n", ["and 492 more"]),
    ("column names of a novel", "a.csv", '"' + "x\ny" * 5000 + '",b\n1,2\n', ["line 1", "…', 'b'"]),
]


@pytest.mark.parametrize(
    ("name", "content", "parts"), [row[1:] for row in BAD_FILES], ids=[row[0] for row in BAD_FILES]
)
def test_a_bad_file_is_one_line_that_names_it(
    tmp_path: Path, name: str, content: str | bytes, parts: list[str]
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 600
    assert [part for part in parts if part not in message] == []


def test_an_empty_file_given_by_name_is_an_error_even_beside_a_full_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"empty\.txt: holds no text"):
        read(write(tmp_path / "full.txt", "text"), write(tmp_path / "empty.txt", ""))


def test_a_missing_path_is_found_by_the_call_and_names_the_nearest_sibling(tmp_path: Path) -> None:
    write(tmp_path / "shakespeare.txt", "text")
    with pytest.raises(DataError, match=r"no such file or folder, did you mean 'shakespeare\.txt'"):
        read_documents([tmp_path / "shakespear.txt"])


def test_a_path_in_a_missing_folder_names_the_nearest_folder(tmp_path: Path) -> None:
    write(tmp_path / "corpus" / "a.txt", "text")
    with pytest.raises(DataError, match="did you mean 'corpus'"):
        read_documents([tmp_path / "corpsu" / "deeper" / "a.txt"])


def test_a_missing_path_with_nothing_like_it_asks_to_check_it(tmp_path: Path) -> None:
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
    write(folder / "mixed" / "a.txt", "fine")
    write(folder / "mixed" / "b.txt", b"\xff")
    return folder / "mixed"


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (make_loop, "leads nowhere or to itself"),
        (make_folder_of_itself, "lead back to it"),
        (make_folder_without_text, "1 skipped"),
        (lambda folder: folder, "0 skipped"),
        (make_folder_of_empty_files, "holds no text"),
        (make_broken_file_in_folder, "b.txt, line 1: not UTF-8"),
        (lambda _: Path("/dev/zero"), "a device"),
        (lambda folder: folder / ("x" * 5000), "cannot be read"),
    ],
)
def test_a_bad_folder_or_path_is_one_line_that_names_it(tmp_path: Path, make, part: str) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["open", "iterdir", "exists"])
def test_a_path_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    write(tmp_path / "a.txt", "text")

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        read(tmp_path)


def test_standard_input_that_is_no_text_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, part in ((b"", "no text"), (b"a\n\xff", "line 2: not UTF-8"), (b"\0", "NUL")):
        give_standard_input(monkeypatch, content)
        with pytest.raises(DataError, match=f"^standard input.*{part}"):
            read("-")


@pytest.mark.parametrize("paths", [[], [""], "a.txt", Path("a.txt"), ["a.txt", ""]])
def test_paths_that_make_no_sense_are_a_usage_error(paths) -> None:
    with pytest.raises(UsageError, match="give a list"):
        read_documents(paths)


# --- real files ------------------------------------------------------------------------------------------------------


def test_a_real_book_with_byte_order_mark_and_crlf_is_read_clean() -> None:
    texts, said = read(real("lm_corpora/war_and_peace.txt"))
    assert len(texts) == 1
    assert not texts[0].startswith("\ufeff")
    assert "\r" not in texts[0]
    assert len(said) == 2


def test_a_real_text_is_read_to_the_byte() -> None:
    path = real("char_lm/tinyshakespeare_input.txt")
    assert read(path) == ([path.read_text(encoding="utf-8")], [])


def test_a_real_table_gives_every_row() -> None:
    path = real("classification/twitter_financial_news_valid.csv")
    with path.open(encoding="utf-8", newline="") as file:
        expected = [row["text"].replace("\r\n", "\n") for row in csv.DictReader(file)]
    assert read(path)[0] == expected


def test_a_real_table_without_a_header_is_refused_with_its_first_cells() -> None:
    with pytest.raises(DataError, match="line 1: no column 'text' among the columns 'one long string"):
        read(real("classification/sst2_dev.tsv"))


def test_a_real_latin_1_file_is_refused_with_the_place_of_the_byte() -> None:
    path = real("classification/trec_train.txt")
    with pytest.raises(ForetellError) as caught:
        read(path)
    with pytest.raises(UnicodeDecodeError) as decoding:
        path.read_bytes().decode("utf-8")
    assert f"offset {decoding.value.start})" in str(caught.value)


def test_real_json_lines_are_read_by_a_named_field() -> None:
    path = real("eval/lambada_openai.jsonl")
    expected = [json.loads(line)["context"] for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert read(path, text_field="context")[0] == expected
