"""`ServerRun`: the life of a server until SIGTERM, SIGHUP or Ctrl-C: bind, warm up, answer, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import queue
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from logging.handlers import QueueHandler, QueueListener

import uvicorn
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from foretell.errors import OutputError, hangup_signals
from foretell.serving.access import Access
from foretell.serving.connection import MOST_HEADER_BYTES, SECONDS, TimedConnection, refusing_connection
from foretell.serving.errors import ApiError
from foretell.serving.explorer import Explorer, PageFile
from foretell.serving.generation import Chats, Completions
from foretell.serving.models import ServedModel
from foretell.serving.patch_map import PatchMap
from foretell.serving.preparation import Wanted, make_answer
from foretell.serving.requests import GenerationRequest
from foretell.serving.responses import Responses
from foretell.serving.server import Server
from foretell.serving.status import Status
from foretell.serving.tasks import TASK_REQUESTS, TaskEndpoint
from foretell.serving.texts import Detokenize, Embeddings, Scores, Tokenize
from foretell.serving.values import Values

BACKLOG = 2048
WARM_UP_TOKENS = 4
LOG_RECORDS = 1000
LAST_SECONDS = 2.0  # for the last lines of stopped streams, and for data that clients have not read yet
USUAL_COLLECTIONS = (700, 10, 10)  # Python's thresholds; the command line sets larger ones for short programs
LAG_SECONDS = 0.25  # interval between measurements of the event loop's delay

logger = logging.getLogger(__name__)


def make_app(server: Server, keys: Sequence[bytes], is_local: bool) -> ASGIApp:
    status = Status(server)
    asked: dict[str, ASGIApp] = {
        "/v1/completions": Completions(server),
        "/v1/chat/completions": Chats(server),
        "/v1/responses": Responses(server),
        "/v1/embeddings": Embeddings(server),
        "/v1/score": Scores(server),
        "/explore/patch": PatchMap(server),
        "/explore/value": Values(server),
        "/tokenize": Tokenize(server),
        "/detokenize": Detokenize(server),
        "/explore": Explorer(server),
        "/explore/page": PageFile(server),
        **{path: TaskEndpoint(server, path) for path in TASK_REQUESTS},
    }
    read = {
        "/v1/models": status.models,
        "/v1/models/{name:path}": status.model,
        "/tokenizer_info": status.tokenizer_info,
        "/health": status.health,
        "/ready": status.ready,
        "/metrics": status.metrics,
        "/": status.page,
        "/page/{name:path}": status.page,
        "/explore": status.explored,
    }
    read["/v1/tokenizer_info"] = read["/tokenizer_info"]
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in asked.items()]
    routes += [Route(path, function, methods=["GET"]) for path, function in read.items()]
    routes += [Route(f"/v1{path}", asked[path], methods=["POST"]) for path in ("/tokenize", "/detokenize")]
    return Access(Router(routes, redirect_slashes=False), server, keys, is_local)


class QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end streams early."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OutputError for an address that cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With another protocol number, asyncio does not set TCP_NODELAY, and answers wait 40 ms for an acknowledgement
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        advice = f"choose another {'--port' if error.errno in (errno.EADDRINUSE, errno.EACCES) else '--host'}"
        raise OutputError(f"cannot listen on {host} port {port}: {error.strerror}; {advice}") from None
    listener.listen(BACKLOG)
    return listener


class DroppingHandler(QueueHandler):
    """Puts records into a queue, and drops those that do not fit."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def logged_apart() -> Iterator[None]:
    """Write the log in a thread, because a full pipe or a slow disk must not block the event loop."""
    log, handlers = logging.getLogger("foretell"), logging.getLogger("foretell").handlers
    records: queue.Queue[logging.LogRecord] = queue.Queue(LOG_RECORDS)
    QueueListener(records, *handlers).start()  # a daemon thread, not stopped: stop() would wait for a full pipe
    log.handlers = [DroppingHandler(records)]
    try:
        yield
    finally:
        log.handlers = handlers


class ServerRun:
    """Runs a server until a signal ends it; `started` is called when it is ready."""

    def __init__(
        self, server: Server, app: ASGIApp, listener: socket.socket, grace: float, started: Callable[[], None]
    ):
        self.server, self.listener, self.grace, self.started = server, listener, grace, started
        config = uvicorn.Config(
            app,
            http=refusing_connection(server.is_full, partial(server.count, "other", "429")),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            timeout_keep_alive=SECONDS,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.http = QuietServer(config)
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()

    def run(self) -> None:
        with logged_apart():
            asyncio.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, *hangup_signals()):
            loop.add_signal_handler(number, self._on_signal)
        self.server.engine.start(loop)
        serving = asyncio.create_task(self.http.serve(sockets=[self.listener]))
        warming = asyncio.create_task(self._warm_up())
        warming.add_done_callback(self._on_warm)
        helpers = [warming, asyncio.create_task(self._measure_lag())]
        await asyncio.wait((serving, asyncio.create_task(self.stopping.wait())), return_when=asyncio.FIRST_COMPLETED)
        self.server.is_draining = True
        await self._drain()
        for helper in helpers:
            helper.cancel()
        self.http.should_exit = True  # closes each connection when its answer is sent
        await asyncio.wait((serving,), timeout=LAST_SECONDS)
        self.http.force_exit = True
        for connection in list(self.http.server_state.connections):
            if isinstance(connection, TimedConnection):
                connection.abort()
        await serving
        self.server.engine.stop()
        if warming.done() and not warming.cancelled():
            warming.result()  # raises the error if a model cannot generate

    def _on_warm(self, warming: asyncio.Task[None]) -> None:
        """End the server if a model cannot generate."""
        if not warming.cancelled() and warming.exception() is not None:
            self.stopping.set()

    def _on_signal(self) -> None:
        """The first signal lets running requests finish; the second ends them."""
        if self.stopping.is_set():
            self.hurry.set()
            return
        self.stopping.set()
        if not (count := self.server.num_requests):
            logger.info("stopping")
            return
        requests = f"{count} request has" if count == 1 else f"{count} requests have"
        logger.info(f"stopping: {requests} {self.grace:g} seconds; a second signal ends them now")

    async def _drain(self) -> None:
        await self._wait_for_requests(self.grace, self.hurry)
        if self.server.num_requests:
            self.server.engine.fail_all(ApiError(503, "the server was stopped"))
            await self._wait_for_requests(LAST_SECONDS)  # streams send their last lines

    async def _wait_for_requests(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        deadline = time.monotonic() + seconds
        while self.server.num_requests and time.monotonic() < deadline and not (hurry and hurry.is_set()):
            await asyncio.sleep(0.02)

    async def _warm_up(self) -> None:
        """Generate a few tokens with each model, until its kernels are compiled and in use."""
        for served in self.server.models:
            await self._generate_little(served)
            while served.scheduler.engine.is_compiling:
                await asyncio.sleep(0.1)
            await self._generate_little(served)
        gc.collect()
        gc.freeze()  # objects of models and libraries are not garbage, and later collections become short
        gc.collect()  # the next full one waits for a quarter of the objects that this one keeps: none, after freezing
        gc.set_threshold(*USUAL_COLLECTIONS)
        await self.server.engine.call("", self.server.engine.forget_counts)
        self.server.is_ready = True
        self.started()

    async def _generate_little(self, served: ServedModel) -> None:
        """Generate a few tokens; the first passes pack weights and start the compilation of kernels."""
        request = GenerationRequest(temperature=0, ignore_eos=True)
        answer = make_answer(served, request, Wanted([[0]], WARM_UP_TOKENS, "max_tokens"), "")
        with self.server.engine.writing(answer):
            await answer.ended()

    async def _measure_lag(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_SECONDS)
            self.server.note_lag(time.monotonic() - before - LAG_SECONDS)
