r"""Formulas from text, in a small part of LaTeX's notation: `softmax(\frac{Q K^T}{\sqrt{d}}) = {{ weights }}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretell.errors import UsageError
from foretell.typesetting.expression import (
    Call,
    Expression,
    Fraction,
    MathRow,
    Number,
    Operator,
    Root,
    Script,
    Symbol,
    as_expression,
)

TOKEN = re.compile(
    r"""\s*(?:
    \{\{ \s* (?P<value>\w+) \s* \}\}
    | \\text\{ (?P<text>[^{}]*) \}
    | (?P<command>\\\w+)
    | (?P<number>\d+ (?: \.\d+ )?)
    | (?P<function>[^\W\d_]+)? (?P<open>\()
    | (?P<name>[∂∇]? [^\W\d_]+ [\N{COMBINING CIRCUMFLEX ACCENT}′]*)
    | (?P<mark>[_^]) (?P<script>\w | \{[^{}]*\} )
    | (?P<sign>\S)
    )\s*""",
    re.VERBOSE,
)
WIDE_SPACE = Symbol("  ")
BRACES_AND_PARENTHESES = "{})"


def read_formula(text: str, values: Mapping[str, Any]) -> Expression:
    r"""The expression that a text describes.

    `{{ name }}` is a value. Names are letters; a name with a parenthesis right after it is a function. Commands are
    \frac{}{}, \sqrt{}, \quad, and \text{} for a name of any characters. Sub- and superscripts are one name each.

    Raises:
        UsageError: a brace or parenthesis has no partner, or a command is unknown.
    """
    return _FormulaReader(text, values).read()


class _FormulaReader:
    """Reads the tokens of one formula, from left to right."""

    def __init__(self, text: str, values: Mapping[str, Any]):
        self.text, self.values, self.tokens = text, values, TOKEN.finditer(text)

    def read(self, end: str = "") -> Expression:
        """The expressions up to the sign `end`, or to the end of the text: as a row, or alone if there is one."""
        items: list[Expression] = []
        for token in self.tokens:
            if token["sign"] and token["sign"] in BRACES_AND_PARENTHESES:
                if token["sign"] != end:
                    raise self.error(f"'{token['sign']}' without a partner")
                break
            if token["mark"]:
                items.append(_with_script(items.pop() if items else Symbol(""), token["mark"], token["script"]))
            else:
                items.append(self.expression(token))
        else:
            if end:
                raise self.error(f"'{end}' is missing")
        return items[0] if len(items) == 1 else MathRow(tuple(items))

    def expression(self, token: re.Match[str]) -> Expression:
        """The expression that starts with a token."""
        if token["value"]:
            return as_expression(self.values[token["value"]])
        if token["open"]:
            return Call(token["function"] or "", self.read(")"))
        if token["command"]:
            return self.command(token["command"])
        if number := token["number"]:
            return Number(float(number), len(number.partition(".")[2])) if "." in number else Number(int(number))
        return Operator(token["sign"]) if token["sign"] else Symbol(token["name"] or token["text"])

    def command(self, name: str) -> Expression:
        if name == r"\frac":
            return Fraction(self.argument(), self.argument())
        if name == r"\sqrt":
            return Root(self.argument())
        if name == r"\quad":
            return WIDE_SPACE
        raise self.error(f"unknown command {name}")

    def argument(self) -> Expression:
        """The text in the braces that follow."""
        token = next(self.tokens, None)
        if token is None or token["sign"] != "{":
            raise self.error("'{' is missing")
        return self.read("}")

    def error(self, message: str) -> UsageError:
        return UsageError(f"formula '{self.text}': {message}")


def _with_script(base: Expression, mark: str, script: str) -> Script:
    """The base with a subscript or superscript; one that has the other keeps it."""
    scripted = base if isinstance(base, Script) else Script(base)
    return replace(scripted, **{"below" if mark == "_" else "above": Symbol(script.strip("{}"))})
