"""Files of series: four layouts, missing values, and what is refused."""

from __future__ import annotations

import gzip
import logging
from datetime import datetime

import numpy as np
import pytest

from foretell.errors import DataError, ForetellError, UsageError
from foretell.forecasting.series import fingerprint
from foretell.forecasting.series_file import read_series, read_series_data
from foretell.forecasting.series_layout import SeriesFormat

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
    "compact dates": ("date,value\n20240130,1\n20240131,2\n20240201,3\n", {"value": [1, 2, 3]}, "20240130"),
    "item_id": ("item_id,timestamp,target\nb,2020-01-01,1\nb,2020-01-02,2\n", {"b": [1, 2]}, "2020-01-01"),
    "a store's sales": (
        "store,date,sales\n1,30.01.2020,1\n2,30.01.2020,5\n1,31.01.2020,2\n2,31.01.2020,6\n",
        {"1": [1, 2], "2": [5, 6]},
        "30.01.2020",
    ),
    "names in any column": (
        "date,price,ticker\n2020Q1,1,A\n2020Q1,5,B\n2020Q2,2,A\n2020Q2,6,B\n",
        {"A": [1, 2], "B": [5, 6]},
        "2020Q1",
    ),
    "one store": ("shop,date,sales\nA,2020-01-01,1\nA,2020-01-02,2\n", {"A": [1, 2]}, "2020-01-01"),
    "long without a header": ("a,2020-01-01,1\na,2020-01-02,2\n", {"a": [1, 2]}, "2020-01-01"),
    "compact dates without a header": ("20200101,1\n20200102,2\n", {"y": [1, 2]}, "20200101"),
    "semicolons and decimal commas": ("01.02.2020;1,5\n13.02.2020;1.234,25\n", {"y": [1.5, 1234.25]}, "01.02.2020"),
    "thousands": ('ds,y\n1,"1,234.5"\n2,"2,000"\n', {"y": [1234.5, 2000]}, "1"),
    "tabs in a file for commas": ("ds\ty\n2000-01\t1\n2000-02\t2\n", {"y": [1, 2]}, "2000-01"),
    "rows with times in the header": ("name,2020-01,2020-02\na,1,2\nb,3,4\n", {"a": [1, 2], "b": [3, 4]}, "2020-01"),
    "rows with years in the header": ("name,1999,2000\na,1,2\nb,3,4\n", {"a": [1, 2], "b": [3, 4]}, "1999"),
    "rows without a header": ("a,1,2,5\nb,3,4,5\n", {"a": [1, 2, 5], "b": [3, 4, 5]}, "1"),
    "numbers like dates next to steps": ("step,rate\n0,1.1061\n1,1.1994\n", {"rate": [1.1061, 1.1994]}, "0"),
    "numbers like dates next to years": ("Year,rate\n1999,1.1061\n2000,1.1994\n", {"rate": [1.1061, 1.1994]}, "1999"),
    "numbers like dates alone": ("rate\n1.1994\n1.2001\n", {"rate": [1.1994, 1.2001]}, "1"),
    "an index of pandas": (",date,v\n0,2024-01-01,5\n1,2024-01-02,6\n", {"v": [5, 6]}, "2024-01-01"),
    "an index of pandas without times": (",v\n0,5\n1,6\n2,9\n", {"v": [5, 6, 9]}, "1"),
    "thousands after spaces": ("ds;y\n1;2 904,98\n2;−1 000,5\n", {"y": [2904.98, -1000.5]}, "1"),
    "thousands after apostrophes": ("ds;y\n1;1'101.50\n2;1’000\n", {"y": [1101.5, 1000]}, "1"),
    "three decimals between commas": ("ds,y\n1,1.101\n2,1.234\n", {"y": [1.101, 1.234]}, "1"),
    "years in another language": ("Jahr,Umsatz\n1999,5\n2000,6\n", {"Umsatz": [5, 6]}, "1999"),
    "one value next to others": (
        "unique_id,ds,y\na,2024-01-01,1\na,2024-01-02,2\nb,2024-01-05,7\n",
        {"a": [1, 2], "b": [7]},
        "2024-01-01",
    ),
}


DATED = {
    "%b %Y": ("Monat,a,b\nJan 2000,1,5\nFeb 2000,2,6\n", {"a": [1, 2], "b": [5, 6]}, "Jan 2000"),
    "%Y/%m/%d": ("2024/05/30,1,5\n2024/05/31,2,6\n", {"y1": [1, 2], "y2": [5, 6]}, "2024/05/30"),
    "%b-%y": ("name,Jan-49,Feb-49\na,1,2\nb,5,6\n", {"a": [1, 2], "b": [5, 6]}, "Jan-49"),
    "FY %Y": ("name,FY 2019,FY 2020\na,1,2\nb,5,6\n", {"a": [1, 2], "b": [5, 6]}, "FY 2019"),
    "%d.%m.%y": ("Tag,a,b\n30.12.99,1,5\n31.12.99,2,6\n", {"a": [1, 2], "b": [5, 6]}, "30.12.99"),
    "%-m.%Y": ("Monat,Wert\n1.1994,5\n2.1994,6\n", {"Wert": [5, 6]}, "1.1994"),
    "%qQ%y": ("quarter,gdp\n4Q19,1\n1Q20,2\n", {"gdp": [1, 2]}, "4Q19"),
    "%d %b %Y": (
        "shop,when,sold\nA,30 Jan 2000,1\nA,31 Jan 2000,2\nB,30 Jan 2000,5\nB,31 Jan 2000,6\n",
        {"A": [1, 2], "B": [5, 6]},
        "30 Jan 2000",
    ),
}


@pytest.mark.parametrize(("date_format", "case"), DATED.items(), ids=DATED)
def test_dates_of_another_form_are_an_error_that_names_the_option_which_reads_them(date_format, case, tmp_path):
    content, expected, first = case
    path = tmp_path / "x.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="date_format"):
        read_series(path)
    series, resolved = read_series_data(path, given=SeriesFormat(date_format=date_format))
    assert {each.unique_id: each.values.tolist() for each in series} == expected
    assert (series[0].timeline.text(0), resolved.date_format) == (first, date_format)
    assert read_series_data(path, remembered=resolved)[1] == resolved


@pytest.mark.parametrize("names", ["Y1 Y22", "store-1 store-2", "1.5-litre 2.0-litre", "GDP-2000 GDP"])
def test_names_of_rows_are_not_taken_for_dates(names, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("".join(f"{name},1,2,5\n" for name in names.split()), encoding="utf-8")
    assert [each.unique_id for each in read_series(path)] == names.split()


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


def test_a_column_of_times_of_day_may_be_left_out(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("date,sunrise,y\n2024-01-01,08:01,1\n2024-01-02,08:02,2\n2024-01-03,08:02,3\n", encoding="utf-8")
    (series,) = read_series(path, given=SeriesFormat(target_column="y"))
    assert series.values.tolist() == [1, 2, 3]


def test_series_that_end_before_the_file_are_named(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_text("ds,a,b\n2024-01-01,1,1\n2024-01-02,2,\n2024-01-03,3,NA\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING, logger="foretell"):
        assert [len(each) for each in read_series(path)] == [3, 1]
    assert (
        "cells at the end are empty in 1 of 2 series; the first is 'b', which continues after 2024-01-01" in caplog.text
    )


def test_days_of_the_week_without_a_value_are_named(tmp_path, caplog):
    days = [str(day) for day in np.arange("2024-01-01", "2024-01-25", dtype="datetime64[D]")]
    path = tmp_path / "x.csv"
    for closed, words in ((6, "never a value on Sunday, yet"), (None, "")):
        rows = [f"{day},{index}" for index, day in enumerate(days) if index % 7 != closed]
        path.write_text("\n".join(["ds,y", *rows]) + "\n", encoding="utf-8")
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="foretell"):
            read_series(path)
        assert words in caplog.text and ("never" in caplog.text) == bool(words)


REFUSED = {
    "empty": ("", "is empty"),
    "a comma before three digits": (
        "ds;y\n1;1,234\n2;2,345\n",
        "line 2: '1,234' can be 1.234 or 1234; give decimal , for 1.234 or decimal . for 1234",
    ),
    "a point before three digits": (
        "ds;y\n1;817\n2;-1.106\n3;\n4;0\n",
        "line 3: '-1.106' can be -1.106 or -1106; give decimal . for -1.106 or decimal , for -1106",
    ),
    "points between semicolons": (
        "ds;y\n1;1.101\n2;\n3;1.234\n",
        "line 2: '1.101' can be 1.101 or 1101; give decimal . for 1.101 or decimal , for 1101",
    ),
    "a point before three digits, and a typeset minus": (
        "ds;y\n1;817\n2;−1.106\n",
        "line 3: '−1.106' can be −1.106 or −1106",
    ),
    "columns separated by spaces": ("y\n1 112\n2 118\n", "line 2: '1 112' can be several columns or one number"),
    "decimal commas and points": (
        "ds;y\n1;1,5\n2;2.25\n",
        r"line 2: '1,5' has a decimal comma, but '2.25' \(.*, line 3\) has a decimal point",
    ),
    "two readings": ("date,y\n01/02/2020,1\n01/03/2020,2\n", "line 2: '01/02/2020' can be .* date_format"),
    "two formats": ("date,y\n2020-01-30,1\n31/01/2020,2\n", "line 3: '31/01/2020' is not in the format of"),
    "two columns of times": ("a,from,to\n5,2020-01-01,2020-01-02\n", "columns from, to have times; time_column"),
    "no values": ("item_id,timestamp\na,2020-01-01\na,2020-01-02\n", "no column has values .*timestamp"),
    "two columns of values": (
        "item_id,ds,a,b\nx,1,2,3\nx,2,3,4\n",
        "columns a, b may have the values; target_column",
    ),
    "twice without a name": (
        "day,area,price\n1,5,2\n1,6,3\n",
        "line 3: the time 1 occurs a second time; .* id_column area",
    ),
    "not a number, in rows with names": (
        "Filiale;Datum;Umsatz\nOst;02.01.2023;1,5\nWest;02.01.2023;2,5\nOst;03.01.2023;k.A.\nWest;03.01.2023;1,25\n",
        "line 4: 'k.A.' is not a number",
    ),
    "a column of labels": (
        "weather\nsun\nrain\nsun\n",
        "'weather' has labels such as 'sun', .* one per line, .* --kind words",
    ),
    "labels after times": ("day,weather\n1,sun\n2,rain\n3,sun\n", "`foretell next labels"),
    "header alone": ("ds,y\n", "no values"),
    "unclear": (
        "a,b\n1,2\n3,4\n",
        "the meaning of the columns a, b is not clear.*series without times with columns NAME",
    ),
    "numbers without a header": ("1,2\n3,4\n", "not clear"),
    "other columns": ("unique_id,ds,y,price\na,1,1,9\n", "column 'price' is not used"),
    "the same column twice": ("ds,y,y\n1,1,9\n", "two columns are called 'y'"),
    "not a number": ("ds,y\n1,1\n2,two\n", "line 3: 'two' is not a number"),
    "percent": ("ds,y\n1,28.7%\n2,25.7%\n", "line 2: '28.7%' is not a number; write numbers without %"),
    "a currency": (
        "ds;y\n1;2 904,98 €\n2;2 904,98 €\n",
        "line 2: '2 904,98 €' is not a number; write numbers without €",
    ),
    "a unit": ("v\n20.00 EUR\n21.00 EUR\n", "line 2: '20.00 EUR' is not a number; write numbers without EUR"),
    "no time": ("day,y\n2024-01-01,1\n,2\n", "line 3: the time in column 'day' is missing; fill it or remove the row"),
    "weeks": ("a,y\n2024-01-01/2024-01-07,1\n", "line 2: '2024-01-01/2024-01-07' is a period; .*such as 2024-01-01;"),
    "a negative number in parentheses": ("ds;y\n1;(101,50)\n2;(102,50)\n", r"line 2: '\(101,50\)' is not a number"),
    "dates and times of day": (
        "date,time,y\n2024-01-01,00:00,1\n2024-01-01,01:00,2\n",
        "'time' has the times of day of 'date'; join the two columns into one, such as 2024-05-31 00:00",
    ),
    "hours of a market": (
        "ds,y\n" + "".join(f"2024-01-{day:02} {hour:02}:00,1\n" for day in range(1, 9) for hour in (9, 10, 11)),
        "147 of 171 are absent; give equally spaced values, or leave out the column of times",
    ),
    "names of months": ("ds,y\nJan 2015,1\nMär 2015,2\n", "line 2: 'Jan 2015' is not a time; .*date_format '%d %b %Y'"),
    "percent in two columns": ("ds,a,b\n1,28.7%,1\n2,25.7%,2\n", "'28.7%' is not a number; write numbers without %"),
    "a column of texts": (
        "date,S0,S1,weekday\n2023-01-01,1,5,Sunday\n2023-01-02,2,6,Monday\n",
        "column 'weekday' has texts such as 'Sunday'; name the columns to read: columns S0 columns S1",
    ),
    "two columns of names": (
        "store,date,sales,product\nS,1,1,A\nS,1,2,B\n",
        "'product' is not used: .*; if it names a series together with another column, join the two into one",
    ),
    "infinite": ("ds,y\n1,1\n2,1e999\n", "line 3: '1e999' is not a number"),
    "beyond squares": ("ds,y\n1,1\n2,-1e151\n", "line 3: -1e151 is beyond 1e\\+150"),
    "irregular": ("unique_id,ds,y\nsales,1,1\nsales,4,2\nsales,7,3\nsales,8,3\n", "series 'sales': irregular times"),
    "twice": (
        "unique_id,ds,y\nsales,1,1\nsales,1,2\n",
        "series 'sales': the time 1 occurs twice; keep one .* or join the columns",
    ),
    "no name": ("unique_id,ds,y\n,1,1\n", "unique_id is empty"),
    "two rows of one name": ("V1,V2,V3\na,1,2\na,2,3\n", "a second series 'a'"),
    "rows of one value": ("name,value\na,1\nb,2\n", "the meaning of the columns name, value is not clear"),
    "one dated value": ("ds,y\n2024-01-01,1\n", "give at least two"),
    "uneven rows": ("ds,y\n1,1\n2,2,3\n", "3 cells"),
    "nothing known": ("ds,y\n1,\n2,\n", "no series with a value"),
}


@pytest.mark.parametrize("values", [("1.106", "1.250"), ("1.106", "1200"), ("0.106", "817"), ("1.106", "817", "1.5")])
def test_points_that_cannot_all_separate_thousands_are_decimal(values, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("y\n" + "\n".join(values) + "\n", encoding="utf-8")
    (series,) = read_series(path)
    assert series.values.tolist() == list(map(float, values))


def test_points_that_may_separate_thousands_are_read_as_another_file_proves(tmp_path):
    whole, thousands = tmp_path / "whole.csv", tmp_path / "thousands.csv"
    whole.write_text("y\n5\n7\n", encoding="utf-8")
    thousands.write_text("y\n817\n1.106\n", encoding="utf-8")
    _, nothing = read_series_data(whole)
    assert nothing.decimal is None
    with pytest.raises(DataError, match="can be 1.106 or 1106"):
        read_series(thousands, remembered=nothing)
    for decimal, value in ((".", 1.106), (",", 1106)):
        (series,), found = read_series_data(thousands, given=SeriesFormat(decimal=decimal))
        assert series.values.tolist() == [817, value]
        assert read_series(thousands, remembered=found)[0].values.tolist() == [817, value]


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


def test_options_name_what_the_file_does_not_show(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a|b|c|d\n7|01/02/2020|1,234|x\n7|01/03/2020|1,235|y\n", encoding="utf-8")
    given = SeriesFormat(
        id_column="a", time_column="b", target_column="c", separator="|", decimal=",", date_format="%m/%d/%Y"
    )
    (series,) = read_series(path, given=given)
    assert (series.unique_id, series.values.tolist()) == ("7", [1.234, 1.235])
    assert [series.timeline.text(index) for index in (0, 2)] == ["01/02/2020", "01/04/2020"]


def test_a_format_that_is_found_is_reported_and_reads_another_file(tmp_path, caplog):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text("area;date;price;size\n1;13/01/2020;1,5;1\n1;14/01/2020;2,5;1\n", encoding="utf-8")
    second.write_text("date;area;price;size\n02/01/2020;1;1,500;1\n03/01/2020;1;2,500;1\n", encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="foretell"):
        _, found = read_series_data(first, given=SeriesFormat(id_column="area", target_column="price"))
    assert "layout      long: area, date, price; 1 series, 1 day apart; dates as %d/%m/%Y; separator ;" in caplog.text
    assert "left out: size" in caplog.text
    with pytest.raises(DataError, match="date_format %|give decimal"):
        read_series(second)
    (series,) = read_series(second, remembered=found)
    assert (series.unique_id, series.values.tolist(), series.timeline.text(2)) == ("1", [1.5, 2.5], "04/01/2020")
    (again,), layout = read_series_data(second, given=found)
    assert (again.values.tolist(), layout) == ([1.5, 2.5], found)


def test_a_folder_is_read_like_its_files(tmp_path):
    contents = {"a/x.csv": "ds,y\n1,1\n2,2\n", "b.csv": "ds;y\n2024-01;5,5\n2024-02;6\n", "c.txt": "notes"}
    contents["b.jsonl"] = '{"unique_id": "z", "ds": 1, "y": 3}\n'
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "b.jsonl").write_text(contents["b.jsonl"] + contents["b.jsonl"].replace("1", "2"))
    files = [tmp_path / name for name in sorted(contents) if name != "c.txt"]
    for source in (tmp_path, files, list(map(str, files))):
        series, found = read_series_data(source)
        assert [each.unique_id for each in series] == ["x/y", "b/y", "z"]
        assert [each.timeline.text(2) for each in series] == ["3", "2024-03", "3"]
        assert (found.time_column, found.separator, found.date_format) == ("ds", None, None)
    (tmp_path / "x.csv").write_text(contents["a/x.csv"])
    with pytest.raises(DataError, match="x.csv: a second series 'x/y'"):
        read_series(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="no file with series in this folder"):
        read_series(tmp_path / "none")


def test_parquet_has_dates_where_all_times_are_midnight(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    times = [datetime(2020, 1, day) for day in (1, 2, 3)]
    parquet.write_table(arrow.table({"timestamp": times, "target": [1.5, None, 2]}), tmp_path / "x.parquet")
    (series,) = read_series(tmp_path / "x.parquet")
    assert series.timeline.text(3) == "2020-01-04"
    parquet.write_table(arrow.table({"timestamp": times[:0]}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="is empty"):
        read_series(tmp_path / "empty.parquet")


def test_parquet_has_dates_and_numbers_of_its_own(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    times = [datetime(2020, 1, 1, hour) for hour in (0, 1, 2)]
    parquet.write_table(arrow.table({"item_id": ["a"] * 3, "timestamp": times, "target": [1.5, None, 1e20]}), path)
    (series,) = read_series(path)
    np.testing.assert_array_equal(series.values, [1.5, NAN, 1e20])
    assert (series.timeline.frequency, series.timeline.text(3)) == ("1 hour", "2020-01-01 03:00:00")
    with pytest.raises(UsageError, match="separator is for text files"):
        read_series(path, given=SeriesFormat(separator=";"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (SeriesFormat(time_column="day"), "no column 'day'.*time_column"),
        (SeriesFormat(id_column="x"), "no column 'x'.*id_column"),
        (SeriesFormat(target_column="x"), "no column 'x'.*target_column"),
        (SeriesFormat(separator="::"), "separator must be one character"),
        (SeriesFormat(decimal=":"), "decimal must be"),
        (SeriesFormat(decimal=","), "'1.5' is not a number"),
        (SeriesFormat(date_format="%d.%m.%Y"), "in the format %d.%m.%Y of date_format"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(given, words, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("ds,y\n2020-01-01,1.5\n2020-01-02,2\n", encoding="utf-8")
    with pytest.raises(ForetellError, match=words):
        read_series(path, given=given)
