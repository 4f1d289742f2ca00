"""The texts in a Parquet file, a few rows at a time; needs the package pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foretell.data.records import Note, RecordField, RecordFields, Texts, no_such
from foretell.errors import DataError

SUFFIX = ".parquet"
ROWS_AT_A_TIME = 256
READ_AT_A_TIME = 2**20  # bytes; without it, Arrow reads a column's part of a whole row group (60 MB take 73 MB, not 14)


def iter_parquet(path: Path, fields: RecordFields, note: Note) -> Iterator[tuple[str, Texts]]:
    """(where, texts) of every row, empty ones included; only the columns asked for are read, row group by row group.

    Raises DataError, with the row, for a file that cannot be read, a missing column, and a cell that is not a text.
    """
    with _opened(path) as file:
        columns = _find_columns(file.schema_arrow, path, fields.each(), note)
        row = 0
        # With threads, Arrow reads ahead
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=list(dict.fromkeys(columns)), use_threads=False):
            cells = [batch.column(column) for column in columns]
            for index in range(len(batch)):
                row += 1
                where = f"{path}, row {row}"
                yield (
                    where,
                    tuple(_text(cell[index], column, where) for column, cell in zip(columns, cells, strict=True)),
                )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; what pyarrow cannot read is a DataError."""
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DataError(f"{path}: parquet needs a package: pip install 'foretell[data]'") from None
    try:
        with parquet.ParquetFile(path, buffer_size=READ_AT_A_TIME, pre_buffer=False) as file:
            yield file
    except (arrow.lib.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of the content
            raise
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: damaged, cut short or not parquet ({reason}); get it again") from error


def _find_columns(schema: Any, path: Path, fields: Sequence[RecordField], note: Note) -> list[str]:
    """The column of each field."""
    names = list(schema.names)
    columns = [_find_column(names, path, field, note) for field in fields]
    for column in columns:
        kind = str(schema.field(column).type)
        if not _is_text(kind):
            raise DataError(f"{path}: column {column!r} is of type {kind[:80]}; it must be a string")
    return columns


def _find_column(names: list[str], path: Path, field: RecordField, note: Note) -> str:
    wanted = str(field)
    if names.count(wanted) > 1:
        raise DataError(f"{path}: {names.count(wanted)} columns are called {wanted!r}; rename all but one")
    if wanted in names:
        return wanted
    if len(names) == 1 and field.name is None:
        note(f"no column 'text', so the only one is read, {names[0][:40]!r}", str(path))
        return names[0]
    raise DataError(f"{path}: {no_such('column', field, names)}")


def _is_text(kind: str) -> bool:
    """Whether values of this type of Arrow are strings."""
    if kind.startswith("dictionary<values="):
        kind = kind.removeprefix("dictionary<values=").partition(",")[0]
    return kind in ("string", "large_string", "string_view")


def _text(cell: Any, column: str, where: str) -> str:
    try:
        text = cell.as_py()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: column {column!r} is not UTF-8 (byte {error.start}); repair or remove it") from None
    if text is None:
        raise DataError(f"{where}: column {column!r} is null; it must be a string")
    return text
