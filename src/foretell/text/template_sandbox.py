"""Render a Jinja text that may come from anyone, such as a checkpoint's chat template.

jinja2's `ImmutableSandboxedEnvironment` keeps a template away from the program. Here it also has limits, since a
template that loops or grows without end would stop the program too: its syntax is checked (template_syntax.py), its
filters, tests, methods and attributes are those of the lists below, and all that it does is paid for out of a budget
(template_budget.py), before it is done where it could be large.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, wraps
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace

from foretell.errors import TokenizerError
from foretell.text.template_budget import (
    BASE,
    CURRENT,
    PER_INPUT,
    Budget,
    check_number,
    measured,
    plain,
    size_of,
    spend,
    steps,
)
from foretell.text.template_syntax import JOINED, MEASURED, MOST_CHARACTERS, STEPS, GenerationTag, Guards, check_tree

ATTRIBUTES = {  # type: what a template may read of a value, besides items of dicts and lists
    str: (
        "strip lstrip rstrip split rsplit splitlines partition rpartition startswith endswith removeprefix "
        "removesuffix upper lower title capitalize swapcase replace join find rfind index count isdigit isalpha "
        "isalnum isspace isupper islower isnumeric"
    ),
    dict: "get items keys values",
    list: "index count",
    tuple: "index count",
    LoopContext: "index index0 first last length revindex revindex0 previtem nextitem depth cycle changed",
}
ALLOWED_ATTRIBUTES = {kind: frozenset(names.split()) for kind, names in ATTRIBUTES.items()}
KEPT_FILTERS = (
    "abs capitalize count d default dictsort first float int items last length lower map max min reject rejectattr "
    "reverse select selectattr sort title trim unique upper"
)
DATE_FORMAT = re.compile(r"[%a-zA-Z ,./:-]{1,40}")
CALL_UNITS = 10  # a call takes about ten times as long as a loop step
LEFT_OUT_TESTS = {"callable", "escaped", "filter", "test"}


class TemplateRefusal(jinja2.TemplateError):
    """A template called `raise_exception`: the conversation is not one that it can write."""


# --- filters, functions --------------------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """A value as text, paid for; what is not plain data is refused."""
    return str(plain(value))


def join(values: Iterable[Any], separator: Any = "", attribute: str | None = None) -> str:
    """The texts of values in one."""
    if attribute is not None:
        raise SecurityError("it uses join with an attribute; map(attribute=...) before it does the same")
    texts, between = [text_of(value) for value in steps(values)], text_of(separator)
    spend(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


def replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    """A text with every `old`, or the first `count`, replaced."""
    text, old, new = text_of(text), text_of(old), text_of(new)
    spend(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def indent(text: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    """A text whose lines, but for the first and blank ones, begin with `width` spaces."""
    lines, margin = text_of(text).split("\n"), " " * min(max(int(width), 0), 100)
    spend(len(lines) * (len(margin) + 1))
    rest = (margin + line if line or blank else line for line in lines[1:])
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """A value as JSON, as transformers writes it: characters as they are."""
    sort_keys, separators = bool(options.pop("sort_keys", False)), options.pop("separators", None)
    if options or (indent is not None and not 0 <= int(indent) <= 8):
        raise SecurityError("it uses tojson with options that are not supported")
    plain(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys, separators=separators)


def limited_range(*limits: int) -> list[int]:
    """The numbers of `range` as a list."""
    numbers = range(*limits)
    spend(len(numbers))
    return list(numbers)


def strftime_now(pattern: str) -> str:
    """Today's date in a format without widths, for templates that write it."""
    if not DATE_FORMAT.fullmatch(str(pattern)):
        raise SecurityError("it uses a date format that is not supported")
    return datetime.now().astimezone().strftime(pattern)


def raise_exception(message: Any) -> NoReturn:
    """What templates call when they cannot write a conversation."""
    raise TemplateRefusal(str(message)[:300])


def paying(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose call and result are paid for."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        spend()
        return measured(function(*arguments, **keywords))

    return call


OWN_FILTERS = {"join": join, "replace": replace, "indent": indent, "tojson": to_json, "string": text_of, "list": list}
FUNCTIONS = {
    "range": limited_range,
    "namespace": Namespace,
    "raise_exception": raise_exception,
    "strftime_now": strftime_now,
}
GUARDS = {STEPS: steps, MEASURED: measured, JOINED: join}


# --- the environment -----------------------------------------------------------------------------------------------


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment in which a template reaches the values it is given, and nothing else."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, GenerationTag],
            finalize=text_of,
            optimized=False,
        )
        kept = {name: FILTERS[name] for name in KEPT_FILTERS.split()}
        self.filters = {name: paying(function) for name, function in (kept | OWN_FILTERS).items()} | GUARDS
        self.tests = {name: test for name, test in TESTS.items() if name not in LEFT_OUT_TESTS}
        functions: Any = dict(FUNCTIONS)  # jinja2 declares its own functions, not any
        pieces_joined: Any = concat
        self.globals, self.concat = functions, pieces_joined

    def _generate(self, source: Any, *arguments: Any, **keywords: Any) -> Any:
        check_tree(source)
        return super()._generate(Guards().visit(source), *arguments, **keywords)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        return isinstance(obj, Namespace) or attr in ALLOWED_ATTRIBUTES.get(type(obj), ())

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at once; jinja2 itself waits until the value is used."""
        raise SecurityError(f"it reads {attribute!r} of a {type(obj).__name__}, which templates may not")

    def wrap_str_format(self, value: Any) -> None:
        """Formats are refused like other methods that are not listed."""

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, BuiltinMethodType | MethodType):
            return self.is_safe_attribute(obj.__self__, obj.__name__, obj)
        return isinstance(obj, Macro) or any(obj is function for function in FUNCTIONS.values())

    def call(self, context: Any, obj: Any, /, *arguments: Any, **keywords: Any) -> Any:
        spend(CALL_UNITS)
        if isinstance(obj, jinja2.Undefined):
            return obj()  # raises, with the name that is undefined
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            if obj.__name__ == "join":
                return join(*arguments, separator=obj.__self__)
            if obj.__name__ == "replace":
                return replace(obj.__self__, *arguments)
        return measured(super().call(context, obj, *arguments, **keywords))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic on small numbers; `+` also on texts and lists, `*` on a text and a number."""
        spend()
        check_number(left)
        check_number(right)
        is_number = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator == "%" and not is_number):
            raise SecurityError(f"it uses the operator {operator!r} in a way that chat templates do not need")
        if operator == "*" and not is_number:
            pair = (left, right) if isinstance(right, int) else (right, left)
            spend(size_of(pair[0]) * max(0, int(pair[1])))
        if operator == "+" and not is_number:
            spend(size_of(left) + size_of(right))
        return measured(super().call_binop(context, operator, left, right))


def concat(pieces: Iterable[str]) -> str:
    """The output of a macro or a block as one text."""
    texts = list(pieces)
    spend(sum(map(len, texts)))
    return "".join(texts)


@cache
def sandbox() -> TemplateSandbox:
    """The environment; it has no state of its own."""
    return TemplateSandbox()


# --- rendering -----------------------------------------------------------------------------------------------------

FAILURES = (
    *(jinja2.TemplateError, ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
    *(AttributeError, SyntaxError),
)


class SandboxedTemplate:
    """A compiled template. A TokenizerError says in one line why it cannot be used; `name` says which it is."""

    def __init__(self, source: str, name: str):
        self.name = name
        if len(source) > MOST_CHARACTERS:
            raise TokenizerError(f"{name} has {len(source):,} characters; at most {MOST_CHARACTERS:,} are read")
        try:
            self._template = sandbox().from_string(source)
        except FAILURES as error:
            raise self._failure(error) from None

    def render(self, **values: Any) -> str:
        """The text for these values, plain data as from JSON. The values are not changed."""
        token = CURRENT.set(Budget(BASE + PER_INPUT * size_of(values)))
        try:
            pieces = []
            for piece in self._template.generate(**values):
                spend(1 + len(piece))
                pieces.append(piece)
            return "".join(pieces)
        except TemplateRefusal as error:
            raise TokenizerError(f"{self.name} cannot write this conversation: {one_line(error)}") from None
        except FAILURES as error:
            raise self._failure(error) from None
        finally:
            CURRENT.reset(token)

    def _failure(self, error: BaseException) -> TokenizerError:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if isinstance(line, int) else ""
        return TokenizerError(f"{self.name}{where} cannot be used: {one_line(error) or type(error).__name__}")


def one_line(error: BaseException) -> str:
    """An error's message on one line of bounded length."""
    if isinstance(error, RecursionError):
        return "it calls itself without end, or is nested too deeply"
    return " ".join(str(error).split())[:300]
