"""JSON of requests and answers: checks and limits of bodies, and writing that lets other threads run."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from foretell.serving.errors import ApiError

DEEPEST = 32  # maximum depth of nested arrays and objects
ITEMS_AT_ONCE = 2**14  # items of a list written without a break
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # possessive: backtracking would keep each character
MARK = secrets.token_hex(16)  # a placeholder for an array, which no client's text can contain
CELL = np.frombuffer(b" 0.00000000e+00,", np.uint8)  # a number in an array; JSON allows the space
NULL = np.frombuffer(b"           null,", np.uint8)
POWERS = 10.0 ** np.arange(-30, 54)  # exponents 8 - 38 to 8 + 45, for the largest and the smallest float32
NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
FORMS = frozenset(("str", "int", "float", "bool", "dict", "list"))  # type names in the locations of pydantic's errors
NOT_UTF8 = "the body is not JSON: it is not UTF-8"
Asked = TypeVar("Asked", bound=BaseModel)


def parse_json(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises ApiError for anything else, for NaN, deep nesting and other encodings than UTF-8."""
    try:
        text = body.decode("utf-8-sig")
        if "\0" in text:  # as in UTF-16 and UTF-32
            raise ApiError(400, NOT_UTF8)
        if depth_of(body) > DEEPEST:
            raise ApiError(400, f"the body is nested more than {DEEPEST} levels deep")
        value = json.loads(text, parse_constant=refuse_constant)
    except ValueError as error:
        raise ApiError(400, reason_of(error)) from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


def parse(kind: type[Asked], values: Mapping[str, Any]) -> Asked:
    """A request of this kind. Raises ApiError, with the first wrong field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        # A field with several types fails in all of them: an exceeded bound is more informative than a wrong type, and
        # the innermost wrong type is the most informative one
        forms: dict[Any, Any] = {}  # the first error of each type
        for each in errors:
            forms.setdefault(tuple(part for part in each["loc"] if isinstance(part, str)), each)
        innermost = max(forms.values(), key=lambda each: (len(each["loc"]), indices_of(each)))
        first = next((each for each in errors if not each["type"].endswith("_type")), innermost)
        field, path = str(first["loc"][0]) if first["loc"] else None, path_of(first["loc"])
        raise ApiError(400, f"{path or 'the body'}: {alternatives(first, errors)}", field) from None


def alternatives(first: Any, errors: list[Any]) -> str:
    """An error of pydantic; for a wrong type, with all allowed types."""
    same = [each for each in errors if path_of(each["loc"]) == path_of(first["loc"])]
    lines = dict.fromkeys(map(_describe, same if first["type"].endswith("_type") else [first]))
    return " or ".join(lines).replace(" or input should be", " or")


def indices_of(error: Any) -> list[int]:
    return [part for part in error["loc"] if isinstance(part, int)]


def path_of(location: tuple[int | str, ...]) -> str:
    """The place of an error, such as `messages[0].role`, without pydantic's type names."""
    names = [part for part in location if isinstance(part, int) or (part.isidentifier() and part not in FORMS)]
    shown = (f"[{part}]" if isinstance(part, int) else f".{part[:80]}" for part in names)
    return "".join(shown).removeprefix(".")


def _describe(error: Any) -> str:
    """An error of pydantic in the words of JSON."""
    known = {"string_too_short": "give at least one character", "string_unicode": "the text holds a lone surrogate"}
    known |= dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "input should be an object")
    message = known.get(error["type"]) or error["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return f"{message[:1].lower()}{message[1:]}"


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's reader accepts."""
    raise ApiError(400, f"the body is not JSON: it has {name}, and JSON has only finite numbers")


def reason_of(error: ValueError) -> str:
    """The reason why a body cannot be read."""
    if isinstance(error, json.JSONDecodeError):
        return f"the body is not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return NOT_UTF8
    return f"a whole number in the body has more than {sys.get_int_max_str_digits():,} digits"


def depth_of(body: bytes) -> int:
    """The depth of nested brackets outside strings, exact up to DEEPEST + 1; if unbalanced, an upper bound."""
    brackets = STRING.sub(b"", body).translate(bytes.maketrans(b"{}", b"[]"), NO_BRACKETS)
    for depth in range(DEEPEST + 1):
        if not brackets:
            return depth
        inner, brackets = brackets, brackets.replace(b"[]", b"")  # the innermost level
        if brackets == inner:
            return depth + brackets.count(b"[")
    return DEEPEST + 1


def to_json(value: Any) -> bytes:
    """A value as JSON, with arrays as lists. A lone surrogate from a client becomes a question mark."""
    arrays: list[np.ndarray] = []

    def note(array: np.ndarray) -> str:
        arrays.append(array)
        return MARK

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=note)
    content = text.encode("utf-8", "replace")
    if not arrays:
        return content
    first, *others = content.split(f'"{MARK}"'.encode())
    return first + b"".join(array_to_json(array) + rest for array, rest in zip(arrays, others, strict=True))


def to_json_in_parts(body: dict[str, Any]) -> bytes:
    """A large object as JSON. Its lists are written in parts, because no other thread runs during a part."""
    fields = (
        to_json(name) + b":" + (list_in_parts(value) if isinstance(value, list) else to_json(value))
        for name, value in body.items()
    )
    return b"{" + b",".join(fields) + b"}"


def list_in_parts(items: list[Any]) -> bytes:
    size = 1 if items and isinstance(items[0], dict) else ITEMS_AT_ONCE
    parts = (to_json(items[first : first + size])[1:-1] for first in range(0, len(items), size))
    return b"[" + b",".join(parts) + b"]"


def array_to_json(array: np.ndarray) -> bytes:
    """An array of float32 as nested lists. NaN and infinities, which JSON does not have, become null.

    A number has nine digits, which identify a float32. The json module takes 0.8 microseconds per number, during which
    no other thread runs; NumPy takes a tenth of that.
    """
    numbers = array.astype(np.float64).ravel()
    sizes = np.where(np.isfinite(numbers), np.abs(numbers), 0)
    exponents = np.floor(np.log10(np.where(sizes > 0, sizes, 1))).astype(np.int64)
    exponents += np.rint(sizes * POWERS[38 - exponents]) >= 10**9  # 9.9999999996 is written as 10
    digits = np.rint(sizes * POWERS[38 - exponents]).astype(np.int64)
    cells = np.tile(CELL, (len(numbers), 1))
    cells[np.signbit(numbers), 0] = ord("-")
    cells[exponents < 0, 12] = ord("-")
    for number, columns in ((digits, (10, 9, 8, 7, 6, 5, 4, 3, 1)), (np.abs(exponents), (14, 13))):
        for column in columns:
            rest = number // 10
            cells[:, column] += (number - 10 * rest).astype(np.uint8)
            number = rest
    cells[~np.isfinite(numbers)] = NULL
    return nested(cells.tobytes(), array.shape)


def nested(cells: bytes, shape: tuple[int, ...]) -> bytes:
    """Numbers, each with a comma after it, as lists in the shape of an array."""
    if len(shape) < 2:
        return b"[" + cells[:-1] + b"]"
    size = len(cells) // shape[0] if shape[0] else 0
    rows = (nested(cells[index * size : (index + 1) * size], shape[1:]) for index in range(shape[0]))
    return b"[" + b",".join(rows) + b"]"
