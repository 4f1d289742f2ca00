"""Tables in memory: a pandas or polars DataFrame, or a list of dicts, read like tables in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from foretell.data.lines import TextFile
from foretell.data.table import Cells, Format, Row, Table
from foretell.errors import ConfigError, DataError, UsageError, as_path
from foretell.storage.files import write_text

FRAME, ROWS = "the frame", "the rows"


@runtime_checkable
class Frame(Protocol):
    """A pandas or polars DataFrame; neither library is imported."""

    @property
    def columns(self) -> Any: ...

    def __getitem__(self, name: Any, /) -> Any: ...


class Memory(Format):
    """Rows in memory."""

    has_header = True

    def __init__(self, records: Sequence[Row]):
        self.records = records

    def rows(self, table: Table) -> Iterator[Row]:
        return iter(self.records)


def frame_cells(frame: Frame) -> Iterator[Cells]:
    """The column names, then the cells of each row. A pandas index is a column unless it is a plain counter."""
    index = getattr(frame, "index", None)
    if index is not None and len(index) and (any(index.names) or not isinstance(index[0], Integral)):
        frame = cast("Any", frame).reset_index()
    names = list(frame.columns)
    if len(set(names)) < len(names):
        raise DataError(f"{FRAME}: two columns have the same name; rename one")
    yield FRAME, [str(name) for name in names]
    columns = [frame[name].to_list() for name in names]
    for row_number, row in enumerate(zip(*columns, strict=True), start=1):
        yield f"{FRAME}, row {row_number}", list(row)


def check_some(data: object, what: str) -> None:
    """Refuse an empty list, as from a pattern without a match."""
    if isinstance(data, list | tuple) and not data:
        raise DataError(f"no {what} were given: the list is empty")


def list_texts(texts: Any) -> list[Any]:
    """One or several texts as a list. Refuses a frame and a dict, whose items are the names of their columns."""
    if isinstance(texts, Frame | Mapping) or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise UsageError(f"texts must be a text or a list of them, not {kind}; give a column, such as frame['text']")
    return [texts] if isinstance(texts, str) else list(texts)


def as_source(data: Any) -> Path | Table:
    """The path of a file, or a table of rows in memory."""
    check_some(data, "rows")
    if isinstance(data, str | Path):
        return as_path("data", data)
    if isinstance(data, Table):
        return data
    if isinstance(data, Frame):
        (name, header), *cells = frame_cells(data)
        rows = [Row(where, dict(zip(header, row, strict=True))) for where, row in cells]
    elif isinstance(data, Sequence) and data and all(isinstance(each, Mapping) for each in data):
        name, rows = ROWS, [Row(f"{ROWS}, item {number}", {**each}) for number, each in enumerate(data, start=1)]
    else:
        kind = type(data).__name__
        raise ConfigError(f"rows are a path, a DataFrame of pandas or polars, or a list of dicts, not {kind}")
    known = [Row(row.where, {column: known_value(cell) for column, cell in row.cells.items()}) for row in rows]
    return Table(TextFile(Path(name)), otherwise=Memory(known))


def known_value(cell: Any) -> Any:
    """The value of a cell; None if pandas marks it as missing."""
    return None if not isinstance(cell, str) and str(cell) in ("nan", "<NA>", "NaT") else cell


def write_rows(table: Table, path: Path) -> None:
    """Write a table as JSON Lines, which gives the same rows when read."""
    write_text(path, "".join(json.dumps(row.cells, default=str) + "\n" for row in table))
