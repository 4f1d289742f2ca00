"""Connections: bounded reading of bodies, detection of clients that have left, and timeouts."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from h11 import RemoteProtocolError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from foretell.serving.errors import ApiError, ClosingError, as_api_error
from foretell.serving.json_bodies import to_json

WHOLE_POST = re.compile(rb"POST [^\r\n]++\r\n(?:[^\r\n]++\r\n)*?(?i:content-length): *+(\d{1,6})\r\n")
MOST_BYTES = 4 * 2**20
MOST_HEADER_BYTES = 16 * 1024
SECONDS = 30  # for a client to send a body, and to read an answer


class TimedConnection(H11Protocol):
    """A connection with a timeout before a request, between requests, and while the client reads an answer.

    uvicorn waits without a limit for the first byte and for the end of the headers.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._timer = self._reading = self.loop.call_later(SECONDS, self._watch, None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(SECONDS, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reading.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that h11 cannot parse, unless its answer has begun; uvicorn calls this in the exception."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            error = sys.exception()
            is_large = isinstance(error, RemoteProtocolError) and error.error_status_hint == 431
            self.transport.write(whole_answer(large_headers() if is_large else ApiError(400, "malformed HTTP request")))
            if self.cycle is not None:
                self.cycle.disconnected = True  # the route, which may still read the body, answers nothing
        self.transport.close()

    def abort(self) -> None:
        """Close the connection now, and discard unread data."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._reading.cancel()
        super().connection_lost(exc)

    def _watch(self, last: RequestResponseCycle | None) -> None:
        """Close the connection if there was no request since the last check, and none is being answered."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if self.transport.is_closing() or (is_idle and self.cycle is last):
            self.abort()  # close() would wait until everything is read
        else:
            self._timer = self.loop.call_later(SECONDS, self._watch, self.cycle)


def refusing_connection(is_full: Callable[[], bool], note: Callable[[], None]) -> type[TimedConnection]:
    """The connection class of a server. While the server is full, it refuses a POST before parsing it, and counts it.

    h11 and the routes take half a millisecond per request; 2,000 requests would delay /health by a second.
    """
    refusal = whole_answer(too_many())

    class RefusingConnection(TimedConnection):
        def data_received(self, data: bytes) -> None:
            if self.cycle is None and is_full() and is_whole_post(data):
                note()
                self.transport.write(refusal)
                self.transport.close()
            else:
                super().data_received(data)

    return RefusingConnection


def whole_answer(error: ApiError) -> bytes:
    """A complete answer with its status line, for a request that does not reach a route."""
    content = to_json(error.to_json())
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
    fields = {"connection": "close", **error.headers, "content-length": str(len(content))}
    return (head + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n").encode() + content


def large_headers() -> ApiError:
    return ClosingError(431, f"the headers have more than {MOST_HEADER_BYTES:,} bytes")


def too_many() -> ApiError:
    return ApiError(429, "too many requests are in progress; try again in a second")


def is_whole_post(data: bytes) -> bool:
    """True if this is a complete request. Closing a connection with unread data would reset it."""
    head = WHOLE_POST.match(data)
    return head is not None and len(data) == data.find(b"\r\n\r\n") + 4 + int(head[1])


async def read_body(request: Request, note: Callable[[int], None]) -> bytes:
    """The body of a request. note: called with the size of each received part.

    Raises ApiError for a body that is too large or too slow.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and (length := int(announced[:20])) > MOST_BYTES:  # h11 refuses more digits
        raise ApiError(413, f"the body has {length:,} bytes; at most {MOST_BYTES:,} are read")
    parts, size = [], 0
    try:
        async with asyncio.timeout(SECONDS):
            async for part in request.stream():
                parts.append(part)
                note(len(part))
                if (size := size + len(part)) > MOST_BYTES:
                    raise ApiError(413, f"the body has more than {MOST_BYTES:,} bytes")
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {SECONDS} seconds") from None
    return b"".join(parts)


async def until_disconnected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, but cancel it if the client leaves. Raises the errors of the work."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
    try:
        await working
    except asyncio.CancelledError:
        if not leaving.done():  # this task was cancelled, not the work
            raise
    finally:
        del working  # avoids a cycle with its error, which would keep the request until a garbage collection


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class Stream:
    """An answer that is sent in parts as they are produced. ending: formats an error raised after the first part."""

    parts: AsyncGenerator[bytes, None]
    headers: dict[str, str]
    ending: Callable[[dict[str, Any]], bytes]

    async def send(self, send: Send, headers: dict[str, str]) -> None:
        """Send the parts, with additional headers. Raises an error that occurs before the first part."""

        async def send_part(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        async with aclosing(self.parts) as parts:
            first = await anext(parts)
            await send({"type": "http.response.start", "status": 200, "headers": Headers(self.headers | headers).raw})
            await send_part(first)
            try:
                async for part in parts:
                    await send_part(part)
            except Exception as error:
                await send_part(self.ending(as_api_error(error).to_json()))
        await send({"type": "http.response.body", "body": b""})
