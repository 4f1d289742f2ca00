"""`Access`: access control by host, origin, key and content type."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from foretell.serving.connection import MOST_HEADER_BYTES, large_headers
from foretell.serving.errors import ApiError, ClosingError, as_api_error
from foretell.serving.json_bodies import to_json
from foretell.serving.server import CLIENT, Server

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
PUBLIC = frozenset(("/", "/health", "/ready"))  # served without a key, and while the server drains
PAGE_FILES = "/page/"  # served without a key too; the page sends the key with its requests
CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s;"]*)')  # of a content type
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class Access:
    """ASGI middleware. Refusals, and errors of the routes, are answered in OpenAI's format.

    keys: each gives access to all routes; if there are none, no key is needed. is_local: bound only to this machine.
    """

    def __init__(self, app: Router, server: Server, keys: Sequence[bytes], is_local: bool):
        self.app, self.server, self.keys, self.is_local = app, server, keys, is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, began = 0, time.perf_counter()

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                message["headers"] = [*given, *(header for header in SAFE_HEADERS if header[0] not in names)]
            await send(message)

        try:
            if size_of_head(scope) > MOST_HEADER_BYTES:  # h11 checks this only while it waits for more
                raise large_headers()
            check_framing(Headers(scope=scope))
            scope = in_origin_form(scope)
            scope[CLIENT] = self._check(scope, Headers(scope=scope))
            scope["app"] = self  # makes the router raise an error for a missing route or method
            await self.app(scope, receive, guarded)
        except ClientDisconnect:  # the client left while sending the body
            return None
        except Exception as error:
            if status:  # the answer has begun, so the connection is closed without an end
                return None
            answer = as_api_error(error).with_traceback(None)  # the traceback refers to this frame: avoid a cycle
            headers = answer.headers
            if answer.status == 405:
                headers["allow"] = self._methods(scope)
            response = Response(to_json(answer.to_json()), answer.status, headers, "application/json")
            await response(scope, receive, guarded)
        finally:
            route = scope["route"].path if "route" in scope else "other"  # refused before routing, or not served
            self.server.count(route, status or "left", time.perf_counter() - began)

    def _methods(self, scope: Scope) -> str:
        """The methods of all routes of a path."""
        routes = [each for each in self.app.routes if isinstance(each, Route) and each.matches(scope)[0] != Match.NONE]
        return ", ".join(sorted({name for route in routes for name in route.methods or ()}))

    def _check(self, scope: Scope, headers: Headers) -> str:
        """The name of the given key; empty if no key is needed. Raises ApiError for a refusal."""
        path, content_type = scope["path"], headers.get("content-type", "").lower()
        self._check_host(headers)
        if path in PUBLIC or path.startswith(PAGE_FILES):
            return ""
        client = self._check_key(headers)
        if self.server.is_draining:
            raise ApiError(503, "the server is shutting down")
        if scope["method"] == "POST" and self._methods(scope):  # else 404
            if content_type.partition(";")[0].strip() != "application/json":
                raise ApiError(415, "the content type must be application/json")
            if not {*CHARSET.findall(content_type)} <= {"utf-8", "utf8"}:
                raise ApiError(415, "the charset of the body must be utf-8")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "the body must be sent without a content encoding")
        return client

    def _check_host(self, headers: Headers) -> None:
        """Protect a local server from pages of other sites (DNS rebinding and cross-site requests)."""
        host = headers.get("host", "")
        if self.is_local and split_address(f"//{host}").hostname not in LOOPBACK:
            allowed = "localhost, 127.0.0.1 or [::1]; the option --host 0.0.0.0 allows other names"
            raise ApiError(400, f"the Host header must be {allowed}")
        origins = headers.getlist("origin")
        if any(split_address(origin).netloc != host for origin in origins):
            raise ApiError(403, "requests from pages of other sites are refused")

    def _check_key(self, headers: Headers) -> str:
        if not self.keys:
            return ""
        given = headers.getlist("authorization")
        scheme, _, key = (given[0] if len(given) == 1 else "").partition(" ")
        offered = key.encode("utf-8", "surrogateescape")
        matches = [hmac.compare_digest(offered, known) for known in self.keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401, "the key is missing or wrong; send it as Authorization: Bearer KEY", code="invalid_api_key"
            )
        return f"key {matches.index(True)}"


def size_of_head(scope: Scope) -> int:
    """The bytes of the address and the headers of a request."""
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + headers


def check_framing(headers: Headers) -> None:
    """Refuse two lengths of one body: a proxy that obeys the other one sees other requests (RFC 9112, 6.1 and 6.3)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise ClosingError(400, "the request has both Content-Length and Transfer-Encoding; send one")


def in_origin_form(scope: Scope) -> Scope:
    """The request; in absolute form, the address has a host, which replaces the Host header (RFC 9112, 3.2.2)."""
    target = split_address(scope["raw_path"].decode())
    if target.scheme not in ("http", "https"):
        return scope
    headers = [(b"host", target.netloc.encode()), *(each for each in scope["headers"] if each[0] != b"host")]
    return {**scope, "path": unquote(target.path) or "/", "headers": headers}


def split_address(address: str) -> SplitResult:
    """The parts of an address; all are empty if it is malformed."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
