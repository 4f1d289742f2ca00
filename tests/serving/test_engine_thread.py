"""A failure stays with its own request, in the thread of the models too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

import foretell
from foretell.errors import UsageError
from foretell.serving.access import Access
from foretell.serving.connection import until_disconnected
from foretell.serving.engine_thread import EngineThread
from foretell.serving.errors import ApiError
from foretell.serving.json_bodies import parse
from foretell.serving.models import ModelSettings, ServedModel, ServedModels, serve_model
from foretell.serving.preparation import Wanted, make_answer
from foretell.serving.requests import GenerationRequest
from foretell.serving.server import Server


@pytest.fixture(scope="module")
def served(toy_model) -> ServedModel:
    return serve_model("toy", foretell.load(toy_model), ModelSettings(memory=10**8))


def answer_to(served, **fields):
    request = parse(GenerationRequest, {"seed": 1, **fields})
    return make_answer(served, request, Wanted([[97, 98]], 5, "max_tokens"), "")


@pytest.mark.parametrize("method", ["take", "end"])
def test_a_choice_that_fails_ends_alone(served, method, run_async):
    def fail(*_):
        raise RuntimeError("broken")

    async def ask():
        engine = EngineThread([served.scheduler])
        engine.start(asyncio.get_running_loop())
        broken, whole = answer_to(served), answer_to(served)
        setattr(broken.choices[0], method, fail)
        with engine.writing(broken), engine.writing(whole):
            await whole.ended()
            with pytest.raises(RuntimeError, match="broken"):
                await broken.ended()
        engine.stop()
        return whole.choices[0].text

    assert len(run_async(ask()).encode()) > 0
    assert not served.scheduler.is_busy


@pytest.mark.parametrize("value", ["trunk.norm.*", "nothing"])
def test_a_change_that_does_not_fit_leaves_nothing(served, value):
    engine = served.scheduler.engine
    kept = list(engine._prepared)
    watch = None
    with pytest.raises((ApiError, UsageError)):
        watch = answer_to(served, change=[{"value": value, "scale": 0, "heads": [0]}]).choices[0].watch
        assert watch is not None
        watch.begin()
    if watch is not None:  # the names fit
        watch.end()
    assert list(engine._prepared) == kept and not served.changed_forms


STREAM, CORE = "trunk.blocks.*", "trunk.blocks.0.attention.core"


@pytest.mark.parametrize(
    "change",
    [
        [],
        [{"value": STREAM, "scale": 0}],
        [{"value": STREAM, "scale": 1e38}],
        [{"value": CORE, "scale": 0}],
        [{"value": CORE, "scale": 0, "positions": [0]}],
    ],
    ids=["plain", "stream", "infinite", "shared", "alone"],
)
def test_an_answer_is_freed_without_a_collection(served, change, run_async, without_collections):
    """Recorded values are large, and a collection comes after thousands of objects, however large they are."""

    async def ask():
        engine = EngineThread([served.scheduler])
        engine.start(asyncio.get_running_loop())
        answer = answer_to(served, change=change)
        left = [ref(each) for each in (answer.choices[0].continuation.sequence, answer.choices[0].continuation)]
        with engine.writing(answer):
            try:
                await answer.ended()
            except ApiError as error:
                error.__traceback__ = None  # as `Access` does
        engine.stop()
        if (watch := answer.choices[0].watch) is not None:
            left += [ref(watch.recorder)]
            left += [ref(watch.recorder.decoder)] if change[0]["value"] == CORE else []
        return left

    left = run_async(ask())
    served.scheduler.ended = []  # the next step does this
    assert [each() for each in left] == [None] * len(left)


def test_a_refusal_is_freed_without_a_collection(run_async, without_collections):
    class Marked:
        """A local variable of the work."""

    async def refuse(receive):
        marked = Marked()
        left.append(ref(marked))
        raise ApiError(400, "wrong")

    async def app(scope, receive, send):
        await until_disconnected(refuse(receive), receive)

    async def receive():
        await asyncio.Event().wait()

    async def ask():
        scope = {"type": "http", "method": "GET", "path": "/health", "headers": [(b"host", b"localhost")]}
        scope |= {"raw_path": b"/health", "query_string": b""}
        access: Any = Access
        await access(app, server, [], is_local=True)(scope, receive, send)

    async def send(message):
        sent.append(message["type"])

    def count():
        return server.registry.get_sample_value("foretell_http_requests_total", {"route": "other", "status": "400"})

    left, sent, server = [], [], Server(ServedModels([], [], {}), 9, strict_fields=False)
    run_async(ask())
    assert sent == ["http.response.start", "http.response.body"]
    assert count() is None  # the models are being warmed up
    server.is_ready = True
    run_async(ask())
    assert count() == 1
    assert left[0]() is None


def test_free_memory_is_returned_in_a_quiet_moment_after_many_requests(run_async, monkeypatch):
    returned = []
    monkeypatch.setattr("foretell.serving.server.return_free_memory", lambda: returned.append(None))
    monkeypatch.setattr("foretell.serving.server.MANY_REQUESTS", 3)
    monkeypatch.setattr("foretell.serving.server.QUIET_SECONDS", 0)
    http: Any = SimpleNamespace(scope={}, client=None)

    async def ask():
        server = Server(ServedModels([], [], {}), 9, strict_fields=False)
        for expected in (0, 0, 1, 1):  # after each request
            with server.admitted(http):
                pass
            await asyncio.sleep(0.01)
            assert len(returned) == expected
        with server.admitted(http):
            with server.admitted(http):
                pass
            await asyncio.sleep(0.01)
            assert len(returned) == 1  # another one is being answered

    run_async(ask())
