"""Formulas and documents in a terminal and in HTML."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from foretell.errors import UsageError
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table, bar
from foretell.typesetting.expression import (
    Call,
    Expression,
    Fraction,
    Matrix,
    Number,
    Root,
    Symbol,
    SymbolMatrix,
    array,
    row,
    script,
)
from foretell.typesetting.html import Shown, fragment, mathml, page
from foretell.typesetting.numbers import format_number
from foretell.typesetting.text import document_text, expression_lines

SCORE = row(Symbol("S"), "=", Fraction(row(Symbol("Q"), script("K", above="T")), Root(Symbol("E"))))
LEAVES = st.one_of(
    st.floats(-1e9, 1e9).map(Number),
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=9).map(Symbol),
    st.tuples(st.integers(1, 20), st.integers(1, 40)).map(lambda shape: Matrix(np.full(shape, 0.25))),
)


def equations(items: list[Expression]) -> Expression:
    return row(*[part for item in items for part in ("=", item)])


EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(equations),
        st.tuples(inner, inner).map(lambda pair: Fraction(*pair)),
        inner.map(Root),
        inner.map(lambda inside: Call("softmax", inside)),
    ),
    max_leaves=6,
)


def test_html_keeps_several_spaces_in_a_label():
    label = "'   '"
    table, heat = Table(["token"], [[label]]), HeatMap(np.eye(1), [label], [label])
    html = fragment(DocumentSection("", [table, heat]))
    assert len(re.findall(r"<t[hd][^>]*white-space:pre[^>]*>&#x27;   &#x27;<", html)) == 3
    assert "&#x27;\xa0\xa0\xa0&#x27;" in mathml(Matrix(np.eye(1), row_labels=[label]))


def test_html_tables_have_padding_and_scroll_without_a_style_sheet():
    for part in (Table(["a", "b"], [["1", "2"]]), HeatMap(np.eye(2), ["a", "b"], ["a", "b"])):
        html = fragment(DocumentSection("", [part]))
        assert re.search(r'<div [^>]*style="overflow-x:auto"[^>]*><table cellpadding="4"', html)


def test_a_fractions_bar_is_on_the_line_of_the_equals_sign() -> None:
    assert expression_lines(SCORE) == ["    Q Kᵀ", "S = ────", "     √E"]


@pytest.mark.parametrize(("share", "shown"), [(0.5, "█" * 12), (1e-9, "█"), (0.0, ""), (-0.25, "▒" * 6)])
def test_a_bar_shows_size_and_sign(share: float, shown: str) -> None:
    assert bar(share) == shown


def test_a_matrix_has_tall_brackets_and_aligned_columns() -> None:
    matrix = Matrix([[1.0, -np.inf], [-0.25, 12.5]], row_labels=["is", "data"])
    assert expression_lines(matrix) == ["  is ⎡ 1.0000       -∞⎤", "data ⎣-0.2500  12.5000⎦"]


def test_a_wide_formula_breaks_before_a_relation() -> None:
    wide = row(Symbol("x"), "=", Matrix(np.ones(5)), "=", Matrix(np.ones(5)))
    assert [line.split("[")[0] for line in expression_lines(wide, 60)] == ["x = ", "  = "]


def test_a_long_vector_shows_its_first_and_last_numbers() -> None:
    (line,) = expression_lines(Matrix(np.arange(100.0)), 60)
    assert line.startswith(("[ 0.0000", "[0.0000"))
    assert line.endswith("…  99.0000]")


@given(EXPRESSIONS)
def test_any_formula_gives_lines_and_well_formed_mathml(expression: Expression) -> None:
    assert expression_lines(expression)
    ElementTree.fromstring(mathml(expression))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.48411, "0.4841"), (3, "3"), (0.0, "0.0000"), (-0.0, "0.0000"), (2e-5, "2.0e-05"), (3e7, "3.0e+07")],
)
def test_format_number(value: float, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (3, ["3"]),
        (0.5, ["0.5000"]),
        ([1, 2], ["[1  2]"]),
        ([[True], [False]], ["⎡1⎤", "⎣0⎦"]),
        (np.ones((2, 1, 1), dtype=int), ["[1], [1]"]),
    ],
)
def test_any_array_is_a_formula(values, shown) -> None:
    assert expression_lines(array(values)) == shown


def test_a_large_array_shows_its_edges() -> None:
    shown = mathml(array(np.arange(10_000).reshape(100, 100)))
    assert shown.count("<mtd") == 16 * 16
    assert "…" in shown
    assert "9999" in shown


@pytest.mark.parametrize("values", ["a", [], 1j])
def test_what_is_not_numbers_is_refused(values) -> None:
    with pytest.raises(UsageError, match="cannot be shown as numbers"):
        array(values)


def test_row_takes_arrays_and_numbers() -> None:
    assert expression_lines(row(Symbol("x"), "=", [1, 2], "·", 2)) == ["x = [1  2] · 2"]


def test_a_matrix_of_symbols_in_text_and_html() -> None:
    matrix = SymbolMatrix([[script("q", "1"), "…"], ["7.9", "⋮"]], ["<sos>", "Je"])
    assert expression_lines(matrix) == ["<sos> ⎡ q₁  …⎤", "   Je ⎣7.9  ⋮⎦"]
    assert ElementTree.fromstring(mathml(matrix)).find(".//msub") is not None


def test_a_sum_has_its_limits_below_and_above() -> None:
    total = row(script("Σ", "t=1", "T"), Symbol("x"))
    assert expression_lines(total) == ["Σₜ₌₁ᵀ x"]
    assert "<munderover>" in mathml(total)


def test_a_document_with_wide_characters_fits_the_width() -> None:
    table = Table(["token", "probability"], [["語" * 60, "0.25"], ["b", "-∞"]])
    heat = HeatMap(np.eye(3), ["a", "🙂", "c"], ["a", "🙂", "c"], "attention weights")
    text = document_text(DocumentSection("Title", [Paragraph("word " * 60), Formula(SCORE, "the scores"), table, heat]))
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "🙂 ▏  ██  ▕" in text
    assert any(line.endswith("0.25") and "…" in line for line in text.splitlines())


def test_a_page_escapes_markup() -> None:
    html = page("<b>", DocumentSection("</script><script>alert(1)</script>", [Table(["<i>"], [["&"]])]))
    assert "<script" not in html
    assert "&lt;i&gt;" in html


@pytest.mark.parametrize(
    ("inside", "tall"),
    [
        (Symbol("x"), False),
        (SCORE, True),
        (row(Call("f", Matrix([1])), "+", Symbol("x")), True),
        (Root(Symbol("x")), False),
    ],
)
def test_parentheses_are_tall_only_around_what_is(inside, tall) -> None:
    end = "<mo>)</mo>" if tall else '<mo stretchy="false">)</mo>'
    assert mathml(Call("f", inside)).endswith(f"{end}</mrow></math>")


def test_options_are_not_broken_at_their_hyphens() -> None:
    html = fragment(DocumentSection("", [Paragraph("use --top-k 5, not a--b & c")]))
    assert '<span style="white-space:nowrap">--top-k</span> 5, not a--b &amp; c' in html


def test_a_monospace_table_without_a_header_is_for_commands() -> None:
    commands = DocumentSection("", [Table(("",), [("$ foretell lesson",)], monospace=True)])
    assert document_text(commands) == "$ foretell lesson"
    assert "monospace" in fragment(commands)
    assert "<th" not in fragment(commands)


def test_a_shown_result_has_text_and_html() -> None:
    class Result(Shown):
        def document(self) -> DocumentSection:
            return DocumentSection("Scores", [Formula(SCORE)])

    assert "Q Kᵀ" in str(Result())
    assert "<math" in Result()._repr_html_()


def test_a_table_that_is_a_little_too_wide_has_closer_columns_and_whole_words() -> None:
    table = Table(["", "MASE", "MAE"], [["seasonal naive", "0.392", "1.234e+04"]])
    exact = len("seasonal naive  0.392  1.234e+04")
    for width in (exact, exact - 1, exact - 2):
        lines = document_text(DocumentSection("", [table]), width).splitlines()
        assert "seasonal naive" in lines[-1]
        assert max(map(len, lines)) <= width
    assert "seasonal n…" in document_text(DocumentSection("", [table]), exact - 3)
