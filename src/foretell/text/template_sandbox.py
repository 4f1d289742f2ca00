"""Rendering of untrusted Jinja templates, such as a checkpoint's chat template.

jinja2's `ImmutableSandboxedEnvironment` blocks access to the program. Only the syntax, filters, functions and methods
listed here exist. One budget per rendering limits time and memory: loop steps, calls and the characters of every value
that the template creates, as JSON, are charged to it. An operation that multiplies its operands runs only if its
largest possible result fits into the rest of the budget.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import partial
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

from foretell.errors import ForetellError, TokenizerError

MOST_CHARACTERS = 100_000  # of a template
BASE, PER_INPUT = 300_000, 50  # units per rendering, and per character of its input as JSON
SECONDS = 5.0
CALL_UNITS = 10  # a call takes about ten times as long as a loop step
SAFE_DATE_FORMAT = re.compile(r"[%a-zA-Z ,./:-]{1,40}")  # no widths

GROWING = {"Filter", "Call", "Add", "Mul", "List", "Dict", "Tuple"}  # values can be larger than their operands
NODE_NAMES = (
    "Template Output TemplateData For If Assign AssignBlock Macro FilterBlock With Scope ExprStmt Break Continue Name "
    "NSRef Const Pair Keyword CondExpr Test Getattr Getitem Slice Compare Operand And Or Not Neg Pos Sub Div FloorDiv "
    "Mod Concat"
)
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

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise SecurityError("it loops too often or creates texts or lists that are too large")
        if time.monotonic() > self.deadline:
            raise SecurityError(f"it takes longer than {SECONDS:g} seconds")


CURRENT: ContextVar[Budget] = ContextVar("budget of the rendering")


def charged(items: Iterable[Any]) -> Iterator[Any]:
    """The items, after spending one unit per item and one per character of a text."""
    for item in items:
        CURRENT.get().spend(1 + (len(item) if isinstance(item, str) else 0))
        yield item


def concat(texts: Iterable[str]) -> str:
    return "".join(charged(texts))


def opaque(value: Any) -> None:
    if not isinstance(value, jinja2.Undefined | Namespace):
        raise SecurityError(f"it uses {type(value).__name__!r} as a value")


ENCODER = json.JSONEncoder(ensure_ascii=False, default=opaque)


def size(value: Any) -> int:
    """The characters of plain data as JSON, charged one by one: a small list can repeat a large text."""
    return sum(map(len, charged([value] if isinstance(value, str) else ENCODER.iterencode(value))))


def measured(value: Any) -> Any:
    """The value, which must be plain data, after spending units for all of it; iterators become lists."""
    if isinstance(value, Iterable) and not isinstance(value, str | list | tuple | dict | jinja2.Undefined):
        value = list(charged(value))
    size(value)
    return value


def bounded(operation: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """Run an operation that makes at most the product of its two largest operands, unless that is too large."""
    values = (*operands, *options.values())
    sizes = sorted(abs(value) if isinstance(value, int) else size(value) for value in values)
    if sizes[-1] * sizes[-2:][0] > CURRENT.get().left:
        raise SecurityError("it multiplies values, and the result can be too large")
    return operation(*operands, **options)


class TemplateRefusal(jinja2.TemplateError):
    """Raised when a template calls `raise_exception` because it does not support a conversation."""


class UnwrittenNamespace(Namespace):
    """A namespace that cannot be converted to text, because namespaces can contain each other."""

    def __repr__(self) -> str:
        raise SecurityError("it writes a namespace as text; write one of its values")


def join(values: Iterable[Any], separator: Any = "") -> str:
    return str(separator).join(map(str, values))


def replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    return str(text).replace(str(old), str(new), count)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """A value as JSON with transformers' defaults, without escapes of non-ASCII characters."""
    options = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    return concat(json.JSONEncoder(**options).iterencode(value))


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
        kind, name = type(node).__name__, getattr(node, "name", None)
        # varargs and kwargs of a macro can grow without an expression in GROWING
        if kind not in ALLOWED_NODES or name in ("self", "varargs", "kwargs"):
            raise SecurityError(f"it uses {name or kind}, which chat templates do not need")
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
    concat: Any = staticmethod(concat)

    def __init__(self) -> None:
        extensions = [LoopControlExtension, GenerationTag]
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=extensions,
            finalize=lambda value: str(measured(value)),
            optimized=False,
        )
        self.filters = {name: FILTERS[name] for name in FILTER_NAMES.split()}
        for name, operation in {"join": join, "replace": replace, "indent": do_indent, "tojson": to_json}.items():
            self.filters[name] = partial(bounded, operation)
        self.filters |= {"a step": charged, "measured value": measured}  # names that a template cannot write
        self.globals = dict[str, Any](range=safe_range, namespace=UnwrittenNamespace)
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)

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
        CURRENT.get().spend(CALL_UNITS)
        if isinstance(obj, BuiltinMethodType) and obj.__name__ in ("join", "replace"):
            return bounded(getattr(str, obj.__name__), obj.__self__, *arguments)
        return super().call(context, obj, *arguments, **keywords)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        operation = self.binop_table[operator]
        if isinstance(left, int | float) and isinstance(right, int | float):
            return operation(left, right)
        if operator == "%":
            raise SecurityError("it formats a text with %, which chat templates do not need")
        return bounded(operation, left, right)


SANDBOX = TemplateSandbox()


class SandboxedTemplate:
    """A compiled template. Its TokenizerErrors are one line that begins with `name`."""

    def __init__(self, source: str, name: str):
        self.name = name
        if len(source) > MOST_CHARACTERS:
            raise TokenizerError(f"{name} has {len(source):,} characters; at most {MOST_CHARACTERS:,} are read")
        with self._failures():
            self._template = SANDBOX.from_string(source)

    def render(self, **values: Any) -> str:
        """The text for these values, which must be plain data as in JSON. The values are not changed."""
        token = CURRENT.set(Budget(BASE + PER_INPUT * len(json.dumps(values))))
        try:
            with self._failures():
                return concat(self._template.generate(**values))
        finally:
            CURRENT.reset(token)

    @contextmanager
    def _failures(self) -> Generator[None]:
        """Raise every error, since templates can cause any, as a TokenizerError."""
        try:
            yield
        except ForetellError:
            raise
        except Exception as error:
            line = getattr(error, "lineno", None)
            where = f", line {line}" if isinstance(line, int) else ""
            problem = "cannot write this conversation" if isinstance(error, TemplateRefusal) else "cannot be used"
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise TokenizerError(f"{self.name}{where} {problem}: {reason}") from None
