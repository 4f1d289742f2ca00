"""Files of series: four layouts, missing values, and what is refused."""

from __future__ import annotations

import gzip
import logging

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.forecasting.series import fingerprint
from foretell.forecasting.series_file import read_series

NAN = np.nan
# content, series names, values, first time
LAYOUTS = {
    "long": ("unique_id,ds,y\nb,2,5\na,1,1\nb,1,4\na,2,-2.5e3\n", {"b": [4, 5], "a": [1, -2500]}, "1"),
    "long, one series": ("ds,y\n2024-01,1\n2024-02,2\n", {"y": [1, 2]}, "2024-01"),
    "absent time": ("ds,y\n1,1\n2,2\n4,4\n", {"y": [1, 2, NAN, 4]}, "1"),
    "columns": (
        '"Month","Sold","Lost"\n2024-01,1,\n2024-02,2,5\n2024-03,3,6\n',
        {"Sold": [1, 2, 3], "Lost": [5, 6]},
        "",
    ),
    "rows, ragged": ('"V1","V2","V3","V4"\n"H1",1,2,\n"H2",3,NA,5\n', {"H1": [1, 2], "H2": [3, NAN, 5]}, "1"),
    "one column": ("sales\n1\n2\n", {"sales": [1, 2]}, "1"),
    "one column without a name": ("1\n2\n3\n", {"y": [1, 2, 3]}, "1"),
    "columns without a header": ("2024-01-01,1\n2024-01-02,2\n2024-01-03,4\n", {"y": [1, 2, 4]}, "2024-01-01"),
    "two columns without a header": ("2024-01,1,5\n2024-02,2,6\n", {"y1": [1, 2], "y2": [5, 6]}, "2024-01"),
    "compact dates": ("date,value\n20240130,1\n20240131,2\n20240201,3\n", {"value": [1, 2, 3]}, "2024-01-30"),
    "one value next to others": (
        "unique_id,ds,y\na,2024-01-01,1\na,2024-01-02,2\nb,2024-01-05,7\n",
        {"a": [1, 2], "b": [7]},
        "2024-01-01",
    ),
}


@pytest.mark.parametrize(("content", "expected", "first"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_is_recognised(content, expected, first, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="utf-8")
    series = read_series(path)
    assert [each.unique_id for each in series] == list(expected)
    for each in series:
        np.testing.assert_array_equal(each.values, expected[each.unique_id])
    assert series[0].timeline.text(0) == first or not first


def test_tabs_and_compressed_files_are_read(tmp_path):
    path = tmp_path / "x.tsv.gz"
    path.write_bytes(gzip.compress(b"ds\ty\n1\t1\n2\t2\n"))
    assert read_series(path)[0].values.tolist() == [1, 2]


def test_a_lone_column_can_be_chosen(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("date,open,note\n2024-01-01,1,x\n2024-01-02,2,y\n", encoding="utf-8")
    assert [each.unique_id for each in read_series(path, ["open"])] == ["open"]


def test_a_series_without_values_is_left_out_aloud(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_text("ds,a,b\n1,1,\n2,2,\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert len(read_series(path)) == 1
    assert "series 'b' has no value" in caplog.text


REFUSED = {
    "empty": ("", "is empty"),
    "semicolons": ("2020-01-01;10,5\n2020-01-02;11,5\n", "cells are separated by semicolons"),
    "a column of labels": ("weather\nsun\nrain\nsun\n", "'weather' has labels such as 'sun', .* --kind words"),
    "labels after times": ("day,weather\n1,sun\n2,rain\n3,sun\n", "`foretell next labels"),
    "header alone": ("ds,y\n", "no values"),
    "unclear": ("a,b\n1,2\n3,4\n", "what the columns a, b mean is not clear"),
    "numbers without a header": ("1,2\n3,4\n", "not clear"),
    "other columns": ("unique_id,ds,y,price\na,1,1,9\n", "column 'price' is not used"),
    "not a number": ("ds,y\n1,1\n2,two\n", "line 3: 'two' is not a number"),
    "infinite": ("ds,y\n1,1\n2,1e999\n", "line 3: '1e999' is not a number"),
    "beyond squares": ("ds,y\n1,1\n2,-1e151\n", "line 3: -1e151 is beyond 1e\\+150"),
    "irregular": ("unique_id,ds,y\nsales,1,1\nsales,4,2\nsales,7,3\nsales,8,3\n", "series 'sales': irregular times"),
    "twice": ("unique_id,ds,y\nsales,1,1\nsales,1,2\n", "series 'sales': the time 1 occurs twice"),
    "no name": ("unique_id,ds,y\n,1,1\n", "unique_id is empty"),
    "two rows of one name": ("V1,V2\na,1\na,2\n", "a second series 'a'"),
    "one dated value": ("ds,y\n2024-01-01,1\n", "give at least two"),
    "uneven rows": ("ds,y\n1,1\n2,2,3\n", "3 cells"),
    "nothing known": ("ds,y\n1,\n2,\n", "no series with a value"),
}


@pytest.mark.parametrize(("content", "words"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_not_clear_is_refused(content, words, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        read_series(path)


def test_a_missing_file_and_a_missing_column_are_named(series_file):
    with pytest.raises(DataError, match="did you mean 'waves.csv'"):
        read_series(series_file.with_name("wave.csv"))
    with pytest.raises(DataError, match="no column 'z'"):
        read_series(series_file, ["z"])


def test_other_values_have_another_fingerprint(series_file):
    series = read_series(series_file)
    assert fingerprint(series) == fingerprint(read_series(series_file)) != fingerprint(series[:1])
