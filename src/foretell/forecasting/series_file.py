"""Series from files and frames: rows, decimal marks, and layouts.

- long: a column of names, one of times, one of values; the names unique_id, ds, y and item_id, timestamp, target are
  known
- wide: a column per series, and one of their times
- a row per series, the first cell its name (the files of the M4 competition); shorter rows may end in empty cells
- one column: one series, its times are 1, 2, 3, ...
"""

from __future__ import annotations

import csv
import datetime as dt
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from foretell.data.lines import content_suffix
from foretell.data.memory import FRAME, Frame, check_some, frame_cells
from foretell.data.numbers import LARGEST, may_group, plain_number, proves, two_readings, unit_of
from foretell.data.table import FORMATS, Cells, Delimited, Parquet, csv_line, open_table
from foretell.errors import DataError, UsageError, as_path, check_type, counted
from foretell.forecasting.date_format import choose_date_format, is_time
from foretell.forecasting.series import (
    Series,
    Timeline,
    absent_weekdays,
    find_timeline,
    frequencies,
    lone_timeline,
    numbered,
    too_large,
)
from foretell.forecasting.series_layout import (
    DETECT,
    LAYOUTS,
    MISSING,
    TIME_NAMES,
    FormatHints,
    Layout,
    SeriesFormat,
    SeriesTable,
    TableRow,
    TableRows,
    choose_layout,
    is_counting,
    is_number,
    refuse_unread_dates,
    with_header,
)
from foretell.storage.files import write_text

SEPARATORS = "\t;|,"  # the comma is last, because commas next to another separator are decimal
SNIFFED_LINES = 20
MIDNIGHT = " 00:00:00"

logger = logging.getLogger(__name__)


@runtime_checkable
class LazyFrame(Protocol):
    """A query of polars, which makes a frame."""

    def collect(self) -> Frame: ...


SeriesSource = str | Path | Frame | LazyFrame | Sequence[str | Path]  # a folder means the files in it


def read_series(
    path: SeriesSource, columns: Sequence[str] = (), given: SeriesFormat = DETECT, remembered: SeriesFormat = DETECT
) -> list[Series]:
    """The series of files, a folder or a frame. columns: the series to read, if each column is one.

    given: a format that must fit the file. remembered: another file's format, which resolves ambiguity. Missing values
    at the beginning and end of a series are dropped; omissions are logged. Raises DataError.
    """
    return read_series_data(path, columns, given, remembered)[0]


def read_series_data(
    path: SeriesSource, columns: Sequence[str] = (), given: SeriesFormat = DETECT, remembered: SeriesFormat = DETECT
) -> tuple[list[Series], SeriesFormat]:
    """Like `read_series`, and returns the format; for several files, the common part of their formats."""
    check_given(given)
    check_given(remembered)
    check_type("columns", columns, list | tuple, "a list of names")
    sources = list_sources(path)
    tables = [read_table(source, columns, FormatHints(given, remembered)) for source in sources]
    formats = [each.model_dump() for _, each in tables]
    shared = {name: value for name, value in formats[0].items() if all(each[name] == value for each in formats)}
    return joined(sources, [series for series, _ in tables]), SeriesFormat(**shared)


def list_sources(source: SeriesSource) -> list[Path | Frame]:
    """The frame, or the files; a folder means its files, sorted by name. Raises DataError for an empty folder."""
    check_some(source, "files")
    if isinstance(source, LazyFrame):
        return [source.collect()]
    if not isinstance(source, str | Path | list | tuple):
        return [cast("Frame", source)]  # other types are refused when read
    sources: list[Path | Frame] = []
    for name in [source] if isinstance(source, str | Path) else source:
        path = as_path("data", name)
        inside = [each for each in path.rglob("*") if content_suffix(each) in FORMATS and each.is_file()]
        if path.is_dir() and not inside:
            raise DataError(f"{path}: no file with series in this folder ({', '.join(FORMATS)})")
        sources += sorted(inside) or [path]
    return sources


def joined(sources: Sequence[Path | Frame], tables: Sequence[list[Series]]) -> list[Series]:
    """The series of all files. Names that occur in several files are prefixed with the file's name."""
    counts = Counter(each.unique_id for series in tables for each in series)
    made: dict[str, Series] = {}
    for source, series in zip(sources, tables, strict=True):
        for each in series:
            name = each.unique_id
            name = f"{source.stem}/{name}" if counts[name] > 1 and isinstance(source, Path) else name
            if name in made:
                raise DataError(f"{source}: a second series '{name[:80]}'; give each file its own name")
            made[name] = replace(each, unique_id=name)
    return list(made.values())


def read_table(source: Path | Frame, columns: Sequence[str], hints: FormatHints) -> tuple[list[Series], SeriesFormat]:
    cells, separator, zones = table_cells(source, hints)
    name = str(source if isinstance(source, Path) else FRAME)
    table = make_table(cells, name, has_names=separator is None, date_format=hints.date_format)
    refuse_periods(table.body[0])
    refuse_labels(table)
    layout = choose_layout(table, columns, hints)
    decimal = choose_decimal(table, layout, hints, separator)
    groups = groups_of(table, layout, decimal or ".", hints.date_format)
    date_format = date_format_of(table, layout, hints)
    zone = None if layout.time is None else zones.get(table.names[layout.time])
    untrimmed = on_timelines(groups, table.name, date_format, zone)
    series = with_values(untrimmed, table.name)
    warn_of_gaps(series, untrimmed, ends_may_be_empty=layout.kind == "rows")
    resolved = SeriesFormat(
        id_column=None if layout.id is None or layout.kind == "rows" else table.names[layout.id],
        time_column=None if layout.time is None else table.names[layout.time],
        target_column=table.names[layout.values[0]] if layout.kind == "long" else hints.given.target_column,
        separator=separator,
        decimal=decimal,
        date_format=date_format,
    )
    logger.info(f"layout      {layout.describe(table.names)}; {describe_format(series, resolved)}")
    return series, resolved


def make_table(cells: Iterable[Cells], name: str, *, has_names: bool, date_format: str | None) -> SeriesTable:
    """The rows with their header. has_names: the columns have names, and an empty row is a missing value."""
    rows = TableRows()
    for where, row in cells:
        texts = ["" if cell is None else str(cell).strip() for cell in row]
        if has_names or any(texts):
            rows.append(texts, where)
    if not len(rows):
        raise DataError(f"{name} is empty; {LAYOUTS}")
    header, below = rows[0], rows.below_header()
    table = SeriesTable(header.cells, header.where, below, name) if has_names else with_header(rows, name, date_format)
    if not len(table.body):
        raise DataError(f"{name} has a header and no values")
    return table


def with_values(untrimmed: Sequence[Series], name: str) -> list[Series]:
    """The series from their first to their last value; series without a value are left out."""
    for empty in (each.unique_id for each in untrimmed if not np.isfinite(each.values).any()):
        logger.warning(f"left out: series '{empty}' has no value")
    series = [each for each in map(trimmed, untrimmed) if len(each)]
    if not series:
        raise DataError(f"{name} has no series with a value")
    return series


def warn_of_gaps(series: Sequence[Series], untrimmed: Sequence[Series], *, ends_may_be_empty: bool) -> None:
    """Log series that end before the table does, and weekdays without values."""
    last = {each.unique_id: each.values[-1] for each in untrimmed if len(each)}
    if not ends_may_be_empty and (early := [each for each in series if np.isnan(last[each.unique_id])]):
        after = early[0].timeline.text(len(early[0]) - 1)
        logger.warning(
            f"cells at the end are empty in {len(early):,} of {len(untrimmed):,} series; the first is "
            f"'{early[0].unique_id[:40]}', which continues after {after}"
        )
    if closed := [each for each in series if absent_weekdays(each)]:
        days = " or ".join(absent_weekdays(closed[0]))
        logger.warning(
            f"never a value on {days}, yet these days are forecast too: '{closed[0].unique_id}' is the first of "
            f"{len(closed):,} such series"
        )


def check_given(given: SeriesFormat) -> None:
    check_type("the format", given, SeriesFormat, "a SeriesFormat")
    if given.separator is not None and len(given.separator) != 1:
        raise UsageError(f"--separator must be one character, not '{given.separator}'; a tab is $'\\t'")
    if given.decimal not in (None, ".", ","):
        raise UsageError(f"--decimal must be . or a comma, not '{given.decimal}'")


def describe_format(series: Sequence[Series], resolved: SeriesFormat) -> str:
    """The number of series, their frequency, and unusual properties of the file."""
    lines = [f"{len(series):,} series, {', '.join(frequencies(series))} apart"]
    if resolved.date_format not in (None, "number") and not resolved.date_format.startswith("%Y-%m"):
        lines.append(f"dates as {resolved.date_format}")
    if resolved.separator not in (None, ",", "\t"):
        lines.append(f"separator {resolved.separator}")
    if missing := sum(int(np.isnan(each.values).sum()) for each in series):
        lines.append(counted(missing, "missing value"))
    return "; ".join([*lines, *(["decimal comma"] if resolved.decimal == "," else [])])


def table_cells(path: Path | Frame, hints: FormatHints) -> tuple[Iterable[Cells], str | None, Mapping[str, dt.tzinfo]]:
    """The cells of each row, the separator of a text file, and the time zones of columns that have one."""
    if not isinstance(path, Path):
        if not isinstance(path, Frame):
            raise UsageError(f"series are a path or a DataFrame of pandas or polars, not {type(path).__name__}")
        cells = list(frame_cells(path))
        return with_dates(cells), None, time_zones(cells)
    table = open_table(path, otherwise=Delimited(","))
    if not isinstance(table.format, Delimited):
        if hints.given.separator is not None:
            raise UsageError(f"{path}: --separator is for text files with columns; leave it out")
        if not isinstance(table.format, Parquet):
            return table.cells(), None, {}
        cells = list(Parquet(as_text=False).cells(table))
        return with_dates(cells), None, time_zones(cells)
    usual, remembered = table.format.delimiter, hints.remembered.separator
    separator = hints.given.separator or choose_separator(table.lines(), usual, remembered)
    return Delimited(separator).cells(table), separator, {}


def time_zones(rows: Sequence[Cells]) -> dict[str, dt.tzinfo]:
    """The time zones of columns, according to their last cells."""
    cells = ((str(name).strip(), cell) for _, last in rows[-1:] for name, cell in zip(rows[0][1], last, strict=True))
    return {name: cell.tzinfo for name, cell in cells if isinstance(cell, dt.datetime) and cell.tzinfo}


def with_dates(rows: Sequence[Cells]) -> Iterator[Cells]:
    """Convert columns of times that are all at midnight to dates, because pandas and Arrow have one type for both."""
    columns = [list(column) for column in zip(*(cells for _, cells in rows), strict=True)]
    for column in columns:
        if all(isinstance(each, dt.datetime) and str(each).endswith(MIDNIGHT) for each in column[1:]):
            column[1:] = [str(each).removesuffix(MIDNIGHT) for each in column[1:]]
    for index, (where, _) in enumerate(rows):
        yield where, [column[index] for column in columns]


def write_frame(frame: Frame, path: Path) -> None:
    """Write a frame as CSV, in the form in which it is read."""
    write_text(path, table_text(cells for _, cells in with_dates(list(frame_cells(frame)))))


def table_text(rows: Iterable[Sequence[Any]], separator: str = ",") -> str:
    return "".join(csv_line(row, separator) for row in rows)


def choose_separator(lines: Iterator[str], usual: str, remembered: str | None) -> str:
    """The separator that splits each of the first lines; if none does, or for tabs, the suffix's usual one."""
    first = [line for line in islice(lines, SNIFFED_LINES) if line.strip()]
    split = {each: list(csv.reader(first, delimiter=each)) for each in SEPARATORS}
    fitting = [each for each, rows in split.items() if rows and all(len(row) > 1 for row in rows)]
    if usual == "\t":
        return usual
    return remembered if remembered in fitting else next(iter(fitting), usual)


def refuse_periods(row: TableRow) -> None:
    """Refuse times with two dates, as pandas writes weeks."""
    for cell in row.cells:
        days = cell.split("/")
        if len(days) == 2 and all(map(is_time, days)):
            advice = f"write one date for each, such as {days[0]}; in pandas, to_timestamp() makes dates"
            raise DataError(f"{row.where}: '{cell[:40]}' is a period; {advice}")


def refuse_labels(table: SeriesTable) -> None:
    """Refuse a column of labels, with or without times; the error has the commands for labels."""
    labels = [row.cells[-1] for row in table.body]
    first = table.body[0].cells
    is_alone = len(table.names) == 1 or (
        len(table.names) == 2 and (is_time(first[0]) or table.names[0].lower() in TIME_NAMES)
    )
    if len(table.names) == 1 and " " in labels[0] and is_number(labels[0]):
        raise DataError(
            f"{table.body[0].where}: '{labels[0][:40]}' can be several columns or one number; separate columns by a "
            "tab, and write a number without spaces"
        )
    if is_alone and unit_of(labels[0]):
        raise not_a_number(labels[0], table.body[0].where)
    if is_alone and len(set(labels)) < len(labels) and not any(is_number(label) or is_time(label) for label in labels):
        raise DataError(
            f"{table.where}: the column '{table.names[-1][:40]}' has labels such as '{labels[0][:40]}', not numbers; "
            "labels are words: write them in their order into a text file, one per line, then "
            "`foretell train labels.txt --kind words` learns them, and `foretell next labels 'LABEL LABEL'` gives the "
            "likely next ones with their probabilities"
        )


def choose_decimal(table: SeriesTable, layout: Layout, hints: FormatHints, separator: str | None) -> str | None:
    """The decimal mark of the values; None where no number has one.

    Raises DataError if both occur, and for a comma or points that may separate thousands. Between semicolons, a column
    in which every number has three digits after a point is unclear too: such files often have decimal commas.
    """
    if hints.given.decimal is not None:
        return hints.given.decimal
    marked: dict[str, str] = {}  # the place of the first cell with each text
    for row in table.body:
        for text in map(row.cell, layout.values):
            if "," in text or "." in text:
                marked.setdefault(text, row.where)
    if not marked:
        return None
    proven = _proven_decimal(marked) or hints.remembered.decimal
    if proven is None:
        _refuse_unclear(marked, table, layout, separator)
    return proven or "."


def _proven_decimal(marked: Mapping[str, str]) -> str | None:
    """The mark that some number can only be read with; None if all numbers can be read with both."""
    seen = {mark: next((text for text in marked if proves(text, mark)), None) for mark in ".,"}
    point, comma = seen["."], seen[","]
    if point and comma:
        raise DataError(
            f"{marked[comma]}: '{comma[:40]}' has a decimal comma, but '{point[:40]}' ({marked[point]}) has a decimal "
            "point; write all numbers in one form"
        )
    return "." if point else "," if comma else None


def _refuse_unclear(marked: Mapping[str, str], table: SeriesTable, layout: Layout, separator: str | None) -> None:
    unclear = {text for text in marked if "," in text and plain_number(text, ",") is not None}
    for column in layout.values:
        known = [cell for cell in table.column(column) if cell.lower() not in MISSING]
        unclear |= {may_group(known, also_alone=separator == ";")} - {None}
    for text, where in marked.items():
        if text in unclear:
            raise DataError(f"{where}: {two_readings(text)}")


def number(text: str, where: str, decimal: str) -> float:
    """The value of a cell, NaN if it is missing."""
    if text.lower() in MISSING:
        return np.nan
    plain = plain_number(text, decimal)
    value = np.inf if plain is None else float(plain)
    if not np.isfinite(value):
        raise not_a_number(text, where)
    if abs(value) > LARGEST:
        raise too_large(text[:40], where)
    return value


def not_a_number(text: str, where: str) -> DataError:
    advice = f"write numbers without {unit}" if (unit := unit_of(text)) else "leave the cell empty if it is missing"
    return DataError(f"{where}: '{text[:40]}' is not a number; {advice}")


Groups = dict[str, tuple[list[str] | None, list[float]]]  # name: (times, or None for 1, 2, 3, ...; values)


def groups_of(table: SeriesTable, layout: Layout, decimal: str, date_format: str | None) -> Groups:
    """The times and values of each series."""
    if layout.kind == "long":
        return long_groups(table, layout, decimal)
    if layout.kind == "rows":
        return row_groups(table, layout, decimal, header_times(table, date_format))
    names = [table.names[column] for column in layout.values]
    if len(set(table.names)) < len(table.names):
        raise DataError(f"{table.where}: two columns have the same name; rename one")
    for row in table.body:
        if len(row.cells) > len(table.names):
            raise DataError(f"{row.where}: {len(row.cells)} cells, but the header has {len(table.names)}")
    texts = [column for column in layout.values if table.is_text(column)]
    if 0 < len(texts) < len(names) and not unit_of(first := table.body[0].cell(texts[0])):
        others = [f"--column {table.names[each]}" for each in layout.values if each not in texts]
        raise DataError(
            f"{table.where}: the column '{table.names[texts[0]][:40]}' has texts such as '{first[:40]}'; name the "
            f"columns to read: {' '.join(others[:4])}{' ...' * (len(others) > 4)}"
        )
    times = None if layout.time is None else table.column(layout.time)
    return {
        name: (times, [number(row.cell(column), row.where, decimal) for row in table.body])
        for name, column in zip(names, layout.values, strict=True)
    }


def long_groups(table: SeriesTable, layout: Layout, decimal: str) -> Groups:
    """One row per value."""
    assert layout.id is not None
    groups: Groups = {}
    for row in table.body:
        if len(row.cells) != len(table.names):
            raise DataError(f"{row.where}: {len(row.cells)} cells, but the header has {len(table.names)}")
        if not row.cells[layout.id]:
            raise DataError(f"{row.where}: {table.names[layout.id]} is empty")
        times, values = groups.setdefault(row.cells[layout.id], ([], []))
        values.append(number(row.cells[layout.values[0]], row.where, decimal))
        if times is not None and layout.time is not None:
            times.append(row.cells[layout.time])
    return {name: (None if layout.time is None else times, values) for name, (times, values) in groups.items()}


def row_groups(table: SeriesTable, layout: Layout, decimal: str, times: list[str] | None) -> Groups:
    """One row per series, its name in the first cell; times in the header, or none."""
    groups: Groups = {}
    for row in table.body:
        if row.cells[0] in groups:
            raise DataError(f"{row.where}: a second series '{row.cells[0][:40]}'; give each its own name")
        values = [number(row.cell(column), row.where, decimal) for column in layout.values]
        groups[row.cells[0]] = (times, values)
    return groups


def header_times(table: SeriesTable, date_format: str | None) -> list[str] | None:
    """The times in the header of a table with a series per row; None if it has other names."""
    names = table.names[1:]
    is_header = table.body[0].where != table.where and len(names) == max(len(row.cells) for row in table.body) - 1
    are_times = all(is_time(name, date_format) for name in names) or (len(names) > 1 and is_counting(names))
    if is_header and not are_times:
        refuse_unread_dates(names, table.where)
    return names if is_header and are_times else None


def date_format_of(table: SeriesTable, layout: Layout, hints: FormatHints) -> str | None:
    """The format of the times in the file; None without times."""
    times: dict[str, str] = {}
    if layout.kind == "rows":
        times = dict.fromkeys(header_times(table, hints.date_format) or (), table.where)
    elif layout.time is not None:
        for row in table.body:
            time = row.cell(layout.time)
            if time.lower() in MISSING:
                column = f"column '{table.names[layout.time][:40]}'"
                raise DataError(f"{row.where}: the time in {column} is missing; fill it or remove the row")
            times.setdefault(time, row.where)
    if not times:
        if hints.given.date_format is not None:
            raise UsageError(f"{table.name} has no times; leave out --date-format, or name their column: --time-column")
        return None
    return choose_date_format(times, hints.given.date_format, hints.remembered.date_format)


def on_timelines(groups: Groups, file: str, date_format: str | None, zone: dt.tzinfo | None) -> list[Series]:
    """Series from times and values, sorted by time, with missing values for absent times.

    A series with a single time gets the frequency of the others.
    """
    made: dict[str, Series] = {}
    known: dict[int, tuple[Timeline, np.ndarray]] = {}  # the columns of a wide table share their times
    absent, first_absent, shared = 0, "", None
    for name, (texts, values) in groups.items():
        if texts is None:
            made[name] = Series(name, np.array(values, dtype=np.float64), numbered())
            continue
        if len(texts) < 2:
            continue
        if id(texts) not in known:
            known[id(texts)] = find_timeline(texts, f"{file}, series '{name[:40]}'", date_format, zone)
        timeline, indices = known[id(texts)]
        filled = np.full(int(indices.max()) + 1, np.nan)
        filled[indices] = values
        if len(filled) > len(texts):
            absent, first_absent = absent + len(filled) - len(texts), first_absent or name
        made[name], shared = Series(name, filled, timeline), shared or timeline
    if absent:
        logger.warning(f"times are absent, taken as missing values: {absent:,}, first in series '{first_absent}'")
    for name, (texts, values) in groups.items():
        if name not in made and texts is not None:
            timeline = lone_timeline(texts[0], shared, f"{file}, series '{name[:40]}'")
            made[name] = Series(name, np.array(values), timeline)
    return [made[name] for name in groups]


def trimmed(series: Series) -> Series:
    """A series without missing values at its beginning and end."""
    known = np.flatnonzero(~np.isnan(series.values))
    if not len(known):
        return series.until(0)
    first, last = int(known[0]), int(known[-1])
    return Series(series.unique_id, series.values[first : last + 1], series.timeline.moved(first))
