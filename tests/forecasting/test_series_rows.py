"""The rows of a table of series in flat arrays."""

from __future__ import annotations

import tracemalloc

from foretell.forecasting.series_layout import TableRows

ROWS = [["y", "z", "3"], ["1"], [], ["2", "3"]]


def test_rows_of_any_length_are_kept_with_their_places():
    rows = TableRows()
    for number, cells in enumerate(ROWS, start=1):
        rows.append(cells, f"a b.csv, line {2 * number}")
    assert [(row.cells, row.where) for row in rows] == [
        (cells, f"a b.csv, line {2 * number}") for number, cells in enumerate(ROWS, start=1)
    ]
    below = rows.below_header()
    assert (len(rows), len(below), below[0].cells) == (4, 3, ["1"])
    assert [below.column(index) for index in range(3)] == [["1", "", "2"], ["", "", "3"], ["", "", ""]]


def test_the_first_place_may_have_no_number():
    rows = TableRows()
    rows.append(["y"], "the DataFrame")
    rows.append(["1"], "the DataFrame, row 1")
    assert [row.where for row in rows] == ["the DataFrame", "the DataFrame, row 1"]


def test_a_short_row_takes_a_few_bytes():
    rows = TableRows()
    tracemalloc.start()
    for number in range(100_000):
        rows.append(["1"], f"a.csv, line {number}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * len(rows)
