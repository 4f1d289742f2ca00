"""The layout of a table of series: the columns of names, times and values, found from header and cells."""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from foretell.config.section import Section
from foretell.data import numbers
from foretell.data.table import INDEX
from foretell.errors import DataError, did_you_mean
from foretell.forecasting.date_format import is_compact, is_time

DIGITS = re.compile(r"\d{1,9}")
CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?( ?[AP]M)?")  # a time of day
DATED = re.compile(r"(.*[^\w.])?(1[5-9]|2[01])\d\d(\W.*)?|\d+[./-]\d+[./-]\d+.*|[A-Z][a-z]{2}[- ]\d\d")
MISSING = frozenset(("", "na", "nan", "null", "none", "n/a", "#n/a", "nat", "<na>", "."))
TIME_NAMES = frozenset(
    ("ds", "date", "time", "timestamp", "datetime", "month", "year", "week", "day", "t", "step", "jahr", "année")
)
ID_NAMES = ("unique_id", "item_id", "series_id", "id", "series", "item", "store", "shop", "product", "sku", "name")
TARGET_NAMES = ("y", "target", "value", "sales")
LAYOUTS = (
    "give the columns unique_id, ds, y; or times in the first column and a series in each other; or a series in each "
    "row after its name; or a single column; or name columns with --time-column, --id-column, --target-column, and the "
    "form of dates with --date-format"
)
OWN_PAST = "a series is forecast only from its own past"

logger = logging.getLogger(__name__)


class SeriesFormat(Section):
    """The format of a file with series; None: found in the file. date_format: as in `date_format.py`."""

    id_column: str | None = None
    time_column: str | None = None
    target_column: str | None = None
    separator: str | None = None
    decimal: str | None = None
    date_format: str | None = None


DETECT = SeriesFormat()


class FormatHints(NamedTuple):
    """Known parts of a file's format: options, which must fit, and another file's format, which may fit."""

    given: SeriesFormat = DETECT
    remembered: SeriesFormat = DETECT

    @property
    def date_format(self) -> str | None:
        return self.given.date_format or self.remembered.date_format

    def column(self, table: SeriesTable, field: str) -> int | None:
        """The column given by an option, or named as in the other file; None if neither exists."""
        wanted, known = getattr(self.given, field), getattr(self.remembered, field)
        if wanted is not None:
            return table.index(wanted, f"--{field.replace('_', '-')}")
        return table.names.index(known) if known in table.names else None


def recorded_format(choices: Mapping[str, Any]) -> SeriesFormat:
    """The format of a run's file, from the choices in its record; runs of earlier versions have none."""
    return SeriesFormat(**{name: choices.get(name) for name in SeriesFormat.model_fields})


@dataclass(frozen=True)
class TableRow:
    """The cells of a row, and its file and line."""

    cells: list[str]
    where: str

    def cell(self, column: int) -> str:
        """The text of a cell; empty if the row is shorter."""
        return self.cells[column] if column < len(self.cells) else ""


@dataclass
class TableRows:
    """Rows in flat arrays, since a million rows of one cell take 300 MB as objects, and 24 MB here.

    `where` of each row after the first is `where_prefix` and its number. start: the first row to show.
    """

    cells: list[str] = field(default_factory=list)
    ends: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    first_where: str = ""
    where_prefix: str = ""
    start: int = 0

    def append(self, cells: Iterable[str], where: str) -> None:
        self.cells += cells
        self.first_where = self.first_where or where
        self.where_prefix, _, number = where.rpartition(" ")
        self.numbers.append(int(number) if self.ends else 0)
        self.ends.append(len(self.cells))

    def below_header(self) -> TableRows:
        return replace(self, start=1)

    def __len__(self) -> int:
        return len(self.ends) - self.start

    def __getitem__(self, index: int) -> TableRow:
        at = index + self.start
        where = f"{self.where_prefix} {self.numbers[at]}" if at else self.first_where
        return TableRow(self.cells[self.ends[at - 1] if at else 0 : self.ends[at]], where)

    def __iter__(self) -> Iterator[TableRow]:
        return map(self.__getitem__, range(len(self)))

    def column(self, index: int) -> list[str]:
        """The cells of a column; empty where a row is shorter."""
        slices = islice(pairwise(chain([0], self.ends)), self.start, None)
        return [self.cells[begin + index] if begin + index < end else "" for begin, end in slices]


@dataclass(frozen=True)
class SeriesTable:
    """Column names, the place of the header, and the rows below. name: the file's name."""

    names: list[str]
    where: str
    body: TableRows
    name: str

    def column(self, index: int) -> list[str]:
        return self.body.column(index)

    def is_text(self, index: int) -> bool:
        """True for a column in which no cell is a number, or missing."""
        return not any(map(is_number, self.column(index)))

    def index(self, wanted: str, option: str) -> int:
        """The index of a column given by an option."""
        if wanted not in self.names:
            raise DataError(f"{self.where}: no column '{wanted}'{did_you_mean(wanted, self.names)} ({option})")
        return self.names.index(wanted)


@dataclass(frozen=True)
class Layout:
    """The indices of the columns of names, times and values. kind: long, wide, rows, or one column."""

    kind: str
    values: list[int]
    time: int | None = None
    id: int | None = None

    def describe(self, names: Sequence[str]) -> str:
        """`long: item_id, timestamp, target`."""
        if self.kind == "rows":
            return "a series per row"
        used = [names[each] for each in (self.id, self.time) if each is not None]
        values = [names[each] for each in self.values[:3]] + ["..."] * (len(self.values) > 3)
        return f"{self.kind}: {', '.join([*used, *values])}" + ("" if self.time is not None else ", without times")


def is_number(cell: str) -> bool:
    """True for a number with any decimal mark, and for a missing value."""
    return cell.lower() in MISSING or numbers.is_number(cell)


def with_header(rows: TableRows, name: str, date_format: str | None) -> SeriesTable:
    """The table below its header; a file without a header gets the column names ds, y, or 1, 2, 3."""
    first = rows[0].cells
    names = [str(index) for index in range(1, len(first) + 1)]
    is_value = [is_number(cell) for cell in first]
    is_date = [is_time(cell, date_format) for cell in first]
    is_compact_first = len(first) > 1 and all(is_compact(row.cell(0)) for row in rows)
    if (is_date[0] and all(is_value[1:]) and len(first) > 1) or (is_compact_first and all(is_value)):
        names = ["ds", "y"] if len(first) == 2 else ["ds", *(f"y{index}" for index in range(1, len(first)))]
        logger.info(f"{rows[0].where}: a time and numbers, so the file has no header")
    elif all(is_value):
        names = ["y"] if len(first) == 1 else names
    elif len(first) > 2 and any(is_date) and any(is_value) and not all(is_date[1:]):
        logger.info(f"{rows[0].where}: a time and a number, so the file has no header")
    elif len(first) <= 2 or not all(is_value[1:]) or is_counting(first[1:]):
        return SeriesTable(first, rows[0].where, rows.below_header(), name)
    return SeriesTable(names, rows[0].where, rows, name)


def is_counting(cells: Sequence[str]) -> bool:
    """True for whole numbers with equal steps, such as years."""
    if not all(map(DIGITS.fullmatch, cells)):
        return False
    steps = set(np.diff([int(cell) for cell in cells]).tolist())
    return len(steps) <= 1 and min(steps, default=1) > 0


def choose_layout(table: SeriesTable, columns: Sequence[str], hints: FormatHints) -> Layout:
    """The layout by options, by a model's training file, or by names and cells. Raises DataError."""
    chosen = [table.index(name, "--column") for name in columns]
    time = find_time(table, hints)
    others = [index for index in range(len(table.names)) if index != time and not is_row_count(table, index)]
    name = None if chosen else find_id(table, time, others, hints)
    if name is not None:
        target = find_target(table, [index for index in others if index != name], hints)
        return Layout("long", [target], time, name)
    if hints.given.target_column is not None and not chosen:
        chosen = [table.index(hints.given.target_column, "--target-column")]
    if chosen:
        return Layout("wide", chosen, time)
    if time is not None:
        if len(others) > 1 and {table.names[index].lower() for index in others} & {"y", "target"}:
            return Layout("wide", [find_target(table, others, hints)], time)
        if not others:
            raise DataError(f"{table.where}: no column has values besides {table.names[time]}; {LAYOUTS}")
        return Layout("wide", others, time)
    first = table.body[0].cells
    if len(others) == 1 and is_number(first[others[0]]):
        return Layout("one column", others)
    longest = max(len(row.cells) for row in table.body)
    if not is_number(first[0]) and len(first) > 1 and all(map(is_number, first[1:])) and longest > 2:
        refuse_unread_dates([row.cell(0) for row in table.body], table.body[0].where)
        return Layout("rows", list(range(1, longest)), id=0)
    raise DataError(
        f"{table.where}: the meaning of the columns {', '.join(table.names)[:80]} is not clear; {LAYOUTS}; or series "
        "without times with --column NAME for each"
    )


def find_time(table: SeriesTable, hints: FormatHints) -> int | None:
    """The column of times: by dates in the first row, or by its name."""
    if (known := hints.column(table, "time_column")) is not None:
        return known
    first = table.body[0]
    named = [index for index, name in enumerate(table.names) if name.lower() in TIME_NAMES]
    dated = [index for index in range(len(table.names)) if is_time(first.cell(index), hints.date_format)]
    both = [index for index in dated if index in named] or dated or named
    if len(both) > 1 and dated and both[0] != 0:
        names = ", ".join(table.names[index] for index in both)
        raise DataError(f"{table.where}: the columns {names} have times; --time-column names the one to use")
    return both[0] if both else None


def refuse_unread_dates(names: Sequence[str], where: str) -> None:
    """Refuse names that are all dates of a form that only --date-format reads, or that end with years."""
    if names and all(map(DATED.fullmatch, names)):
        raise DataError(f"{where}: '{names[0][:40]}' may be a time; give its form, such as --date-format '%d %b %Y'")


def is_row_count(table: SeriesTable, index: int) -> bool:
    """True for a pandas index of whole numbers: a column that counts rows, or one with Arrow's name for an index."""
    name, cells = table.names[index], table.column(index)
    if len(table.names) == 1 or not INDEX.fullmatch(name):
        return False
    return is_counting(cells) or (name.startswith("__") and all(map(DIGITS.fullmatch, cells)))


def find_id(table: SeriesTable, time: int | None, others: list[int], hints: FormatHints) -> int | None:
    """The column with the name of a row's series: by its name, or the only text column if times repeat."""
    if (known := hints.column(table, "id_column")) is not None:
        return known
    if time is None:
        return None
    lower = [name.lower() for name in table.names]
    named = [lower.index(name) for name in ID_NAMES if name in lower and lower.index(name) in others]
    if named and lower[named[0]] in ID_NAMES[:3]:  # these names are never series of numbers
        return named[0]
    if hints.column(table, "target_column") is None:
        _refuse_clock(table, time, others)
    if len(others) < 2:
        return None
    texts = [index for index in others if not all(map(is_number, table.column(index)))]
    repeated = _first_repeated(table, time)
    if repeated is None:
        constant = [index for index in texts if len(set(table.column(index))) == 1]
        return constant[0] if len(constant) == 1 else None
    if len(texts) > 1:  # a column of numbers with a few texts has values; the reader reports the first text
        texts = [index for index in texts if 2 * sum(map(is_number, table.column(index))) < len(table.body)]
    candidates = named[:1] or texts
    if len(candidates) == 1:
        return candidates[0]
    raise DataError(
        f"{repeated.where}: the time {repeated.cell(time)} occurs a second time; keep one row of each time, or name "
        f"the column that tells series apart: --id-column {table.names[(texts or others)[0]]}"
    )


def _refuse_clock(table: SeriesTable, time: int, others: list[int]) -> None:
    clocks = [index for index in others if all(map(CLOCK.fullmatch, table.column(index)))]
    if len(clocks) == 1:
        raise DataError(
            f"{table.where}: '{table.names[clocks[0]]}' has the times of day of '{table.names[time]}'; join the two "
            f"columns into one, such as 2024-05-31 {table.body[0].cell(clocks[0])}"
        )


def _first_repeated(table: SeriesTable, time: int) -> TableRow | None:
    """The first row whose time an earlier row has."""
    earlier = set[str]()
    for row in table.body:
        if row.cell(time) in earlier:
            return row
        earlier.add(row.cell(time))
    return None


def find_target(table: SeriesTable, rest: list[int], hints: FormatHints) -> int:
    """The column of values in a long table; others are refused unless an option names this one."""
    if not rest:
        raise DataError(
            f"{table.where}: no column has values besides {', '.join(table.names)}; --target-column names one"
        )
    if (target := hints.column(table, "target_column")) is not None:
        if left_out := [table.names[index] for index in rest if index != target]:
            logger.info(f"left out: {', '.join(left_out)}; {OWN_PAST}")
        return target
    if len(rest) == 1:
        return rest[0]
    lower = [name.lower() for name in table.names]
    named = next((lower.index(name) for name in TARGET_NAMES if name in lower and lower.index(name) in rest), None)
    if named is None:
        names = ", ".join(table.names[index] for index in rest)
        raise DataError(f"{table.where}: the columns {names[:80]} may have the values; --target-column names one")
    unused = [index for index in rest if index != named]
    texts = [table.names[index] for index in unused if table.is_text(index)]
    other = (texts or [table.names[index] for index in unused])[0]
    if other == table.names[named]:
        raise DataError(f"{table.where}: two columns are called '{other[:40]}'; rename one")
    advice = "; if it names a series together with another column, join the two into one" if texts else ""
    raise DataError(
        f"{table.where}: the column '{other[:40]}' is not used: {OWN_PAST}; --target-column {table.names[named]} "
        f"leaves other columns out{advice}"
    )
