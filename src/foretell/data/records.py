"""The texts in one file: lines decoded strictly, JSON Lines, JSON lists and tables parsed record by record."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from foretell.errors import DataError, did_you_mean

RECORD_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
RECORD_LINES = (".jsonl", ".csv", ".tsv")  # read record by record, never held as a whole
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
CONVERT = "convert it, for example: iconv -f LATIN1 -t UTF-8 IN > OUT"
LARGEST_CELL = 2**31 - 1  # characters; the most that csv accepts where a C long has 32 bits


class LineFile(Protocol):
    """What is needed of a file: its lines, and some bytes after a line for a message."""

    def __iter__(self) -> Iterator[bytes]: ...

    def read(self, count: int, /) -> bytes: ...


Note = Callable[[str, str], None]  # takes what was done to the input, and where


Texts = tuple[str, ...]  # of one record, a text for each field asked for


class RecordField(NamedTuple):
    """A field, and the option that names it. None: `text`, or the only column."""

    name: str | None
    option: str

    def __str__(self) -> str:
        return self.name or "text"


@dataclass(frozen=True)
class RecordFields:
    """What is read of each record: the field `text`, or the only column, or the fields named.

    text: another name for that field. answer: a second field, and `text` is then that of the prompt. by_line: each
    line of a file without fields is a record.
    """

    text: str | None = None
    answer: str | None = None
    by_line: bool = False

    def each(self) -> tuple[RecordField, ...]:
        """The fields, one for each text of a record."""
        if self.answer is None:
            return (RecordField(self.text, "--text-field"),)
        return RecordField(self.text, "--prompt-field"), RecordField(self.answer, "--answer-field")


def iter_records(
    file: LineFile, name: str, suffix: str, fields: RecordFields, note: Note
) -> Iterator[tuple[str, Texts]]:
    """(where, texts) of every record, empty ones included; a file of another suffix is one record, or one per line.

    Raises DataError, with the line, for a file that is not UTF-8 or whose records cannot be read.
    """
    lines = iter_lines(file, name, note)
    if suffix == ".jsonl":
        yield from _iter_json_lines(lines, name, fields.each())
    elif suffix == ".json":
        yield from _iter_json_list("".join(lines), name, fields.each())
    elif suffix in (".csv", ".tsv"):
        yield from _iter_table(lines, name, fields.each(), "," if suffix == ".csv" else "\t", note)
    elif fields.answer is not None:
        raise DataError(
            f"{name}: has no fields {fields.text!r} and {fields.answer!r}; give .jsonl, .json, .csv or .tsv"
        )
    elif fields.by_line:
        for line_number, line in enumerate(lines, start=1):
            yield f"{name}, line {line_number}", (line.removesuffix("\n").removesuffix("\r"),)
    else:
        yield name, ("".join(lines),)


# --- lines -----------------------------------------------------------------------------------------------------------


def iter_lines(file: LineFile, name: str, note: Note, encoding: str = "utf-8", advice: str = CONVERT) -> Iterator[str]:
    """The decoded lines with their ends, cut at LF only: str.splitlines would also cut at U+2028 and form feeds.

    advice: the end of the message for a file that is not UTF-8.
    """
    offset = 0
    for line_number, line in enumerate(file, start=1):
        where = f"{name}, line {line_number}"
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            raise _not_text(where, line + file.read(4096), error.start, offset, advice) from None
        if "\0" in text:
            raise _not_text(where, line, line.index(b"\0"), offset, advice)
        if line_number == 1 and text.startswith("\ufeff"):
            note("byte order mark dropped", name)
            text = text[1:]
        offset += len(line)
        yield text


def _not_text(where: str, content: bytes, index: int, offset: int, advice: str) -> DataError:
    """The error for bytes that are not UTF-8 text, the first of them `content[index]`; `offset` is that of content[0].

    `content` extends beyond the line, since an image or archive seldom has its first NUL in its first line, and iconv
    is the wrong advice for such a file.
    """
    if b"\0" not in content:
        what = f"not UTF-8 (byte 0x{content[index]:02x} at offset {offset + index})"
        return DataError(f"{where}: {what}; {advice}")
    if content.startswith(UTF16_MARKS):
        return DataError(f"{where}: this is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 IN > OUT")
    return DataError(f"{where}: NUL bytes, so this is not a text; give .txt, .jsonl, .json, .csv or .tsv")


# --- JSON ------------------------------------------------------------------------------------------------------------


def _iter_json_lines(lines: Iterator[str], name: str, fields: Sequence[RecordField]) -> Iterator[tuple[str, Texts]]:
    for line_number, line in enumerate(lines, start=1):
        where = f"{name}, line {line_number}"
        yield (
            where,
            _texts_of(parse_json(line.rstrip(), where), where, fields) if line.strip() else ("",) * len(fields),
        )


def _iter_json_list(content: str, name: str, fields: Sequence[RecordField]) -> Iterator[tuple[str, Texts]]:
    if not content.strip():
        return
    values = parse_json(content, name)
    if not isinstance(values, list):
        raise DataError(f"{name}: not a list of strings or objects; name a file with one object per line .jsonl")
    for item_number, value in enumerate(values, start=1):
        where = f"{name}, item {item_number}"
        yield where, _texts_of(value, where, fields)


def parse_json(content: str, where: str) -> Any:
    """The value of a JSON text; a DataError for anything else."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(f"{where}{line}: not JSON ({error.msg}, column {error.colno}); repair or remove it") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested as deeply
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        raise DataError(f"{where}: JSON that cannot be read ({reason}); repair or remove it") from None


def _texts_of(value: Any, where: str, fields: Sequence[RecordField]) -> Texts:
    if isinstance(value, str) and len(fields) == 1:
        return (value,)
    if not isinstance(value, dict):
        written = "an object with the fields" if len(fields) > 1 else "a string, or an object with the field"
        names = " and ".join(repr(str(field)) for field in fields)
        raise DataError(f"{where}: {_kind(value)}; write {written} {names}")
    return tuple(_text_of(value, where, field) for field in fields)


def _text_of(value: dict[str, Any], where: str, field: RecordField) -> str:
    name = str(field)
    if name not in value:
        raise DataError(f"{where}: {no_such('field', field, list(value))}")
    if not isinstance(value[name], str):
        raise DataError(f"{where}: field {name!r} is {_kind(value[name])}; it must be a string")
    return value[name]


def _kind(value: Any) -> str:
    names = {str: "a string", type(None): "null", bool: "true or false", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def no_such(kind: str, wanted: RecordField, known: list[str]) -> str:
    """Why a field or column is not there: the names that are, and the option that chooses one."""
    shown = ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in known[:8]) or "none"
    more = f" and {len(known) - 8} more" if len(known) > 8 else ""
    advice = f"{did_you_mean(str(wanted), known)}; name the right one with {wanted.option}"
    return f"no {kind} {str(wanted)!r} among the {kind}s {shown}{more}{advice}"


# --- tables ----------------------------------------------------------------------------------------------------------


def _iter_table(
    lines: Iterator[str], name: str, fields: Sequence[RecordField], delimiter: str, note: Note
) -> Iterator[tuple[str, Texts]]:
    """The columns asked for of every row; a row is located by the line on which it starts."""
    rows = csv_rows(lines, delimiter)
    header = next_row(rows, name)
    if header is None:
        return
    columns = [_column(header, name, field, note) for field in fields]
    line_number = rows.line_num + 1
    while (row := next_row(rows, name)) is not None:
        where = f"{name}, line {line_number}"
        check_cells(row, header, where)
        yield where, tuple(row[column] if row else "" for column in columns)
        line_number = rows.line_num + 1


def csv_rows(lines: Iterator[str], delimiter: str) -> Any:
    """The rows of a table, with the number of the last line read in `line_num`."""
    # The limit is one for the whole process, at first 131,072 characters; raising it harms no other reader.
    csv.field_size_limit(max(LARGEST_CELL, csv.field_size_limit()))
    return csv.reader(lines, delimiter=delimiter, strict=True)


def check_cells(row: list[str], header: Sequence[str], where: str) -> None:
    """Refuse a row with more or fewer cells than the header; an empty row has none."""
    if row and len(row) != len(header):
        raise DataError(f"{where}: {len(row)} cells, but the header has {len(header)}; quote cells or repair it")


def next_row(rows: Any, name: str) -> list[str] | None:
    """The next row, None at the end; a DataError with the line on which a broken one starts."""
    start = rows.line_num + 1
    try:
        return next(rows, None)
    except csv.Error as error:
        raise DataError(
            f"{name}, line {start}: a row that cannot be read ({error}); "
            "put a cell that holds quotes into quotes and double those inside"
        ) from None


def _column(header: list[str], name: str, field: RecordField, note: Note) -> int:
    wanted = str(field)
    if header.count(wanted) > 1:
        raise DataError(f"{name}, line 1: {header.count(wanted)} columns are called {wanted!r}; rename all but one")
    if wanted in header:
        return header.index(wanted)
    if len(header) == 1 and field.name is None:
        note(f"no column 'text', so the only one is read, {header[0][:40]!r} (line 1 names columns)", name)
        return 0
    raise DataError(f"{name}, line 1: {no_such('column', field, header)}")
