"""What holds for every lesson: its figures agree, and its walk can be read in a terminal and in a browser."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from foretell.errors import UsageError
from foretell.lessons.catalog import ENTRIES, find_lesson
from foretell.lessons.check import same
from foretell.lessons.classes import LESSONS
from foretell.lessons.report import Report, check_lesson
from foretell.typesetting.html import page

NAMES = [entry.name for entry in ENTRIES]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_agrees(name, lessons):
    report = check_lesson(name, lessons[name])
    assert [failure.difference() for failure in report.failures] == []
    assert len(report.checks) > 5
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_walk_fits_a_terminal_and_a_few_screens(name, lessons):
    lines = str(lessons[name]).splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert 40 < len(lines) < 200


@pytest.mark.parametrize("name", NAMES)
def test_a_walk_is_a_page_of_its_own(name, lessons):
    written = page(name, lessons[name].document())
    assert written.startswith("<!doctype html>")
    assert "<script" not in written
    assert "http" not in written.replace("http://www.w3.org", "")


def test_every_name_has_a_lesson():
    assert list(LESSONS) == NAMES


def test_a_lesson_is_found_by_name_and_by_number():
    assert find_lesson("toy") == find_lesson("E4") == find_lesson("e4")


@pytest.mark.parametrize(("name", "said"), [("tyo", "did you mean 'toy'"), ("quantum", "there is smallest, gpt2")])
def test_an_unknown_lesson_is_refused_with_those_that_there_are(name, said):
    with pytest.raises(UsageError, match=said):
        find_lesson(name)


def test_a_failure_outweighs_what_was_skipped():
    good, bad = same("x", 1, 1), same("x", 1, 2)
    assert Report("a", [good], "").status == "passed"
    assert Report("a", [good], "no weights").status == "skipped"
    assert Report("a", [good, bad], "no weights").status == "failed"
