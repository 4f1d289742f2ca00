"""`Server`: the common state of all routes. `Endpoint`: the base class of routes that read a body."""

from __future__ import annotations

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foretell.serving.connection import Stream, read_body, too_many, until_disconnected
from foretell.serving.engine_thread import EngineThread
from foretell.serving.errors import ApiError
from foretell.serving.json_bodies import parse, parse_json
from foretell.serving.models import ExploredModel, ServedModels
from foretell.serving.requests import PassRequest, Request
from foretell.system.allocator import return_free_memory

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Asked = TypeVar("Asked", bound=Request)
AskedPass = TypeVar("AskedPass", bound=PassRequest)
CLIENT = "foretell.client"  # entry in the scope of a request: the number of its key
LAG_DECAY = 0.9  # per measurement
WORKERS = 2  # threads that tokenise, render templates, compile schemas, read and write large JSON
MOST_BYTES_READ = 256 * 2**20  # total size of bodies that are read at the same time
BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)  # durations of requests in seconds
QUIET_SECONDS, MANY_REQUESTS = 0.05, 1000  # free memory is returned after a quiet time, if there were many requests
INLINE_BYTES = 16 * 1024  # JSON up to this size is processed in the event loop, in about a millisecond

disable_created_metrics()  # otherwise each metric has an extra time series


class Server:
    """The models, their thread, the worker threads, and the count of requests.

    max_requests: the limit of concurrent requests; further ones get status 429. strict_fields: refuse unknown fields.
    """

    def __init__(self, models: ServedModels, max_requests: int, strict_fields: bool):
        self.models, self.max_requests, self.strict_fields = models, max_requests, strict_fields
        self.engine = EngineThread(served.scheduler for served in models)
        self.num_requests, self.num_bytes_read, self.loop_lag = 0, 0, 0.0
        registry = self.registry = CollectorRegistry()
        self.answered = Counter("foretell_http_requests", "Answers", ["route", "status"], registry=registry)
        self.seconds = Histogram("foretell_http_request_seconds", "Time", ["route"], registry=registry, buckets=BUCKETS)
        self._num_since_quiet = 0
        self.is_ready = self.is_draining = False
        self._workers = ThreadPoolExecutor(WORKERS, "requests")

    def count(self, route: str, status: int | str, seconds: float | None = None) -> None:
        """Count an answer, unless the models are being warmed up."""
        if not self.is_ready:
            return
        self.answered.labels(route, status).inc()
        if seconds is not None:
            self.seconds.labels(route).observe(seconds)

    @contextmanager
    def admitted(self, http: HttpRequest) -> Iterator[str]:
        """Count a request while it is answered, and yield its client's key. Raises ApiError for too many requests."""
        self._check_room()
        self.num_requests += 1
        self._num_since_quiet += 1
        try:
            yield http.scope.get(CLIENT) or (http.client.host if http.client else "")
        finally:
            self.num_requests -= 1
            if self._is_quiet():
                asyncio.get_running_loop().call_later(QUIET_SECONDS, self._return_memory)

    def _is_quiet(self) -> bool:
        return not self.num_requests and self._num_since_quiet >= MANY_REQUESTS

    def _return_memory(self) -> None:
        """Return free memory to the system after many requests, unless there are new ones."""
        if self._is_quiet():
            self._num_since_quiet = 0
            gc.collect()
            return_free_memory()

    def is_full(self) -> bool:
        return self.num_requests >= self.max_requests

    def _check_room(self) -> None:
        if self.is_full():
            raise too_many()

    async def read(self, kind: type[Asked], http: HttpRequest) -> Asked:
        """The request in a body. Raises ApiError, also if there are too many requests; then the body is not read."""
        self._check_room()
        size = 0

        def note(count: int) -> None:
            nonlocal size
            size += count
            self.num_bytes_read += count
            if self.num_bytes_read > MOST_BYTES_READ:
                raise ApiError(429, "too many large bodies are being read; try again in a second")

        try:
            body = await read_body(http, note)
            return await self.compute(lambda: parse(kind, parse_json(body)), size)
        finally:
            self.num_bytes_read -= size

    async def compute(self, function: Callable[[], Result], num_bytes: int) -> Result:
        """Run a function that reads or writes JSON of this size, in a worker thread if it is large."""
        return function() if num_bytes <= INLINE_BYTES else await self.in_worker(function)

    async def in_worker(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Run a function in a worker thread. Raises its errors."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    def check_fields(self, request: Request) -> dict[str, str]:
        """Headers with the names of unknown fields of a request. Raises ApiError for refused fields."""
        unknown = request.unknown_fields()
        if not unknown:
            return {}
        if self.strict_fields:
            raise ApiError(400, f"unknown field {unknown[0][:80]!r}", unknown[0][:80], "unknown_field")
        names = ", ".join(name[:80] if name[:80].isidentifier() and name.isascii() else "?" for name in unknown[:10])
        return {"x-foretell-ignored": names}  # only identifiers, to prevent header injection

    def note_lag(self, seconds: float) -> None:
        """Record a delay of the event loop; the gauge shows the longest recent one."""
        self.loop_lag = max(seconds, LAG_DECAY * self.loop_lag)


class Endpoint(ABC, Generic[Asked]):
    """An ASGI application for one route: reads a request and answers it, unless the client leaves."""

    request_type: type[Asked]
    headers: ClassVar = {"content-type": "application/json"}  # for plain answers

    def __init__(self, server: Server):
        self.server = server

    async def find(self, request: Asked) -> Any:
        """The model that answers."""
        return self.server.models.find(request.model)

    @abstractmethod
    async def respond(self, served: Any, request: Asked, key: str) -> bytes | Stream:
        """The answer; cancelled when the client leaves. key: the client's key."""

    async def note_special(self, served: Any, request: Asked) -> dict[str, str]:
        """A header with the names of special tokens in a request's texts that are read as ordinary text."""
        if not (texts := request.plain_texts()):
            return {}

        def find() -> set[str]:
            return {name for text in texts for name in served.spelled_names.findall(text)}

        names = sorted(await self.server.compute(find, sum(map(len, texts))))[:10]
        shown = [name.encode("unicode_escape").decode()[:80] for name in names]  # in ASCII, without line ends
        return {"x-foretell-special": ", ".join(shown)} if names else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        request = await self.server.read(self.request_type, http)
        headers = self.server.check_fields(request)
        served = await self.find(request)
        headers |= await self.note_special(served, request)

        async def work(key: str) -> None:
            answer = await self.respond(served, request, key)
            if isinstance(answer, Stream):
                await answer.send(send, headers)
            else:
                await Response(answer, headers={**self.headers, **headers})(scope, receive, send)

        with self.server.admitted(http) as key:
            await until_disconnected(work(key), receive)


class PassEndpoint(Endpoint[AskedPass]):
    """A route for a pass of a language model or task model."""

    async def find(self, request: AskedPass) -> ExploredModel:
        return await self.server.in_worker(self.server.models.of_pass, request)
