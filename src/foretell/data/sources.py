"""Documents from text files, JSON Lines, JSON, CSV, TSV, folders and standard input.

Text is UTF-8, read strictly: bytes that do not decode are an error, never a replacement character. Every
liberty taken with the bytes (byte order marks, CRLF, empty documents, files passed over) is said.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from foretell.data.large import LARGE, LargeDocument, has_crlf, is_clean
from foretell.errors import DataError, UsageError, did_you_mean

# What a folder is searched for; a file named by itself is read whatever its suffix.
PROSE_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".org")
RECORD_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
CODE_SUFFIXES = (
    *(".c", ".cc", ".cpp", ".cs", ".go", ".h", ".hpp", ".java", ".jl", ".js", ".kt", ".lua", ".php", ".pl"),
    *(".py", ".pyi", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".ts"),
)
FOLDER_SUFFIXES = frozenset((*PROSE_SUFFIXES, *RECORD_SUFFIXES, *CODE_SUFFIXES))

STANDARD_INPUT = "standard input"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
REACHED_BEFORE = "reached before, skipped"
LARGEST_CELL = 2**31 - 1  # characters; the most that csv accepts where a C long has 32 bits


@dataclass(frozen=True)
class Document:
    """One text, and where it came from (`notes.txt`, or `reviews.csv, line 3`)."""

    text: str
    source: str

    @property
    def utf8_bytes(self) -> int:
        """The length of the text in UTF-8."""
        return len(self.text.encode("utf-8"))

    def pieces(self) -> Iterator[str]:
        """The text in parts; here it is in memory, and there is one."""
        yield self.text


AnyDocument = Document | LargeDocument


@dataclass
class _Notes:
    """What happened to the input, counted by kind with the first place of each: a folder says a line, not 10,000."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, where: str | Path) -> None:
        self.counts[what] += 1
        self.first.setdefault(what, str(where))

    def pass_on(self, say: Callable[[str], None]) -> None:
        for what, count in self.counts.items():
            say(f"{what}: {self.first[what]}" + (f" and {count - 1:,} more" if count > 1 else ""))
        self.counts.clear()
        self.first.clear()


@dataclass(frozen=True)
class _Input:
    """One file to read (no path: standard input); only in a folder may it be empty."""

    path: Path | None
    in_folder: bool = False

    @property
    def suffix(self) -> str:
        return "" if self.path is None else self.path.suffix.lower()

    def __str__(self) -> str:
        return STANDARD_INPUT if self.path is None else str(self.path)


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def read_documents(
    paths: Sequence[str | Path],
    *,
    text_field: str | None = None,
    say: Callable[[str], None] = _say_on_stderr,
) -> Iterator[AnyDocument]:
    """The documents of files, folders (recursively, in sorted order) and `-` (standard input), in the order given.

    A `.jsonl` file holds one document a line, a `.json` file a list of them (strings, or objects with the field
    `text`), `.csv` and `.tsv` one a row (column `text`, or the only column); `text_field` names another field.
    Every other file is one document, from LARGE bytes on one that is read in pieces and never held. Line ends
    become LF, a byte order mark is dropped, documents of nothing but whitespace and files reached twice are
    skipped: each is said through `say`, one line a kind.

    Raises UsageError for no or an empty path and DataError for whatever is missing, empty, unreadable, binary, not
    UTF-8 or malformed, with the line. Missing paths and fruitless folders are found by the call itself, before the
    first document is asked for.
    """
    if isinstance(paths, str | Path) or not paths or not all(str(path) for path in paths):
        raise UsageError(f"paths {paths!r}: give a list of at least one file, folder or '-' for standard input")
    notes = _Notes()
    try:
        inputs = _find_inputs(paths, notes)
    finally:
        notes.pass_on(say)
    return _iter_documents(inputs, text_field, notes, say)


def _iter_documents(
    inputs: list[_Input], text_field: str | None, notes: _Notes, say: Callable[[str], None]
) -> Iterator[AnyDocument]:
    found_any = False
    try:
        for source in inputs:
            for document in _iter_documents_of(source, text_field, notes):
                found_any = True
                yield document
    finally:
        notes.pass_on(say)
    if not found_any:
        raise DataError(f"{inputs[0]}: holds no text, and neither does any file beside it; give files with text")


def _iter_documents_of(source: _Input, text_field: str | None, notes: _Notes) -> Iterator[AnyDocument]:
    if source.path is not None and _is_large(source):
        yield _large_document(source, source.path, notes)
        return
    found_any = False
    for where, text in _iter_records(source, text_field, notes):
        if not text.strip():
            if source.suffix in RECORD_SUFFIXES:
                notes.add("empty document skipped", where)
            continue
        found_any = True
        yield Document(_with_newlines(_encodable(text, where), where, notes), where)
    if not found_any and source.in_folder:
        notes.add("file without text skipped", str(source))
    elif not found_any:
        raise DataError(f"{source}: holds no text (empty, or nothing but whitespace); give a file with text")


def _is_large(source: _Input) -> bool:
    """Is this one text that should not be held as a whole?"""
    with _reading(str(source)):
        return source.suffix not in RECORD_SUFFIXES and source.path is not None and source.path.stat().st_size >= LARGE


def _large_document(source: _Input, path: Path, notes: _Notes) -> LargeDocument:
    """Read a file once, in pieces, so that everything that `_iter_lines` would say of it is said first."""
    with _reading(str(source)):
        status = path.stat()
        with path.open("rb") as file:
            start = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    if start:
        notes.add("byte order mark dropped", str(source))
    document = LargeDocument(path, str(source), start, status.st_size, status.st_mtime_ns)
    if not is_clean(path):
        with _opened(source) as file:  # the first fault is an error that names its line
            for _ in _iter_lines(file, str(source), _Notes()):
                pass
    if not any(piece.strip() for piece in document.pieces()):
        raise DataError(f"{source}: holds no text (empty, or nothing but whitespace); give a file with text")
    if has_crlf(path):
        notes.add("CRLF line ends read as LF", str(source))
    return document


def _encodable(text: str, where: str) -> str:
    """The text, unless a JSON escape such as \\ud800 put half a character into it, which UTF-8 cannot carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where}: {half} is half of a surrogate pair, not a character; write both or none") from None
    return text


def _with_newlines(text: str, where: str, notes: _Notes) -> str:
    if "\r\n" not in text:
        return text
    notes.add("CRLF line ends read as LF", where)
    return text.replace("\r\n", "\n")


# --- finding ---------------------------------------------------------------------------------------------------------


def _find_inputs(paths: Sequence[str | Path], notes: _Notes) -> list[_Input]:
    """Every file to read, once: a text read twice would be in the training and the validation part."""
    inputs: list[_Input] = []
    seen: set[str] = set()
    for path in paths:
        if str(path) == "-":
            found = [] if "-" in seen else [_Input(None)]
            seen.add("-")
        else:
            with _reading(str(path)):
                found = _find_at(Path(path), seen, notes)
        inputs += found
        if not found:
            notes.add("given twice, read once", path)
    if not inputs:
        raise DataError(f"{paths[0]}: only links that lead back to it; give files with text")
    return inputs


def _find_at(path: Path, seen: set[str], notes: _Notes) -> list[_Input]:
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: a link that leads nowhere or to itself; give the file it should lead to")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder{_nearest_name(path) or '; check the path'}")
    if path.is_char_device() or path.is_block_device():
        raise DataError(f"{path}: a device, not a text; give a file, or '-' for standard input")
    if path.is_dir():
        return _find_in_folder(path, seen, notes)
    return [_Input(path)] if _is_new(path, seen) else []


def _is_new(path: Path, seen: set[str]) -> bool:
    real = os.path.realpath(path)  # Path.resolve raises RuntimeError on a loop of links
    if real in seen:
        return False
    seen.add(real)
    return True


def _find_in_folder(folder: Path, seen: set[str], notes: _Notes) -> list[_Input]:
    if not _is_new(folder, seen):
        return []
    inputs: list[_Input] = []
    skipped: Counter[str] = Counter()
    pending = sorted(folder.iterdir(), reverse=True)
    while pending:
        path = pending.pop()
        if reason := _why_skipped(path, seen):
            notes.add(reason, path)
            skipped[reason] += 1
        elif path.is_dir():
            pending += sorted(path.iterdir(), reverse=True)
        else:
            inputs.append(_Input(path, in_folder=True))
    if not inputs and REACHED_BEFORE not in skipped:
        examples = ", ".join((*PROSE_SUFFIXES[:3], *RECORD_SUFFIXES))
        raise DataError(
            f"{folder}: no file to read in this folder ({skipped.total():,} skipped); "
            f"it should hold files such as {examples}, or name the files one by one"
        )
    return inputs


def _why_skipped(path: Path, seen: set[str]) -> str | None:
    """Why a folder's entry is passed over, or None where it is to be read or entered."""
    if path.name.startswith("."):
        return "hidden, skipped"
    if not (path.is_file() or path.is_dir()):
        return "neither file nor folder, skipped"
    if path.is_file() and path.suffix.lower() not in FOLDER_SUFFIXES:
        return f"suffix {path.suffix.lower()} skipped" if path.suffix else "no suffix, skipped"
    return None if _is_new(path, seen) else REACHED_BEFORE


def _nearest_name(path: Path) -> str:
    """What the first missing part of a path could have meant."""
    while not path.parent.exists():
        path = path.parent
    return did_you_mean(path.name, (entry.name for entry in path.parent.iterdir())) if path.parent.is_dir() else ""


# --- reading ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or name}: cannot be read ({error.strerror}); check what it is and who may read it"
        ) from error


@contextlib.contextmanager
def _opened(source: _Input) -> Iterator[BinaryIO]:
    with _reading(str(source)):
        if source.path is None:
            yield sys.stdin.buffer
        else:
            with source.path.open("rb") as file:
                yield file


def _iter_records(source: _Input, text_field: str | None, notes: _Notes) -> Iterator[tuple[str, str]]:
    """(where, text) of every record, empty ones included; a file that is no list of records is one."""
    name, suffix = str(source), source.suffix
    with _opened(source) as file:
        lines = _iter_lines(file, name, notes)
        if suffix == ".jsonl":
            yield from _iter_json_lines(lines, name, text_field)
        elif suffix == ".json":
            yield from _iter_json_list("".join(lines), name, text_field)
        elif suffix in (".csv", ".tsv"):
            yield from _iter_rows(lines, name, text_field, "," if suffix == ".csv" else "\t", notes)
        else:
            yield name, "".join(lines)


def _iter_lines(file: BinaryIO, name: str, notes: _Notes) -> Iterator[str]:
    """The decoded lines with their ends, cut at LF only: str.splitlines would also cut at U+2028 and form feeds."""
    offset = 0
    for number, line in enumerate(file, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_text(f"{name}, line {number}", line + file.read(4096), error.start, offset) from None
        if "\0" in text:
            raise _not_text(f"{name}, line {number}", line, line.index(b"\0"), offset)
        if number == 1 and text.startswith("\ufeff"):
            notes.add("byte order mark dropped", name)
            text = text[1:]
        offset += len(line)
        yield text


def _not_text(where: str, content: bytes, at: int, offset: int) -> DataError:
    """The error for bytes that are no UTF-8 text, `content[at]` the first of them, `content[0]` at `offset`.

    An image or archive seldom has its first NUL in its first line, so the content goes on beyond that: to call such a
    file badly encoded would send its owner to iconv.
    """
    if b"\0" not in content:
        what = f"not UTF-8 (byte 0x{content[at]:02x} at offset {offset + at})"
        return DataError(f"{where}: {what}; convert it, for example: iconv -f LATIN1 -t UTF-8 IN > OUT")
    if content.startswith(UTF16_MARKS):
        return DataError(f"{where}: this is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT")
    return DataError(f"{where}: NUL bytes, so this is not a text; give .txt, .jsonl, .json, .csv or .tsv")


def _iter_json_lines(lines: Iterator[str], name: str, text_field: str | None) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, start=1):
        where = f"{name}, line {number}"
        yield where, _text_of(_parse_json(line.rstrip(), where), where, text_field) if line.strip() else ""


def _iter_json_list(content: str, name: str, text_field: str | None) -> Iterator[tuple[str, str]]:
    if not content.strip():
        return
    values = _parse_json(content, name)
    if not isinstance(values, list):
        raise DataError(f"{name}: not a list of strings or objects; name a file with one object a line .jsonl")
    for number, value in enumerate(values, start=1):
        where = f"{name}, item {number}"
        yield where, _text_of(value, where, text_field)


def _parse_json(content: str, where: str) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(f"{where}{line}: not JSON ({error.msg}, column {error.colno}); repair or remove it") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested as deep
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        raise DataError(f"{where}: JSON that cannot be read ({reason}); repair or remove it") from None


def _text_of(value: Any, where: str, text_field: str | None) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise DataError(f"{where}: {_kind(value)}; write a string, or an object with the field 'text'")
    wanted = text_field or "text"
    if wanted not in value:
        raise DataError(f"{where}: {_no_such('field', wanted, list(value))}")
    if not isinstance(value[wanted], str):
        raise DataError(f"{where}: field {wanted!r} is {_kind(value[wanted])}; it must be a string")
    return value[wanted]


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def _no_such(kind: str, wanted: str, known: list[str]) -> str:
    shown = ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in known[:8]) or "none"
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    advice = did_you_mean(wanted, known) or "; set the text field to the right one"
    return f"no {kind} {wanted!r} among the {kind}s {shown}{more}{advice}"


def _iter_rows(
    lines: Iterator[str], name: str, text_field: str | None, delimiter: str, notes: _Notes
) -> Iterator[tuple[str, str]]:
    """The text column of every row; the place of a row is the line on which it starts."""
    # One setting for the whole process, and 131,072 characters at first; only ever raised, so no other reader suffers.
    csv.field_size_limit(max(LARGEST_CELL, csv.field_size_limit()))
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _next_row(rows, name)
    if header is None:
        return
    column = _text_column(header, name, text_field, notes)
    line = rows.line_num + 1
    while (row := _next_row(rows, name)) is not None:
        where = f"{name}, line {line}"
        if row and len(row) != len(header):
            raise DataError(f"{where}: {len(row)} cells where the header has {len(header)}; quote cells or repair it")
        yield where, row[column] if row else ""
        line = rows.line_num + 1


def _next_row(rows: Any, name: str) -> list[str] | None:
    start = rows.line_num + 1
    try:
        return next(rows, None)
    except csv.Error as error:
        raise DataError(
            f"{name}, line {start}: a row that cannot be read ({error}); "
            "put a cell that holds quotes into quotes and double those inside"
        ) from None


def _text_column(header: list[str], name: str, text_field: str | None, notes: _Notes) -> int:
    wanted = text_field or "text"
    if header.count(wanted) > 1:
        raise DataError(f"{name}, line 1: {header.count(wanted)} columns are called {wanted!r}; rename all but one")
    if wanted in header:
        return header.index(wanted)
    if len(header) == 1 and text_field is None:
        notes.add(f"no column 'text', so the only one is read, {header[0][:40]!r} (line 1 names columns)", name)
        return 0
    raise DataError(f"{name}, line 1: {_no_such('column', wanted, header)}")
