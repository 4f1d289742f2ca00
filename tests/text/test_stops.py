"""Stop strings found in a stream are those that a search of the whole text finds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import UsageError
from foretell.text import StopStrings


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@settings(max_examples=250, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=25),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
    places=st.lists(st.integers(0, 100), max_size=8),
)
def test_the_result_is_the_text_before_the_earliest_stop(text: str, stops: list[str], places: list[int]) -> None:
    stream = StopStrings(stops)
    passed = "".join([*map(stream.push, cut(text, places)), stream.finish()])
    found = [text.find(stop) for stop in stops if stop in text]
    assert passed == text[: min(found, default=len(text))]
    assert stream.stopped is bool(found)


def test_text_that_cannot_begin_a_stop_passes_at_once() -> None:
    stream = StopStrings(["\nUser:"])
    assert stream.push("Hello") == "Hello"
    assert stream.push(" there\nUs") == " there"
    assert stream.push("ually") == "\nUsually"
    assert (stream.push("!\nUser: more"), stream.stopped) == ("!", True)
    assert (stream.push("even more"), stream.finish()) == ("", "")


def test_a_longer_stop_that_begins_earlier_is_waited_for() -> None:
    stream = StopStrings(["abcd", "c"])
    assert (stream.push("xabc"), stream.stopped) == ("x", False)
    assert (stream.push("d"), stream.stopped) == ("", True)


def test_a_stop_inside_an_unfinished_one_counts_at_the_end() -> None:
    stream = StopStrings(["abcd", "c"])
    assert stream.push("abc") == ""
    assert (stream.finish(), stream.stopped) == ("ab", True)


@pytest.mark.parametrize("stops", [[""], ["a", ""], "abc"])
def test_an_empty_stop_string_is_refused(stops: list[str]) -> None:
    with pytest.raises(UsageError, match="not empty"):
        StopStrings(stops)
