"""Tables in files: rows with named columns from CSV, TSV, JSON, JSON Lines, Parquet and plain lines.

All records are read here: texts, labels, questions, pairs, series and conversations. A format is a class with `rows`,
and an entry in FORMATS.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import importlib
import io
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from foretell.data.lines import CONVERT, LONGEST_LINE, Note, TextFile, find_file, log_note
from foretell.errors import DataError, as_path

TEXT = "text"  # the column name for records without columns: lines, and strings in JSON
ENCODING_ADVICE = "if it is in another encoding, name it: --encoding cp1252"
CONVERT_OTHER = "convert it from the encoding that it has: iconv -f ENCODING -t UTF-8 IN > OUT"
LARGEST_CELL = 2**31 - 1  # characters; the largest limit that csv accepts if a C long has 32 bits
PARQUET_ROWS = 256
# Bytes; without this, Arrow reads a column's part of a whole row group (73 MB of memory for 60 MB, not 14)
PARQUET_BUFFER = 2**20
SEPARATORS = {"\t": "a tab", ";": "a semicolon"}  # separators of .csv files, besides the comma
INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")  # the name of a column with a pandas index
QUOTED = re.compile(r'"[^"]*("|$)')
# A line between tabs in which every cell is quoted, some may be, or only those are quoted that CSV has to quote
ALL_QUOTED, SOME_QUOTED, NEED_QUOTES = (
    re.compile(f"{cell}(\\t{cell})*")
    for cell in (
        r'"[^"\t]*"',
        r'("[^"]*(""[^"]*)*"|[^"\t]*)',
        r'("[^"\t\r]*((""|[\t\r])[^"\t\r]*)+"|[^"\t]*)',
    )
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """A record: its cells by column, and its file and line. Cells of CSV and TSV are strings, others any value.

    has_columns: False for lines and strings in JSON, whose only column is TEXT, and for a blank line, without cells.
    """

    where: str
    cells: dict[str, Any]
    has_columns: bool = True

    @property
    def is_blank(self) -> bool:
        return not self.has_columns and not self.cells


Cells = tuple[str, list[Any]]  # the place and the cells of a row
Choose = Callable[[list[str], str], list[str]]  # (all columns, their place in the file) -> the columns to read


def choose_all(columns: list[str], where: str) -> list[str]:
    """All columns; refuses duplicate names, which are ambiguous."""
    check_unique(columns, columns, where)
    return columns


def check_unique(columns: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse wanted columns whose names occur several times."""
    twice = next((name for name in wanted if columns.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where}: {columns.count(twice)} columns are called {twice!r}; rename all but one")


class Format(ABC):
    """A file format of rows. has_header: the columns are named once, not in each row. suffixes: beyond FORMATS."""

    has_header = False
    suffixes: tuple[str, ...] = ()

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Row]:
        """All rows, including blank ones. Raises DataError, with the line, for one that cannot be read."""

    def cells(self, table: Table) -> Iterator[Cells]:
        """The names of the columns, then the cells of each row in this order; None for a missing cell."""
        header: list[str] = []
        for row in self.rows(table):
            if row.is_blank:
                continue
            if not header:
                header = list(row.cells)
                yield row.where, header
            if more := row.cells.keys() - set(header):
                raise DataError(f"{row.where}: the column {min(more)!r} is not in the first row")
            yield row.where, [row.cells.get(name) for name in header]


class Lines(Format):
    """A record per line, without columns."""

    def rows(self, table: Table) -> Iterator[Row]:
        for line_number, line in enumerate(table.lines(), start=1):
            text = without_end(line)
            yield Row(f"{table.file}, line {line_number}", {TEXT: text} if text.strip() else {}, has_columns=False)


class Delimited(Format):
    """CSV (RFC 4180) and TSV: cells may be quoted, and quoted cells may contain line breaks, unless the quotes are text
    (`quotes_are_text`). A row is located by its first line."""

    has_header = True

    def __init__(self, delimiter: str):
        self.delimiter = delimiter

    def rows(self, table: Table) -> Iterator[Row]:
        rows = self.cells(table)
        first = (str(table), list(table.columns)) if table.columns else next(rows, None)
        if first is None:
            return
        header_at, header = first
        columns = table.choose(header, header_at)
        indices = [header.index(name) for name in columns]
        for where, row in rows:
            if row and row == list(table.columns):
                raise DataError(f"{where}: a header with the names of --columns; leave the option out")
            if not row:
                yield Row(where, {}, has_columns=False)
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{where}: {len(row)} cells, but the header has {len(header)}; quote cells or repair it"
                )
            yield Row(where, {name: row[index] for name, index in zip(columns, indices, strict=True)})

    def cells(self, table: Table) -> Iterator[Cells]:
        """All rows; an empty row has no cells, and rows may differ in length."""
        rows = self._lines(table) if self.delimiter == "\t" and table.has_text_quotes else self._quoted(table)
        return (row for index, row in enumerate(rows) if index or row[1] != ["sep=", ""])  # a first line for Excel

    def _lines(self, table: Table) -> Iterator[Cells]:
        """A row per line, with quotes as text."""
        for line_number, line in enumerate(table.lines(), start=1):
            text = without_end(line)
            yield f"{table.file}, line {line_number}", text.split(self.delimiter) if text else []

    def _quoted(self, table: Table) -> Iterator[Cells]:
        # The limit is global, by default 131,072 characters; raising it does not harm other readers.
        csv.field_size_limit(max(LARGEST_CELL, csv.field_size_limit()))
        rows = csv.reader(table.lines(), delimiter=self.delimiter, strict=True)
        while True:
            where = f"{table.file}, line {rows.line_num + 1}"
            try:
                row = next(rows, None)
            except csv.Error as error:
                reason = str(error).partition(" - ")[0]
                raise DataError(
                    f"{where}: a row that cannot be read ({reason}); put cells with quotes or line breaks into quotes, "
                    "and double the quotes inside"
                ) from None
            if row is None:
                return
            yield where, row


def quotes_are_text(lines: Iterable[str]) -> bool:
    """True for tab-separated lines that are a row each: none has fewer tabs than the first, as line breaks in cells do.

    False if the quotes are a program's: around every cell of the first line, or only around cells with doubled quotes
    or tabs.
    """
    rows = (text for text in map(without_end, lines) if text)
    first = next(rows, "")
    written, is_written = SOME_QUOTED if ALL_QUOTED.fullmatch(first) else NEED_QUOTES, True
    for row in chain([first], rows):
        if row.count("\t") < first.count("\t"):
            return False
        is_written = is_written and ('"' not in row or written.fullmatch(row) is not None)
    return not is_written


def without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def text_line(cells: Sequence[Any], end: str = "\n") -> str:
    """Cells between tabs, with quotes as text. Raises DataError for a cell with a tab or a line break."""
    texts = ["" if cell is None else str(cell) for cell in cells]
    if broken := next((text for text in texts if "\t" in text or "\n" in text), None):
        raise DataError(f"{broken[:60]!r} has a tab or a line break, which a file with quotes as text cannot hold")
    return "\t".join(texts) + end


def csv_line(cells: Sequence[Any], delimiter: str = ",", end: str = "\n") -> str:
    """Cells as a line of CSV; cells with the delimiter, a quote or any line break are quoted."""
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="\r\n").writerow(cells)  # csv quotes cells with CR or LF
    return line.getvalue().removesuffix("\r\n") + end


class JsonLines(Format):
    """A JSON object or string per line; a file that begins with a list is read as one."""

    def rows(self, table: Table) -> Iterator[Row]:
        if next(filter(str.strip, table.lines()), "").lstrip().startswith("["):
            yield from JsonList().rows(table)
            return
        for line_number, line in enumerate(table.lines(), start=1):
            where = f"{table.file}, line {line_number}"
            yield json_row(parse_json(line.rstrip(), where), where) if line.strip() else Row(where, {}, False)


class JsonList(Format):
    """A JSON list of objects or strings."""

    def rows(self, table: Table) -> Iterator[Row]:
        content = table.file.text(table.note_once, *table.decoding)
        if not content.strip():
            return
        if not content.lstrip().startswith("["):
            raise DataError(
                f"{table.file}: not a list of strings or objects; name a file with one object per line .jsonl, and "
                "write pandas frames with to_json(orient='records')"
            )
        for item_number, value in enumerate(parse_json(content, str(table.file)), start=1):
            where = f"{table.file}, item {item_number}"
            yield json_row(value, where)


def json_row(value: Any, where: str) -> Row:
    if isinstance(value, str):
        return Row(where, {TEXT: value}, has_columns=False)
    if not isinstance(value, dict):
        raise DataError(f"{where}: {describe_type(value)}, not an object; write an object with a field for each column")
    return Row(where, value)


def parse_json(content: str, where: str) -> Any:
    """The value of a JSON text; a DataError if it is not valid."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise DataError(f"{where}{line}: not JSON ({error.msg}, column {error.colno}); repair or remove it") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested as deeply
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        raise DataError(f"{where}: JSON that cannot be read ({reason}); repair or remove it") from None


class Parquet(Format):
    """Parquet by pyarrow. Reads only the chosen columns, a few rows at a time. as_text: dates and times are texts."""

    has_header = True

    def __init__(self, as_text: bool = True):
        self.as_text = as_text

    def rows(self, table: Table) -> Iterator[Row]:
        file = table.file
        if file.path is None or file.is_compressed:
            raise DataError(f"{file}: parquet inside a compressed file is not supported; decompress it")
        with file.opened(), open_parquet(file.path) as parquet:
            columns = table.choose(list(parquet.schema_arrow.names), str(file))
            row_number = 0
            # With threads, Arrow would read ahead
            for batch in parquet.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
                for index in range(len(batch)):
                    row_number += 1
                    where = f"{file}, row {row_number}"
                    cells = {name: arrow_value(batch.column(name)[index], name, where) for name in columns}
                    yield Row(where, {name: as_text(cell) if self.as_text else cell for name, cell in cells.items()})


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """The open file; a DataError if pyarrow cannot read it."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DataError(f"{path}: parquet needs a package: pip install 'foretell[data]'") from None
    try:
        with parquet.ParquetFile(path, buffer_size=PARQUET_BUFFER, pre_buffer=False) as file:
            yield file
    except (arrow.lib.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the system, not of the content
            raise
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: damaged, cut short or not parquet ({reason}); get it again") from error


def arrow_value(cell: Any, column: str, where: str) -> Any:
    try:
        return cell.as_py()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: column {column!r} is not UTF-8 (byte {error.start}); repair or remove it") from None


def as_text(value: Any) -> Any:
    """A date, time or decimal number as text; other values are returned unchanged."""
    return str(value) if isinstance(value, datetime.date | datetime.time | Decimal) else value


FORMATS: dict[str, Format] = {
    ".jsonl": JsonLines(),
    ".json": JsonList(),
    ".csv": Delimited(","),
    ".tsv": Delimited("\t"),
    ".parquet": Parquet(),
}
LINES = Lines()


@dataclass(frozen=True)
class Table:
    """The rows of a file, without blank ones; each iteration reads from the beginning.

    encoding: the value of the option --encoding; None: UTF-8. columns: the column names of a CSV or TSV file without a
    header line. otherwise: the format of files whose suffix is not in FORMATS.
    """

    file: TextFile
    encoding: str | None = None
    columns: tuple[str, ...] = ()
    otherwise: Format = LINES
    choose: Choose = field(default=choose_all, compare=False)
    note: Note = field(default=log_note, compare=False)
    noted: set[str] = field(default_factory=set, init=False, compare=False)

    def __iter__(self) -> Iterator[Row]:
        return (row for row in self.records() if not row.is_blank)

    def __str__(self) -> str:
        return str(self.file)

    @property
    def format(self) -> Format:
        return FORMATS.get(self.file.suffix, self.otherwise)

    @property
    def decoding(self) -> tuple[str, str]:
        """The encoding, and the advice for a file in another encoding.

        Latin 1 is read as Windows-1252, as in browsers (WHATWG, Encoding Standard), because the bytes 0x80 to 0x9F of
        files are quotes, dashes and the euro sign.
        """
        if self.encoding is None:
            return "utf-8", CONVERT
        name = codecs.lookup(self.encoding).name
        if name == "utf-8":
            return name, ENCODING_ADVICE
        return "cp1252" if name == "iso8859-1" else name, CONVERT_OTHER

    def records(self) -> Iterator[Row]:
        if self.columns and not isinstance(self.format, Delimited):
            raise DataError(f"{self}: --columns is for .csv and .tsv files, and this is neither")
        return (Delimited(self.separator) if self.format is FORMATS[".csv"] else self.format).rows(self)

    @cached_property
    def separator(self) -> str:
        """The separator of a .csv or .tsv file, empty for others; a tab or semicolon in a .csv file whose first line
        has one instead of commas."""
        if not isinstance(self.format, Delimited):
            return ""
        if self.format is not FORMATS[".csv"] or len(self.columns) == 1:
            return self.format.delimiter
        first = QUOTED.sub("", next(self.lines(), ""))
        candidates = [] if "," in first else [each for each in SEPARATORS if each in first]
        if candidates:
            self.note_once(f"separator   {SEPARATORS[candidates[0]]}, not a comma", str(self))
        return next(iter(candidates), ",")

    @property
    def has_header_line(self) -> bool:
        """True if the first line of a CSV or TSV file has the names of the columns."""
        return isinstance(self.format, Delimited) and not self.columns

    @cached_property
    def has_text_quotes(self) -> bool:
        """True if quotes are text where tabs separate the cells."""
        return quotes_are_text(self.lines())

    @property
    def form(self) -> tuple[str, str]:
        """The encoding and line end of a file like this one: Excel reads UTF-8 only after a byte order mark."""
        with self.file.opened() as file:
            first = file.readline(LONGEST_LINE)
        encoding = "utf-8-sig" if first.startswith(codecs.BOM_UTF8) else "utf-8"
        return encoding, "\r\n" if first.endswith(b"\r\n") else "\n"

    def cells(self) -> Iterator[Cells]:
        """The column names, then the rows as lists of cells; a CSV or TSV file may have no column names."""
        return self.format.cells(self)

    def lines(self) -> Iterator[str]:
        return self.file.lines(self.note_once, *self.decoding)

    def note_once(self, what: str, where: str) -> None:
        """Give a note, unless an earlier reading gave it."""
        if what not in self.noted:
            self.noted.add(what)
            self.note(what, where)

    def first_columns(self) -> list[str]:
        for row in self:
            return list(row.cells)
        raise DataError(f"{self}: has no rows; give a file with a row per example")


def open_table(
    path: str | Path | Table, encoding: str | None = None, columns: tuple[str, ...] = (), otherwise: Format = LINES
) -> Table:
    """The table in a file; raises DataError for a path that is not a file, and for a zip with several files.

    A table in memory is returned with these column names, which it refuses when it is read.
    """
    if isinstance(path, Table):
        return replace(path, columns=columns)
    return Table(find_file(as_path("the file", path)), encoding, columns, otherwise)


def describe_type(value: Any) -> str:
    """The type of a JSON or Arrow value, in words."""
    kinds = {
        str: "a string",
        type(None): "null",
        bool: "true or false",
        list: "a list",
        dict: "an object",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), f"a value of the type {type(value).__name__}")


def without_index(names: Sequence[str]) -> list[str]:
    """The columns without those that pandas writes for an index."""
    return [name for name in names if not INDEX.fullmatch(name)]


def list_names(names: Sequence[str], most: int = 8) -> str:
    """Column names for a message: at most `most` of them, with long names cut."""
    shown = ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in list(names)[:most]) or "none"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
