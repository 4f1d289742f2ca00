"""Times: their frequency is found, continued and written as in the file; irregular ones are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import DataError, UsageError
from foretell.forecasting.date_format import choose_date_format
from foretell.forecasting.series import find_timeline

WEEKDAYS = [str(day) for day in np.arange("2024-01-01", "2024-01-20", dtype="datetime64[D]") if np.is_busday(day)]
# times, frequency, season, the time after the last
TIMES = {
    "numbers": (["3", "5", "7"], "2 numbers", None, "9"),
    "years": (["1990", "1991", "1992"], "1 number", None, "1993"),
    "hours": (["2024-01-01 22:00:00", "2024-01-01 23:00:00"], "1 hour", 24, "2024-01-02 00:00:00"),
    "minutes, T": (["2024-01-01T00:00", "2024-01-01T00:15"], "15 minutes", 96, "2024-01-01T00:30"),
    "days": (["2024-02-27", "2024-02-28", "2024-02-29"], "1 day", 7, "2024-03-01"),
    "weeks": (["2024-01-01", "2024-01-08", "2024-01-15"], "1 week", 52, "2024-01-22"),
    "weekdays": (WEEKDAYS, "1 weekday", 5, "2024-01-22"),
    "months": (["2023-11", "2023-12"], "1 month", 12, "2024-01"),
    "the 15th": (["2023-11-15 06:00", "2023-12-15 06:00"], "1 month", 12, "2024-01-15 06:00"),
    "month ends": (["2023-12-31", "2024-01-31"], "1 month end", 12, "2024-02-29"),
    "quarters": (["2023-07-01", "2023-10-01"], "3 months", 4, "2024-01-01"),
    "compact": (["20240228", "20240229"], "1 day", 7, "20240301"),
    "points": (["30.12.2023", "31.12.2023"], "1 day", 7, "01.01.2024"),
    "slashes, month first": (["12/30/2023", "12/31/2023"], "1 day", 7, "01/01/2024"),
    "slashes, day first, no zeros": (["30/9/2023", "1/10/2023"], "1 day", 7, "2/10/2023"),
    "named quarters": (["2023Q3", "2023Q4"], "3 months", 4, "2024Q1"),
    "ISO weeks": (["2020-W52", "2020-W53"], "1 week", 52, "2021-W01"),
    "UTC": (["2024-01-01T22:00:00Z", "2024-01-01T23:00:00Z"], "1 hour", 24, "2024-01-02T00:00:00Z"),
    "an offset": (["01.01.2024 23:00 +0530", "02.01.2024 00:00 +0530"], "1 hour", 24, "02.01.2024 01:00 +0530"),
    "an hour of one digit": (["1/30/2024 9:00", "1/30/2024 10:00"], "1 hour", 24, "1/30/2024 11:00"),
    "zeros of a second": (["2024-01-01 22:00:00.00", "2024-01-01 23:00:00.00"], "1 hour", 24, "2024-01-02 00:00:00.00"),
}


GIVEN = {
    "%d.%m.%y": (["30.12.99", "31.12.99"], "01.01.00"),
    "%Y/%m/%d": (["2023/12/30", "2023/12/31"], "2024/01/01"),
    "%Y-Q%q": (["2023-Q3", "2023-Q4"], "2024-Q1"),
    "%qQ%y": (["3Q23", "4Q23"], "1Q24"),
    "%b %Y": (["Nov 1999", "Dec 1999"], "Jan 2000"),
    "%B %Y": (["March 2000", "June 2000"], "September 2000"),
    "%d %b %Y": (["30 Jan 2000", "31 Jan 2000"], "01 Feb 2000"),
    "%-m.%Y": (["11.1994", "12.1994"], "1.1995"),
    "FY %Y": (["FY 2019", "FY 2020"], "FY 2021"),
    "%a %d.%m.%Y": (["Sun 31.12.2023", "Mon 01.01.2024"], "Tue 02.01.2024"),
    "week %V of %G": (["week 52 of 2020", "week 53 of 2020"], "week 01 of 2021"),
    "%Y-%j": (["2023-364", "2023-365"], "2024-001"),
    "%Y%m%dT%H%M%S%z": (["20240101T220000Z", "20240101T230000Z"], "20240102T000000Z"),
    "%m/%d/%Y %I:%M %p": (["12/30/2023 11:00 PM", "12/31/2023 12:00 AM"], "12/31/2023 01:00 AM"),
    "%Y-%m-%d %I:%M:%S%p": (["2023-12-31 10:30:00AM", "2023-12-31 11:30:00AM"], "2023-12-31 12:30:00PM"),
    "%-m/%d/%Y %-I:%M %p": (["1/30/2024 11:00 PM", "1/31/2024 1:00 AM"], "1/31/2024 3:00 AM"),
}


@pytest.mark.parametrize(("times", "frequency", "season", "following"), TIMES.values(), ids=TIMES)
def test_times_are_continued_in_their_own_form(times, frequency, season, following):
    timeline, indices = find_timeline(times, "x")
    assert indices.tolist() == list(range(len(times)))
    assert (timeline.frequency, timeline.season) == (frequency, season)
    assert [timeline.text(index) for index in range(len(times) + 1)] == [*times, following]
    assert timeline.moved(1).text(0) == times[1]


@pytest.mark.parametrize(("date_format", "case"), GIVEN.items(), ids=GIVEN)
def test_a_given_format_reads_and_continues_what_none_of_the_known_ones_reads(date_format, case):
    times, following = case
    places = {time: f"line {index}" for index, time in enumerate(times, 2)}
    with pytest.raises(DataError, match="line 2: .* is not a time; .* date_format"):
        choose_date_format(places)
    timeline, _ = find_timeline(times, "x", choose_date_format(places, given=date_format))
    assert [timeline.text(index) for index in range(len(times) + 1)] == [*times, following]


def test_a_change_of_daylight_saving_is_neither_a_gap_nor_a_second_value():
    hours = ["2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00", "2024-03-31T04:00+02:00"]
    timeline, indices = find_timeline(hours, "x")
    assert (timeline.frequency, indices.tolist(), timeline.text(3)) == ("1 hour", [0, 1, 2], "2024-03-31T05:00+02:00")
    back = ["2024-10-27T02:00+02:00", "2024-10-27T02:00+01:00", "2024-10-27T03:00+01:00"]
    assert find_timeline(back, "x")[1].tolist() == [0, 1, 2]
    local_days = ["2024-03-30T00:00+01:00", "2024-03-31T00:00+01:00", "2024-04-01T00:00+02:00"]
    timeline, indices = find_timeline(local_days, "x")
    assert (timeline.frequency, indices.tolist(), timeline.text(3)) == ("1 day", [0, 1, 2], "2024-04-02T00:00+02:00")
    the_same_in_utc = ["2024-03-29T23:00Z", "2024-03-30T23:00Z", "2024-03-31T22:00Z", "2024-04-01T22:00Z"]
    timeline, indices = find_timeline(the_same_in_utc, "x")
    assert (indices.tolist(), timeline.text(4)) == ([0, 1, 2, 3], "2024-04-02T22:00Z")  # as the last days


def test_seconds_since_1970_are_times_where_the_format_is_given():
    texts = ["1704067200", "1704070800"]
    assert find_timeline(texts, "x")[0].frequency == "3600 numbers"
    timeline, _ = find_timeline(texts, "x", "unix")
    assert (timeline.frequency, timeline.season, timeline.text(2)) == ("1 hour", 24, "1704074400")


@pytest.mark.parametrize(
    ("texts", "frequency", "following"),
    [
        (["1704067200000", "1706745600000"], "1 month", "1709251200000"),
        (["-157766400000", "0", "157766400000"], "60 months", "315532800000"),  # from 1965 to 1975
        (["1000", "2000"], "1000 numbers", "3000"),
        (["1704067200001", "1704067200002"], "1 number", "1704067200003"),
    ],
)
def test_milliseconds_since_1970_which_pandas_writes_to_json_are_times(texts, frequency, following):
    timeline, _ = find_timeline(texts, "x")
    assert (timeline.frequency, timeline.text(len(texts))) == (frequency, following)


def test_a_remembered_format_decides_between_two_readings():
    times = {"01/02/2020": "line 2", "01/03/2020": "line 3"}
    with pytest.raises(DataError, match="can be 2020-02-01 or 2020-01-02; give date_format %d/%m/%Y or"):
        choose_date_format(times)
    assert choose_date_format(times, remembered="%m/%d/%Y") == "%m/%d/%Y"
    assert choose_date_format({"2020-01-01": "line 2"}, remembered="%m/%d/%Y") == "%Y-%m-%d"
    assert choose_date_format({**times, "13/02/2020": "line 4"}) == "%d/%m/%Y"


def test_a_given_format_must_fit():
    with pytest.raises(DataError, match="line 2: '2020-01-01' is not a time in the format %d.%m.%Y"):
        choose_date_format({"2020-01-01": "line 2"}, given="%d.%m.%Y")
    for wrong in (
        *("%Q", "day", "%d %d", "%Y %", "%Y-%m-%d %I:%M", "%Y-%m-%d %H:%M %p"),
        *("%d.%m.", "%H:%M", "%Y-%U", "%Y-W%V"),
    ):
        with pytest.raises(UsageError, match="date_format '"):
            choose_date_format({"2020-01-01": "line 2"}, given=wrong)


def test_a_day_that_does_not_exist_is_named_with_its_line():
    with pytest.raises(DataError, match="line 9: '2023-02-29' is not in .*, or does not exist"):
        choose_date_format({"1970-01-01": "line 2", "2023-02-29": "line 9"})


def test_a_given_format_reads_numbers_without_zeros_unless_no_mark_separates_them():
    assert choose_date_format({"1.5.2024": "line 2", "01.06.2024": "line 3"}, given="%d.%m.%Y") == "%d.%m.%Y"
    with pytest.raises(DataError, match="'202411' is not a time in the format %Y%m%d"):
        choose_date_format({"202411": "line 2"}, given="%Y%m%d")
    assert choose_date_format({"202411": "line 2"}, remembered="%Y%m%d") == "number"


def test_fractions_of_a_second_are_refused_and_not_cut_off():
    with pytest.raises(DataError, match=r"'2024-01-01 00:00:00.5' is not a time"):
        choose_date_format({"2024-01-01 00:00:00.5": "line 2"}, given="%Y-%m-%d %H:%M:%S.%f")


def test_no_time_after_the_year_9999_is_written():
    timeline, _ = find_timeline(["9999-10", "9999-11"], "x")
    assert timeline.text(2) == "9999-12"
    with pytest.raises(DataError, match="after the year 9999"):
        timeline.text(3)


def test_the_order_of_rows_does_not_matter_and_absent_times_leave_a_gap():
    _, indices = find_timeline(["2024-01-05", "2024-01-01", "2024-01-02", "2024-01-04"], "x")
    assert indices.tolist() == [4, 0, 1, 3]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (["1", "2", "2"], "time 2 occurs twice"),
        (
            ["2024-01-01 00:00", "2024-01-01 01:00", "2024-01-01 02:00", "2024-01-01 02:30"],
            "02:30 follows 2024-01-01 02",
        ),
        (["2024-01-30", "2024-02-28", "2024-03-30", "2024-04-30"], "is 31 days|is 30 days|is 29 days"),
        (["1", "2", "9"], "6 of 9 are absent"),
        (["2024-01-01", "01/02/2024"], "'01/02/2024' is not in the format of '2024-01-01'"),
        (["yesterday", "today"], "'yesterday' is not a time; .* date_format"),
        (["2024-01-01", "2024-13-01"], "'2024-13-01' is not in the format"),
        (["2024-02-29", "2023-02-29"], "'2023-02-29' is not in the format of .* or does not exist"),
        (["2024-10-27 02:00", "2024-10-27 02:00"], "occurs twice; .* with their offset"),
    ],
)
def test_times_that_are_not_equally_spaced_are_refused(times, words):
    with pytest.raises(DataError, match=words):
        find_timeline(times, "x")
