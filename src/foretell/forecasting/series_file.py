"""Series from a table, in the layouts that can be told apart without a doubt.

- long: columns unique_id, ds, y; or ds, y for one series
- a column per series, the first column their times
- a row per series, the first cell its name (the files of the M4 competition); shorter rows may end in empty cells
- one column: one series, its times are 1, 2, 3, ...
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretell.data.table import Delimited, open_table
from foretell.errors import DataError, did_you_mean
from foretell.forecasting.series import Series, Timeline, find_timeline, is_time, numbered, ordinals_of, read_times

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
LARGEST = 1e150  # its square is a number
MISSING = frozenset(("", "na", "nan", "null", "none"))
TIME_NAMES = frozenset(("ds", "date", "time", "timestamp", "datetime", "month", "year", "week", "day", "t", "step"))
LONG = ("unique_id", "ds", "y")
LAYOUTS = (
    "give the columns unique_id, ds, y; or times in the first column and a series in each other; or a series in each "
    "row after its name; or a single column"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeriesRow:
    """The cells of a row, and its file and line."""

    cells: list[str]
    where: str

    def number(self, column: int) -> float:
        """The value of a cell, NaN if it is missing."""
        text = self.cells[column] if column < len(self.cells) else ""
        if text.lower() in MISSING:
            return np.nan
        value = float(text) if NUMBER.fullmatch(text) else np.inf
        if not np.isfinite(value):
            raise DataError(f"{self.where}: '{text[:40]}' is not a number; leave the cell empty if it is missing")
        if abs(value) > LARGEST:
            raise DataError(f"{self.where}: {text[:40]} is beyond {LARGEST:g}, too large to compute with; rescale it")
        return value


def read_series(path: str | Path, columns: Sequence[str] = ()) -> list[Series]:
    """The series of a file. `columns` names those to read where every column is one.

    Missing values at the beginning and end of a series are dropped; what is left out is logged. Raises DataError.
    """
    rows = open_table(path, otherwise=Delimited(",")).cells()
    table = [SeriesRow(["" if cell is None else str(cell).strip() for cell in cells], where) for where, cells in rows]
    table = [row for row in table if any(row.cells)]
    if not table:
        raise DataError(f"{path} is empty; {LAYOUTS}")
    if len(table) > 1 and all(row.cells[0].count(";") > 0 for row in table):
        raise DataError(
            f"{path}: cells are separated by semicolons; separate them by commas, or by tabs in a file named .tsv, "
            "and write decimals with a point"
        )
    header, body = table[0], table[1:]
    if all(is_number(cell) for cell in header.cells):
        header, body = SeriesRow(["y"] * len(header.cells), header.where), table
    elif len(header.cells) > 1 and is_time(header.cells[0]) and all(map(is_number, header.cells[1:])):
        others = [f"y{index}" for index in range(1, len(header.cells))]
        header, body = SeriesRow(["ds", *(others if len(others) > 1 else ["y"])], header.where), table
        logger.info(f"{header.where}: a time and numbers, so the file has no header")
    if not body:
        raise DataError(f"{path} has a header and no values")
    refuse_labels(header, body)
    found = choose_layout(header, body, columns)
    series = [each for each in (trimmed(each) for each in found) if len(each)]
    for name in (each.unique_id for each in found if not np.isfinite(each.values).any()):
        logger.warning(f"left out: series '{name}' has no value")
    if not series:
        raise DataError(f"{path} has no series with a value")
    return series


def is_number(cell: str) -> bool:
    return cell.lower() in MISSING or NUMBER.fullmatch(cell) is not None


def refuse_labels(header: SeriesRow, body: list[SeriesRow]) -> None:
    """Refuse a column of labels, alone or after times, and name the commands that forecast labels."""
    labels = [row.cells[-1] for row in body]
    is_alone = len(header.cells) == 1 or is_time(body[0].cells[0]) or header.cells[0].lower() in TIME_NAMES
    if is_alone and len(set(labels)) < len(labels) and not any(is_number(label) or is_time(label) for label in labels):
        raise DataError(
            f"{header.where}: the column '{header.cells[-1][:40]}' has labels such as '{labels[0][:40]}', not numbers; "
            "labels are words: write them in their order into a text file, separated by spaces, then "
            "`foretell train labels.txt --kind words` learns them, and `foretell next labels 'LABEL LABEL'` gives the "
            "likely next ones with their probabilities"
        )


# --- layouts ---------------------------------------------------------------------------------------------------------


def choose_layout(header: SeriesRow, body: list[SeriesRow], columns: Sequence[str]) -> list[Series]:
    """The series of a table in the layout that its header and its first row show."""
    names, first = header.cells, body[0].cells
    for name in columns:
        if name not in names:
            raise DataError(f"{header.where}: no column '{name}'{did_you_mean(name, names)}")
    if {"ds", "y"} <= set(names):
        return read_long(header, body)
    if len(names) == 1 and is_number(first[0]):
        return [single_column(names[0], body)]
    if is_time(first[0]) or names[0].lower() in TIME_NAMES:
        return read_columns(header, body, columns)
    if not is_number(first[0]) and len(first) > 1 and all(is_number(cell) for cell in first[1:]):
        return read_named_rows(body)
    raise DataError(f"{header.where}: what the columns {', '.join(names)[:80]} mean is not clear; {LAYOUTS}")


def read_long(header: SeriesRow, body: list[SeriesRow]) -> list[Series]:
    """One row per value."""
    others = [name for name in header.cells if name not in LONG]
    if others:
        raise DataError(
            f"{header.where}: the column '{others[0][:40]}' is not used: a series is forecast from its own past alone; "
            "remove it, or give its values another unique_id"
        )
    time, value = header.cells.index("ds"), header.cells.index("y")
    name = header.cells.index("unique_id") if "unique_id" in header.cells else None
    groups: dict[str, list[SeriesRow]] = {}
    for row in body:
        if len(row.cells) != len(header.cells):
            raise DataError(f"{row.where}: {len(row.cells)} cells, but the header has {len(header.cells)}")
        if name is not None and not row.cells[name]:
            raise DataError(f"{row.where}: unique_id is empty")
        groups.setdefault("y" if name is None else row.cells[name], []).append(row)
    return on_timelines(
        {key: ([row.cells[time] for row in rows], [row.number(value) for row in rows]) for key, rows in groups.items()},
        header.where.rpartition(",")[0],
    )


def read_columns(header: SeriesRow, body: list[SeriesRow], columns: Sequence[str]) -> list[Series]:
    """One column per series, times in the first."""
    names = header.cells
    if len(set(names)) < len(names):
        raise DataError(f"{header.where}: two columns have the same name; rename one")
    texts = [row.cells[0] for row in body]
    for row in body:
        if len(row.cells) > len(names):
            raise DataError(f"{row.where}: {len(row.cells)} cells, but the header has {len(names)}")
    wanted = list(columns) or names[1:]
    return on_timelines(
        {name: (texts, [row.number(names.index(name)) for row in body]) for name in wanted},
        header.where.rpartition(",")[0],
    )


def read_named_rows(body: list[SeriesRow]) -> list[Series]:
    """One row per series, its name in the first cell."""
    seen: set[str] = set()
    for row in body:
        if row.cells[0] in seen:
            raise DataError(f"{row.where}: a second series '{row.cells[0][:40]}'; give each its own name")
        seen.add(row.cells[0])
    return [
        Series(row.cells[0], np.array([row.number(column) for column in range(1, len(row.cells))]), numbered())
        for row in body
    ]


def single_column(name: str, body: list[SeriesRow]) -> Series:
    for row in body:
        if len(row.cells) != 1:
            raise DataError(f"{row.where}: {len(row.cells)} cells, but the first row has 1")
    return Series(name, np.array([row.number(0) for row in body]), numbered())


def on_timelines(groups: dict[str, tuple[list[str], list[float]]], file: str) -> list[Series]:
    """Series from the times and values of each, in the order of their times, absent times as missing values.

    A series with a single time takes the frequency of the others.
    """
    made: dict[str, Series] = {}
    absent, first_absent, shared = 0, "", None
    for name, (texts, values) in groups.items():
        if len(texts) < 2:
            continue
        timeline, indices = find_timeline(texts, f"{file}, series '{name[:40]}'")
        filled = np.full(int(indices.max()) + 1, np.nan)
        filled[indices] = values
        if len(filled) > len(texts):
            absent, first_absent = absent + len(filled) - len(texts), first_absent or name
        made[name], shared = Series(name, filled, timeline), shared or timeline
    if absent:
        logger.warning(f"{absent:,} times are absent, taken as missing values: series '{first_absent}'")
    for name, (texts, values) in groups.items():
        if name not in made:
            made[name] = Series(
                name, np.array(values), lone_timeline(texts[0], shared, f"{file}, series '{name[:40]}'")
            )
    return [made[name] for name in groups]


def lone_timeline(text: str, shared: Timeline | None, name: str) -> Timeline:
    """The timeline of a series with a single time."""
    if shared is None:
        raise DataError(f"{name}: a single value does not tell how far times are apart; give at least two")
    unit, ordinals = read_times([text], name)
    if (unit == "number") != (shared.unit == "number"):
        raise DataError(f"{name}: the time {text} is of another kind than {shared.text(0)}")
    first = ordinals if unit == "number" else ordinals_of(np.array([text], dtype="datetime64[s]"), shared.unit)
    return Timeline(shared.unit, shared.step, int(first[0]), text)


def trimmed(series: Series) -> Series:
    """A series without missing values at its beginning and end."""
    known = np.flatnonzero(~np.isnan(series.values))
    if not len(known):
        return series.until(0)
    first, last = int(known[0]), int(known[-1])
    return Series(series.unique_id, series.values[first : last + 1], series.timeline.moved(first))
