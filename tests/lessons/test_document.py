"""A lesson's Markdown becomes a document, and its names and values must be the same."""

from __future__ import annotations

import re

import pytest

from foretell.errors import LessonError, UsageError
from foretell.lessons.catalog import ENTRIES
from foretell.lessons.document import read_document
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


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_a_lesson_without_one_of_its_values_fails(lessons, name):
    entry = next(entry for entry in ENTRIES if entry.name == name)
    values = dict(lessons[name].shown())
    missing = next(iter(values))
    del values[missing]
    with pytest.raises(LessonError, match=f"unknown {missing}; unused none"):
        read_document(entry.text, values)
