"""Documents from Markdown with values, and checks of figures."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from foretell.errors import LessonError, UsageError
from foretell.lessons.lesson import above, below, near, printed, read_document, same
from foretell.lessons.registry import ENTRIES
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Matrix
from foretell.typesetting.text import document_text

LESSON = """# A title

Source: a text. It has {{ count }}
words, and {{ word }}.

## 1. A table

| a | b |
|---|---|
| `<EOS>` | x \\| y |
| {{ rows }} |

$$ A = {{ A }} $$

{{ picture }}

{unless long}
```console
$ foretell lesson
```

{if long}
## 2. More

{{ more }}
"""
VALUES = {
    "count": 4,
    "word": "`code`",
    "rows": [(1, "{{ count }}")],
    "A": [1, 2],
    "picture": Paragraph("a part"),
    "long": False,
    "more": None,
}


def test_a_lesson_is_read_block_by_block():
    document = read_document(LESSON, VALUES)
    first, section = document.parts
    assert (document.title, first) == ("A title", Paragraph("Source: a text. It has 4 words, and `code`."))
    assert isinstance(section, DocumentSection)
    table, formula, picture, command = section.parts
    assert table == Table(["a", "b"], [["<EOS>", "x | y"], ["1", "{{ count }}"]])
    assert isinstance(formula, Formula)
    assert picture is VALUES["picture"]
    assert command == Table(("",), [("$ foretell lesson",)], monospace=True)
    assert "A = [1  2]" in document_text(document)


def test_a_condition_shows_a_block_or_a_whole_section():
    _, section, more = read_document(LESSON, {**VALUES, "long": True, "more": [Paragraph("x")] * 2}).parts
    assert isinstance(section, DocumentSection)
    assert len(section.parts) == 3
    assert more == DocumentSection("2. More", [Paragraph("x")] * 2)


def test_a_table_with_code_in_every_row_is_monospace():
    text = "# t\n\n| a | |\n|---|---|\n| 1 | `b = 1` |\n| 2 | `  c` |"
    assert read_document(text, {}).parts == [Table(["a", ""], [["1", "b = 1"], ["2", "  c"]], monospace=True)]


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("{{ a }} {{ b }}", {"a": 1, "c": 2}, "unknown b; unused c"),
        ("a", {"a": 1}, "unknown none; unused a"),
        ("{if a}\nb", {}, "unknown a; unused none"),
        ("{{ a b }}", {"a": 1, "b": 1}, "without the name of one value"),
        ("P is {{ a }}.", {"a": 0.5}, "'a' is within a sentence; give text or a whole number, not 0.5"),
        ("The matrix {{ a }}.", {"a": Matrix([1])}, "'a' is within a sentence"),
    ],
)
def test_unknown_unused_and_misplaced_values_are_refused(text, values, message):
    with pytest.raises(LessonError, match=re.escape(message)):
        read_document(f"# title\n\n{text}", values)


def test_a_formula_that_cannot_be_read_is_refused():
    with pytest.raises(UsageError, match="'}' is missing"):
        read_document("# title\n\n$$ \\sqrt{2 $$", {})


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_lessons_texts_hold_no_code(entry):
    inside = re.findall(r"\{[{%#].*?[}%#]\}", entry.text)
    assert [name for name in inside if not re.fullmatch(r"\{\{ \w+ \}\}", name)] == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(each.name, marks=pytest.mark.long if each.name in {"induction", "sort"} else ()) for each in ENTRIES],
)
def test_a_lesson_without_one_of_its_values_fails(lessons, name):
    entry = next(entry for entry in ENTRIES if entry.name == name)
    values = dict(lessons[name].shown())
    missing = next(iter(values))
    del values[missing]
    with pytest.raises(LessonError, match=f"unknown {missing}; unused none"):
        read_document(entry.text, values)


def test_printed_accepts_exactly_what_rounds_to_the_figure():
    assert printed("x", [0.4841], [0.48414999]).passed
    assert not printed("x", [0.4841], [0.48416]).passed
    assert printed("x", 0.226309, 0.22630851, digits=6).passed


def test_other_shapes_and_nan_fail():
    assert not near("x", [1.0, 2.0], [1.0], 1.0).passed
    assert not near("x", [1.0], [float("nan")], 1.0).passed
    assert not below("x", 1, float("nan")).passed
    assert not above("x", 1, float("nan")).passed


def test_near_accepts_equal_infinities_at_equal_indices():
    assert near("x", [-np.inf, 1.0], [-np.inf, 1.0], 0.0).passed
    assert not near("x", [-np.inf, 1.0], [1.0, -np.inf], 0.0).passed


@pytest.mark.parametrize(
    ("expected", "got", "passed"), [(None, None, True), ("a", "b", False), ([1, 2], [1, 3], False)]
)
def test_same_compares_any_values(expected, got, passed):
    assert same("x", expected, got).passed is passed


def test_difference_names_the_index_of_the_largest_error():
    check = printed("weights", [[1.0, 0.0], [0.4841, 0.5159]], [[1.0, 0.0], [0.4841, 0.6]])
    assert check.difference() == "weights [1, 1]: expected 0.5159, got 0.6"
    assert same("name", "a", None).difference() == "name: expected a, got None"
    assert same("name", ["a", "b"], ["a", "c"]).difference() == "name [1]: expected b, got c"
    assert near("sum", [1.0], [float("nan")], 0.1).difference() == "sum [0]: expected 1.0, got nan"


def test_a_check_is_valid_json_with_infinities_and_nan():
    check = near("x", np.array([-np.inf, 1.0]), np.array([np.nan, 1.0]), 0.1)
    assert json.loads(json.dumps(check.to_json(), allow_nan=False)) == {
        "what": "x",
        "expected": ["-inf", 1.0],
        "got": ["nan", 1.0],
        "tolerance": 0.1,
        "passed": False,
    }
