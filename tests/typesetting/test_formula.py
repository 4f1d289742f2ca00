"""Formulas read from text."""

from __future__ import annotations

import pytest

from foretell.errors import UsageError
from foretell.typesetting.expression import (
    Call,
    Expression,
    Fraction,
    Matrix,
    Number,
    Root,
    Symbol,
    read_formula,
    row,
    script,
)

QKT = row(Symbol("Q"), script("K", above="T"))


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("x", Symbol("x")),
        ("2", Number(2)),
        ("0.0041 ∂L", row(0.0041, Symbol("∂L"))),
        ("x_i", script("x", "i")),
        ("W_Q^T", script("W", "Q", "T")),
        ("10000^{2i/d}", script(Number(10000), above="2i/d")),
        ("Σ_{t=1}^T x", row(script("Σ", "t=1", "T"), Symbol("x"))),
        (r"\frac{Q K^T}{\sqrt{3}} + M", row(Fraction(QKT, Root(Number(3))), "+", Symbol("M"))),
        ("softmax(Q K^T)", Call("softmax", QKT)),
        ("M (Q K^T)^T", row(Symbol("M"), script(Call("", QKT), above="T"))),
        ("P(x_t | x_1, …; Θ)", Call("P", row(script("x", "t"), "|", script("x", "1"), ",", "…", ";", Symbol("Θ")))),
        (r"\text{P[1, 2]} \quad m̂_1 V′", row(Symbol("P[1, 2]"), Symbol("  "), script("m̂", "1"), Symbol("V′"))),
        ("- log {{ p }}", row("-", Symbol("log"), 0.5)),
    ],
)
def test_a_formula_is_read_from_text(text: str, expression: Expression) -> None:
    assert read_formula(text, {"p": 0.5}) == expression


def test_a_value_can_be_an_array_or_an_expression() -> None:
    matrix = Matrix([1, 2], 2)
    assert read_formula("{{ A }}^T", {"A": matrix}) == script(matrix, above="T")
    assert isinstance(read_formula("{{ A }}", {"A": [1, 2]}), Matrix)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a", r"'\(a': '\)' is missing"),
        ("a)", r"'\)' without a partner"),
        (r"\frac{a}", "'{' is missing"),
        (r"\sqrt{a", "'}' is missing"),
        (r"\sqr{a}", r"unknown command \\sqr"),
    ],
)
def test_a_formula_with_a_mistake_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_formula(text, {})
