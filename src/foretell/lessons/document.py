"""Lessons as Markdown with the names of values, read into documents.

`NAME.md` is prose for readers and editors, without code. It has `#` and `##` headings, paragraphs, tables, `console`
blocks, and formulas between `$$` (`foretell.typesetting.formula`). `{{ name }}` is a value that `NAME.py` computes:

- within a sentence or a cell, text or a whole number
- in a formula, a number, an array or an expression
- as a block, a table or other parts of a document
- as the only cell of a row, rows of the table

After the line `{if name}` or `{unless name}`, a block, or a whole section if the block is its heading, is shown only if
that value is true, or false. Backticks mark commands, and words that Markdown would change, such as `<EOS>`. They are
not shown. A table with backticks in every row has a monospace font.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from foretell.errors import LessonError
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Part, Table
from foretell.typesetting.formula import read_formula

VALUE = re.compile(r"\{\{ *(\w+) *\}\}")
CONDITION = re.compile(r"^\{(?P<word>if|unless) (?P<name>\w+)\}\n", re.MULTILINE)
CELL_END = re.compile(r"(?<!\\)\|")


def read_document(text: str, values: Mapping[str, Any]) -> DocumentSection:
    """The document that a lesson's Markdown describes, with its values.

    Raises:
        LessonError: the text names an unknown value, or does not use all of them, or a name in it is not closed.
    """
    if text.count("{{") != len(VALUE.findall(text)):
        raise LessonError("the lesson's text has '{{' without the name of one value and '}}' after it")
    check_names({*VALUE.findall(text), *(name for _, name in CONDITION.findall(text))}, set(values))
    title, *blocks = re.split(r"\n{2,}", text.strip())
    parts: list[Part] = []
    section: list[Part] | None = parts  # None for a section that is not shown
    for block in blocks:
        condition = CONDITION.match(block)
        is_shown = condition is None or bool(values[condition["name"]]) == (condition["word"] == "if")
        content = block[condition.end() :] if condition else block
        if content.startswith("## "):
            section = [] if is_shown else None
            if section is not None:
                parts.append(DocumentSection(fill(content.removeprefix("## "), values), section))
        elif is_shown and section is not None:
            section += read_block(content, values)
    return DocumentSection(title.removeprefix("# "), parts)


def check_names(named: set[str], given: set[str]) -> None:
    """Raise a `LessonError` unless the values that are named are those that are given."""
    if named != given:
        unknown, unused = (", ".join(sorted(names)) or "none" for names in (named - given, given - named))
        raise LessonError(f"the lesson's text and its values differ: unknown {unknown}; unused {unused}")


def read_block(block: str, values: Mapping[str, Any]) -> Sequence[Part]:
    """A formula, console block, table or paragraph, or the parts that a value has in its place."""
    if block.startswith("$$"):
        return [Formula(read_formula(block.strip("$ \n"), values))]
    if block.startswith("```"):
        return [Table(("",), [(line,) for line in block.splitlines()[1:-1]], monospace=True)]
    if block.startswith("|"):
        return [read_table(block, values)]
    value = VALUE.fullmatch(block)
    parts = values[value[1]] if value else block
    if not isinstance(parts, str):
        return [parts] if isinstance(parts, Part) else parts
    return [Paragraph(fill(" ".join(block.split()), values))]


def read_table(block: str, values: Mapping[str, Any]) -> Table:
    """A table with a header; a row that is one value is replaced by its rows."""
    header, _, *lines = ([cell.strip() for cell in CELL_END.split(line)[1:-1]] for line in block.splitlines())
    rows: list[Sequence[str]] = []
    for cells in lines:
        value = VALUE.fullmatch(cells[0]) if len(cells) == 1 else None
        if value:
            rows += [[str(cell) for cell in line] for line in values[value[1]]]
        else:
            rows.append([fill(cell, values) for cell in cells])
    monospace = all("`" in "".join(cells) for cells in lines)
    return Table([fill(cell, values) for cell in header], rows, monospace)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Running text with its values, without backticks and escapes."""

    def shown(match: re.Match[str]) -> str:
        value = values[match[1]]
        if not isinstance(value, str | int):
            raise LessonError(f"'{match[1]}' is within a sentence; give text or a whole number, not {value!r}")
        return str(value)

    return VALUE.sub(shown, text.replace("`", "").replace(r"\|", "|"))
