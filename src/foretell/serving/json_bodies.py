"""JSON of requests and answers: refused beyond bounds, and written so that other threads run in between."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from foretell.serving.errors import ApiError

DEEPEST = 32  # nested arrays and objects
ITEMS_AT_ONCE = 2**14  # of a list that is written without a break
STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # possessive: backtracking would keep each character
NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def parse_json(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises ApiError for anything else, for NaN and for what is nested too deeply."""
    if depth_of(body) > DEEPEST:
        raise ApiError(400, f"the body is nested more than {DEEPEST} levels deep")
    try:
        value = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        place = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ApiError(400, f"the body is not JSON{place}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and infinities: Python reads them, JSON lacks them


def depth_of(body: bytes) -> int:
    """The depth of nested brackets outside strings, exact up to one above DEEPEST."""
    brackets = STRING.sub(b"", body).translate(bytes.maketrans(b"{}", b"[]"), NO_BRACKETS)
    for depth in range(DEEPEST + 1):
        if not brackets:
            return depth
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    return DEEPEST + 1


def to_json(value: Any) -> bytes:
    """A value as JSON. A lone surrogate, which a client has sent, becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def to_json_in_parts(body: dict[str, Any]) -> bytes:
    """A large object as JSON. Its lists are written in parts: while JSON is written, no other thread runs."""
    fields = (
        to_json(name) + b":" + (list_in_parts(value) if isinstance(value, list) else to_json(value))
        for name, value in body.items()
    )
    return b"{" + b",".join(fields) + b"}"


def list_in_parts(items: list[Any]) -> bytes:
    size = 1 if items and isinstance(items[0], dict) else ITEMS_AT_ONCE
    parts = (to_json(items[first : first + size])[1:-1] for first in range(0, len(items), size))
    return b"[" + b",".join(parts) + b"]"
