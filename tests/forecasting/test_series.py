"""Times: their frequency is found, continued and written as in the file; irregular ones are refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from foretell.errors import DataError
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
}


@pytest.mark.parametrize(("times", "frequency", "season", "following"), TIMES.values(), ids=TIMES)
def test_times_are_continued_in_their_own_form(times, frequency, season, following):
    timeline, indices = find_timeline(times, "x")
    assert indices.tolist() == list(range(len(times)))
    assert (timeline.frequency, timeline.season) == (frequency, season)
    assert [timeline.text(index) for index in range(len(times) + 1)] == [*times, following]
    assert timeline.moved(1).text(0) == times[1]


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
        (["2024-01-01", "01/02/2024"], "'01/02/2024' is not a time"),
        (["2024-01-01", "2024-13-01"], "does not exist"),
        (["2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z"], "time zone"),
    ],
)
def test_times_that_are_not_equally_spaced_are_refused(times, words):
    with pytest.raises(DataError, match=words):
        find_timeline(times, "x")
