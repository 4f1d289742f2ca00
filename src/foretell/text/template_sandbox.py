"""Rendering of untrusted Jinja templates, such as a checkpoint's chat template.

jinja2's `ImmutableSandboxedEnvironment` blocks access to the program. Only the syntax, filters, functions and methods
listed here exist. One budget per rendering limits time and memory: loop steps, calls and the characters of every value
that the template creates, as JSON, are charged to it; `*`, join, replace and indent before they run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS, do_indent
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from foretell.errors import TokenizerError

MOST_CHARACTERS = 100_000  # of a template
BASE, PER_INPUT = 300_000, 50  # units per rendering, and per character of its input as JSON
SECONDS = 5.0
CALL_UNITS = 10  # a call takes about ten times as long as a loop step
OPAQUE = jinja2.Undefined | Namespace
SAFE_DATE_FORMAT = re.compile(r"[%a-zA-Z ,./:-]{1,40}")  # no widths

GROWING = {"Filter", "Call", "Add", "Mul", "List", "Dict", "Tuple"}  # values can be larger than their operands
NODE_NAMES = (
    "Template Output TemplateData For If Assign AssignBlock Macro FilterBlock With Scope ExprStmt Break Continue Name "
    "NSRef Const Pair Keyword CondExpr Test Getattr Getitem Slice Compare Operand And Or Not Neg Pos Sub Div FloorDiv "
    "Mod Concat"
)
REFUSED_NAMES = {"self", "varargs", "kwargs"}  # macros can grow the last two without an expression in GROWING
FILTER_NAMES = (
    "abs capitalize count d default dictsort first float int items last length list lower map max min reject "
    "rejectattr reverse select selectattr sort string title trim unique upper"
)
METHOD_NAMES = (
    "strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith removeprefix removesuffix "
    "upper lower title capitalize swapcase replace join find rfind index count isdigit isalpha isalnum isspace isupper "
    "islower isnumeric get items keys values cycle changed"
)
ALLOWED_NODES, ALLOWED_METHODS = GROWING | set(NODE_NAMES.split()), set(METHOD_NAMES.split())


class Budget:
    def __init__(self, units: int):
        self.left, self.deadline = units, time.monotonic() + SECONDS


CURRENT: ContextVar[Budget] = ContextVar("budget of the rendering")


def spend(units: int = 1) -> None:
    """Take units from the budget of the current rendering."""
    budget = CURRENT.get()
    budget.left -= units
    if budget.left < 0:
        raise SecurityError("it loops too often or creates texts or lists that are too large")
    if time.monotonic() > budget.deadline:
        raise SecurityError(f"it takes longer than {SECONDS:g} seconds")


def steps(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        spend()
        yield item


def opaque(value: Any) -> None:
    if not isinstance(value, OPAQUE):
        raise SecurityError(f"it uses {type(value).__name__!r} as a value")


ENCODER = json.JSONEncoder(ensure_ascii=False, default=opaque)


def measured(value: Any) -> Any:
    """The value, which must be plain data, after spending units for all of it; iterators become lists.

    The parts are counted one by one, because a small list can contain a large text many times.
    """
    if isinstance(value, Iterable) and not isinstance(value, str | list | tuple | dict | OPAQUE):
        value = list(steps(value))
    for part in [value] if isinstance(value, str) else ENCODER.iterencode(value):
        spend(len(part))
    return value


def text_of(value: Any) -> str:
    return str(measured(value))


class TemplateRefusal(jinja2.TemplateError):
    """Raised when a template calls `raise_exception` because it does not support a conversation."""


class UnwrittenNamespace(Namespace):
    """A namespace that cannot be converted to text, because namespaces can contain each other."""

    def __repr__(self) -> str:
        raise SecurityError("it writes a namespace as text; write one of its values")


def join(values: Iterable[Any], separator: Any = "") -> str:
    texts, between = [text_of(value) for value in steps(values)], text_of(separator)
    spend(len(between) * len(texts))
    return between.join(texts)


def replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    text, old, new = text_of(text), text_of(old), text_of(new)
    spend(text.count(old) * len(new))
    return text.replace(old, new, count)


def indent(text: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    spend((1 + text_of(text).count("\n")) * max(0, int(width)))
    return do_indent(text, int(width), first, blank)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """A value as JSON with transformers' defaults, without escapes of non-ASCII characters."""
    text = json.dumps(measured(value), ensure_ascii=ensure_ascii, sort_keys=sort_keys)
    spend(len(text) * (abs(int(indent or 0)) + sum(map(len, separators or ()))))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(pattern: str) -> str:
    if not SAFE_DATE_FORMAT.fullmatch(str(pattern)):
        raise SecurityError("it uses a date format that is not supported")
    return datetime.now().astimezone().strftime(pattern)


def raise_exception(message: Any) -> NoReturn:
    raise TemplateRefusal(message)


class GenerationTag(Extension):
    """The tag `{% generation %}`, with which some templates mark answers; only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Guard(NodeTransformer):
    """Refuses syntax that is not needed, and wraps loops and growing expressions in filters that spend units."""

    def visit(self, node: Any, *arguments: Any, **keywords: Any) -> Any:
        kind = type(node).__name__
        if (
            kind not in ALLOWED_NODES
            or getattr(node, "recursive", False)
            or getattr(node, "name", None) in REFUSED_NAMES
        ):
            raise SecurityError(f"it uses {getattr(node, 'name', None) or kind}, which chat templates do not need")
        self.generic_visit(node)
        if kind == "Concat":
            return self.filtered(nodes.List(node.nodes, lineno=node.lineno), "join")
        if kind == "For":
            node.iter = self.filtered(node.iter, "a step")
        is_target = getattr(node, "ctx", "load") == "store"
        return self.filtered(node, "measured value") if kind in GROWING and not is_target else node

    @staticmethod
    def filtered(node: nodes.Node, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment in which a template can access only the values that it is given."""

    intercepted_binops = frozenset("*%")

    def __init__(self) -> None:
        extensions = [LoopControlExtension, GenerationTag]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=text_of, optimized=False)
        own = {"join": join, "replace": replace, "indent": indent, "tojson": to_json}
        unwritable = {"a step": steps, "measured value": measured}  # names that a template cannot write
        self.filters = {name: FILTERS[name] for name in FILTER_NAMES.split()} | own | unwritable
        self.globals: Any = {
            "range": safe_range,
            "namespace": UnwrittenNamespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }
        self.concat: Any = concat

    def _generate(self, source: Any, *arguments: Any, **keywords: Any) -> Any:
        return super()._generate(Guard().visit(source), *arguments, **keywords)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at once, whereas jinja2 waits until the value is used."""
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}, which is not allowed")

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, BuiltinMethodType | MethodType):
            return obj.__name__ in ALLOWED_METHODS
        return obj in self.globals.values() or isinstance(obj, Macro)

    def call(self, context: Any, obj: Any, /, *arguments: Any, **keywords: Any) -> Any:
        spend(CALL_UNITS)
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            if obj.__name__ == "join":
                return join(*arguments, separator=obj.__self__)
            if obj.__name__ == "replace":
                return replace(obj.__self__, *arguments)
        return super().call(context, obj, *arguments, **keywords)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise SecurityError("it formats a text with %, which chat templates do not need")
        for values, count in ((left, right), (right, left)):
            if operator == "*" and isinstance(values, str | list | tuple) and isinstance(count, int):
                spend(len(values) * max(0, count))
        return super().call_binop(context, operator, left, right)


def concat(pieces: Iterable[str]) -> str:
    """The output of a macro or block as one text, after spending units for it."""
    texts = list(pieces)
    spend(sum(map(len, texts)))
    return "".join(texts)


SANDBOX = TemplateSandbox()
FAILURES = (
    *(jinja2.TemplateError, ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    *(AttributeError, SyntaxError),
)


class SandboxedTemplate:
    """A compiled template. Its TokenizerErrors are one line that begins with `name`."""

    def __init__(self, source: str, name: str):
        self.name = name
        if len(source) > MOST_CHARACTERS:
            raise TokenizerError(f"{name} has {len(source):,} characters; at most {MOST_CHARACTERS:,} are read")
        try:
            self._template = SANDBOX.from_string(source)
        except FAILURES as error:
            raise self._failure(error) from None

    def render(self, **values: Any) -> str:
        """The text for these values, which must be plain data as in JSON. The values are not changed."""
        token = CURRENT.set(Budget(BASE + PER_INPUT * len(json.dumps(values))))
        try:
            return concat(steps(self._template.generate(**values)))
        except FAILURES as error:
            raise self._failure(error) from None
        finally:
            CURRENT.reset(token)

    def _failure(self, error: BaseException) -> TokenizerError:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if isinstance(line, int) else ""
        problem = "cannot write this conversation" if isinstance(error, TemplateRefusal) else "cannot be used"
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return TokenizerError(f"{self.name}{where} {problem}: {reason}")
