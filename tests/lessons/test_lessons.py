"""All lessons: their figures agree, and they can be read in a terminal and in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import foretell.lessons
from foretell.errors import UsageError
from foretell.finetuning.label_kind import ClassifyKind
from foretell.lessons.lesson import LessonReport, same
from foretell.lessons.registry import ENTRIES, find_lesson, lesson_class
from foretell.typesetting.html import page

# Training the lesson on induction takes half a minute; the others take two seconds each
SLOW = "induction"
QUICK = [entry.name for entry in ENTRIES if entry.name != SLOW]
NAMES = [*QUICK, pytest.param(SLOW, marks=pytest.mark.long)]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_agrees(name, lessons):
    report = lessons[name].report()
    assert [failure.difference() for failure in report.failures] == []
    assert len(report.checks) > 5
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_fits_a_terminal_and_a_few_screens(name, lessons):
    lines = str(lessons[name]).splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert 40 < len(lines) < 350


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_is_a_self_contained_page(name, lessons):
    written = page(name, lessons[name].document())
    assert written.startswith("<!doctype html>")
    assert "<script" not in written
    assert "http" not in written.replace("http://www.w3.org", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lessons_pages_are_accessible_and_fit_a_laptops_screen(lessons, browser, accessibility_problems, scheme):
    context = browser.new_context(viewport={"width": 1024, "height": 800}, color_scheme=scheme)
    opened = context.new_page()
    cut = "[...document.querySelectorAll('.scroll')].filter((part) => part.scrollWidth > part.clientWidth).length"
    for name in QUICK:
        opened.set_content(page(name, lessons[name].document()))
        assert accessibility_problems(opened) == [], name
        assert opened.evaluate(cut) == 0, name
    context.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_lesson_names_its_source(name, lessons):
    text = " ".join(str(lessons[name]).split())
    assert f"Source: {find_lesson(name).source}." in text
    assert not re.search(r"\b(the|this) (chapter|lecture|slides|post|notebook|notes|book)\b", text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smallest", "The third row belongs to analytics"),
        ("smallest", f"The default of --task classify is --pool {ClassifyKind.pools[0]}"),
        ("algorithms", "In line 6 the source lets tz and tx run to T"),
        ("algorithms", "one class for each token, such as names or parts of speech (sequence labelling)"),
        ("algorithms", "on 9 of the 12 datasets"),
        ("toy", "the source's model has 20 position vectors"),
        ("aggregation", "it calls the matrix W where it is A"),
        ("aggregation", "prints this sum as H′ = A V. It is V′ = T V"),
        ("translation", "labelled q₁ to q₄ in one figure and Q₁ to Q₄ in the next"),
    ],
)
def test_a_lesson_points_out_what_its_source_has_wrong_or_adds(lessons, name, words):
    assert words in " ".join(str(lessons[name]).split())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_lesson_ends_with_commands_for_the_readers_file_and_the_page_leads_to_it(entry):
    *_, last = entry.text.split("\n## ")
    assert "n your own file\n" in last
    assert 2 <= len(re.findall(r"^\$ foretell .*(?:my\.txt|toy\.txt|\.csv|\.tsv|runs/|pairs)", last, re.MULTILINE)) <= 4
    assert last.rstrip().endswith("```")
    page = (Path(__file__).parents[2] / "docs" / "lessons.md").read_text(encoding="utf-8")
    assert not entry.alias or re.search(rf"^\| .* \| `{entry.name}` \| .*`foretell ", page, re.MULTILINE)


def test_every_catalog_entry_has_a_lesson(lessons):
    assert all(lesson_class(entry.name).name == entry.name for entry in ENTRIES)
    texts = Path(foretell.lessons.__file__).parent.glob("*.md")
    assert {text.stem for text in texts} == {entry.name for entry in ENTRIES}
    assert [lessons[name].name for name in QUICK] == QUICK


def test_a_lesson_is_found_by_name_and_by_number():
    assert find_lesson("toy") == find_lesson("E4") == find_lesson("e4")


@pytest.mark.parametrize(
    ("name", "message"),
    [("tyo", "did you mean 'toy'"), ("quantum", "the lessons are smallest, gpt2"), ("", "no lesson ''")],
)
def test_an_unknown_lesson_is_refused_with_a_suggestion(name, message):
    with pytest.raises(UsageError, match=message):
        find_lesson(name)


def test_a_report_fails_before_it_is_skipped():
    good, bad = same("x", 1, 1), same("x", 1, 2)
    assert LessonReport("a", [good], "").status == "passed"
    assert LessonReport("a", [good], "no weights").status == "skipped"
    assert LessonReport("a", [good, bad], "no weights").status == "failed"
