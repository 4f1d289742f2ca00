"""Rows with named columns, one at a time: CSV, TSV, JSON Lines, a JSON list of objects, or the lines of a text."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from foretell.data.records import check_cells, csv_rows, iter_lines, next_row, parse_json
from foretell.errors import DataError

TEXT = "text"  # the column of a file that has no columns: a line, or a string in JSON
ENCODINGS = {"utf-8": "utf-8", "latin-1": "latin-1", "cp1252": "cp1252"}
DELIMITERS = {".csv": ",", ".tsv": "\t"}
ADVICE = "if it is in another encoding, name it: --encoding latin-1"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One record: its cells by column, and its file and line. A cell of a table is a string, one of JSON any value."""

    where: str
    cells: dict[str, Any]


@dataclass(frozen=True)
class RowFile:
    """A file of rows, read from the beginning by each iteration.

    columns: the names of the columns of a CSV or TSV file without a header line. Raises DataError, with the line, for
    a file or row that cannot be read, and for columns of the same name.
    """

    path: Path
    encoding: str = "utf-8"
    columns: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file; check the path")
        if not self.path.is_file():
            raise DataError(f"{self.path} is not a file; give a .csv, .tsv, .jsonl or .json file")
        try:
            with self.path.open("rb") as file:
                yield from self._rows(file)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror}); check its permissions") from error

    @property
    def suffix(self) -> str:
        """The kind of the file."""
        return self.path.suffix.lower()

    def first_columns(self) -> list[str]:
        """The columns of the first row."""
        for row in self:
            return list(row.cells)
        raise DataError(f"{self.path}: it has no rows; give a file with a row per example")

    def _rows(self, file: BinaryIO) -> Iterator[Row]:
        if self.columns and self.suffix not in DELIMITERS:
            raise DataError(f"{self.path}: --columns names the columns of .csv and .tsv files; this is neither")
        lines = iter_lines(file, str(self.path), log_note, self.encoding, ADVICE)
        if self.suffix in DELIMITERS:
            yield from self._table_rows(lines)
        elif self.suffix == ".json":
            yield from self._list_rows("".join(lines))
        else:
            for number, line in enumerate(lines, start=1):
                where = f"{self.path}, line {number}"
                if line.strip():
                    text = line.rstrip("\r\n")
                    yield (
                        object_row(parse_json(text, where), where)
                        if self.suffix == ".jsonl"
                        else Row(where, {TEXT: text})
                    )

    def _table_rows(self, lines: Iterator[str]) -> Iterator[Row]:
        rows = csv_rows(lines, DELIMITERS[self.suffix])
        header = list(self.columns) or next_row(rows, str(self.path)) or []
        check_header(header, str(self.path))
        line_number = rows.line_num + 1
        while (row := next_row(rows, str(self.path))) is not None:
            where = f"{self.path}, line {line_number}"
            check_cells(row, header, where)
            if row:
                yield Row(where, dict(zip(header, row, strict=True)))
            line_number = rows.line_num + 1

    def _list_rows(self, content: str) -> Iterator[Row]:
        values = parse_json(content, str(self.path))
        if not isinstance(values, list):
            raise DataError(f"{self.path}: not a list of objects; name a file with one object per line .jsonl")
        for number, value in enumerate(values, start=1):
            where = f"{self.path}, item {number}"
            yield object_row(value, where)


def object_row(value: Any, where: str) -> Row:
    """A value of JSON as a row: an object, or a string as its text."""
    if isinstance(value, str):
        return Row(where, {TEXT: value})
    if not isinstance(value, dict):
        raise DataError(f"{where}: not an object; write one with a field for the text and one for the label")
    return Row(where, value)


def check_header(header: Sequence[str], name: str) -> None:
    """Refuse columns of the same name, which could not be told apart."""
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"{name}, line 1: {header.count(twice)} columns are called {twice!r}; rename all but one")


def log_note(what: str, where: str) -> None:
    """Log what was done to the input."""
    logger.warning(f"{where}: {what}")
