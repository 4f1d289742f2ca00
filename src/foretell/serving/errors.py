"""Errors as answers: a status, and OpenAI's error object."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from starlette.exceptions import HTTPException

from foretell.errors import ContextLengthError, DataError, ForetellError, TokenizerError, UsageError

RETRY_SECONDS = 1  # clients wait this long after 429 or 503; they accept 1 to 120 whole seconds
TYPES = {401: "authentication_error", 429: "rate_limit_error"}

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """An error for a client. param: the wrong field of the request. code: a machine-readable name."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def to_json(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_SECONDS)}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}


class ClosingError(ApiError):
    """An error after which the connection is closed, because it is unclear where the next request begins."""

    @property
    def headers(self) -> dict[str, str]:
        return {"connection": "close"}


def refused(field: str, message: str) -> ApiError:
    return ApiError(400, f"{field}: {message}", field)


def not_finite() -> ApiError:
    return refused("change", "the changed model's numbers are NaN, infinite or beyond 1e10; use smaller numbers")


def as_api_error(error: Exception) -> ApiError:
    """The answer for an exception. The text of an internal error is not sent, because it may contain paths."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        missing = "this method is not served here" if error.status_code == 405 else "this path is not served"
        return ApiError(error.status_code, missing)
    if isinstance(error, ContextLengthError):
        return ApiError(400, error.for_server(), code="context_length_exceeded")
    if isinstance(error, UsageError | TokenizerError | DataError):
        return ApiError(400, error.for_server())
    logger.error("a request failed: %s", describe(error))
    if isinstance(error, ForetellError):  # such as non-finite logits
        return ApiError(500, "the model cannot continue this text: its numbers are not finite or do not fit")
    return ApiError(500, "the server failed to answer this request; its log has the reason")


@contextmanager
def errors_of(field: str | None) -> Iterator[None]:
    """Convert errors for users in this block to answers, which name a field of the request if it is given."""
    try:
        yield
    except (ContextLengthError, UsageError, TokenizerError, DataError) as error:
        message = error.for_server()
        if field is not None and not message.startswith(f"{field}:"):
            message = f"{field}: {message}"
        raise ApiError(400, message, field, as_api_error(error).code) from None


def describe(error: Exception) -> str:
    """The type and place of an exception, without its message, which may quote a prompt."""
    frames = list(walk_tb(error.__traceback__))
    where = "".join(f" in {frame.f_globals.get('__name__')}, line {line}" for frame, line in frames[-1:])
    return f"{type(error).__name__}{where}"
