"""`GenerationEndpoint`: a request becomes sequences, and their text an answer or a stream, until the client leaves."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foretell.serving.choice import Answer, Choice
from foretell.serving.connection import send_stream, until_disconnected
from foretell.serving.errors import errors_of
from foretell.serving.json_bodies import to_json, to_json_in_parts
from foretell.serving.models import ServedModel
from foretell.serving.requests import GenerationRequest
from foretell.serving.server import Server
from foretell.serving.tokens import ShownToken

Asked = TypeVar("Asked", bound=GenerationRequest)
DONE = b"data: [DONE]\n\n"
BYTES_PER_TOKEN = 160  # of an answer with log-probabilities, about


@dataclass(frozen=True)
class Piece:
    """The part of a choice that is new since the last piece."""

    choice: Choice
    text: str
    tokens: list[ShownToken]
    finish_reason: str | None
    is_first: bool


class GenerationEndpoint(ABC, Generic[Asked]):
    """An ASGI application for one route. Subclasses write the shapes of its answers."""

    request_type: type[Asked]
    prefix: ClassVar[str]  # of the ids of answers

    def __init__(self, server: Server):
        self.server = server

    @abstractmethod
    def prepare(self, served: ServedModel, request: Asked, key: str) -> Answer:
        """The sequences of a request; in a worker thread."""

    @abstractmethod
    def plain(self, answer: Answer, request: Asked) -> dict[str, Any]:
        """The whole answer, without `common` fields."""

    @abstractmethod
    def events(
        self, answer: Answer, request: Asked, pieces: AsyncIterator[Piece], common: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        """The lines of a stream."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        request = await self.server.read(self.request_type, http)
        headers = self.server.check_fields(request)
        served = self.server.models.find(request.model)
        with self.server.admitted(http) as key:
            answer = await self.server.in_worker(partial(self.prepare, served, request, key))
            self.server.engine.submit(answer)
            try:
                work = self._stream if request.stream else self._answer
                await until_disconnected(work(answer, request, headers, scope, receive, send), receive)
            finally:
                self.server.engine.cancel(answer)

    async def _answer(self, answer: Answer, request: Asked, headers: dict[str, str], *connection: Any) -> None:
        await answer.ended()
        common, looks = self.common(answer), await self.looks(answer)
        common["foretell"] |= looks

        def render() -> bytes:
            return to_json_in_parts({**common, **self.plain(answer, request)})

        size = BYTES_PER_TOKEN * answer.num_tokens
        content = await (self.server.in_worker(render) if looks else self.server.compute(render, size))
        await Response(content, headers=headers, media_type="application/json")(*connection)

    async def _stream(
        self, answer: Answer, request: Asked, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        events = self.events(answer, request, pieces(answer), self.common(answer))
        fields = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", **headers}
        await send_stream(send, events, fields, lambda error: data(error) + DONE)

    async def looks(self, answer: Answer) -> dict[str, Any]:
        """`foretell.look`: the values of each choice; nothing where none is asked for."""
        watches = [choice.watch for choice in answer.choices if choice.watch is not None and choice.watch.request.look]
        with errors_of("look"):
            return {"look": [await watch.result(self.server.engine.call) for watch in watches]} if watches else {}

    def common(self, answer: Answer) -> dict[str, Any]:
        """The fields of all objects of an answer."""
        return {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": answer.created,
            "model": answer.model.name,
            "system_fingerprint": answer.model.fingerprint,
            "foretell": {"seed": answer.seed},
        }


class ChoicesEndpoint(GenerationEndpoint[Asked]):
    """A route whose answers have `choices`; a chunk of a stream has a piece of one of them."""

    names: ClassVar[tuple[str, str]]  # the `object` of an answer and of a chunk

    @abstractmethod
    def row(self, piece: Piece, answer: Answer, request: Asked, is_chunk: bool) -> dict[str, Any]:
        """An entry of `choices`."""

    def plain(self, answer: Answer, request: Asked) -> dict[str, Any]:
        whole = [Piece(each, each.text, each.tokens, each.finish_reason, is_first=True) for each in answer.choices]
        choices = [self.row(piece, answer, request, is_chunk=False) for piece in whole]
        return {"object": self.names[0], "choices": choices, "usage": usage(answer)}

    async def events(
        self, answer: Answer, request: Asked, pieces: AsyncIterator[Piece], common: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        common["object"] = self.names[1]
        to_data = rows_as_data(common)
        async for piece in pieces:
            yield to_data(self.row(piece, answer, request, is_chunk=True))
        if looks := await self.looks(answer):
            chunk = {**common, "choices": [], "foretell": {**common["foretell"], **looks}}
            yield await self.server.in_worker(lambda: data(chunk))
        if request.stream_options.include_usage:
            yield data({**common, "choices": [], "usage": usage(answer)})
        yield DONE


async def pieces(answer: Answer) -> AsyncIterator[Piece]:
    """The growth of all choices until all have ended; at least one piece for each. Raises the error of the first."""
    readers = [Reader(choice) for choice in answer.choices]
    while any(reader.is_open for reader in readers):
        await answer.wait()
        answer.check()
        for reader in readers:
            for piece in reader.read():
                yield piece


class Reader:
    """Reads a choice from where it was."""

    def __init__(self, choice: Choice):
        self.choice, self.is_open = choice, True
        self._characters = self._tokens = 0

    def read(self) -> Iterator[Piece]:
        """The new part, if there is one."""
        if not self.is_open:
            return
        choice, is_first = self.choice, not (self._characters or self._tokens)
        reason = choice.finish_reason  # before the text: it is set last
        text, tokens = choice.text[self._characters :], choice.tokens[self._tokens :]
        if text or tokens or reason is not None:
            self._characters += len(text)
            self._tokens += len(tokens)
            self.is_open = reason is None
            yield Piece(choice, text, tokens, reason, is_first)


def usage(answer: Answer) -> dict[str, int]:
    """Tokens of the prompts and of all choices; the end token counts."""
    prompt = sum(map(len, answer.prompts))
    completion = sum(len(choice.continuation.sequence.generated) for choice in answer.choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def rows_as_data(common: dict[str, Any]) -> Callable[[dict[str, Any]], bytes]:
    """Writes chunks with one entry of `choices`; their other fields are written once."""
    head = data(common).removesuffix(b"}\n\n") + b',"choices":['
    return lambda row: head + to_json(row) + b"]}\n\n"


def data(value: Any, event: str | None = None) -> bytes:
    """A value as a server-sent event."""
    line = b"data: " + to_json(value) + b"\n\n"
    return line if event is None else f"event: {event}\n".encode() + line
