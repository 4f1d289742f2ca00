"""Calls of clients and steps of running texts share the thread of the models."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

import foretell
from foretell.serving import engine_thread
from foretell.serving.engine_thread import MOST_SECONDS, SLICE_SECONDS, EngineThread, Turns
from foretell.serving.json_bodies import parse
from foretell.serving.models import ModelSettings, serve_model
from foretell.serving.preparation import Wanted, make_answer
from foretell.serving.requests import GenerationRequest


class Clock:
    """The time of the thread, which only steps and calls move on."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(engine_thread, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def work(self, seconds, count=1):
        """An iterator of items, each of which takes this long."""
        for number in range(count):
            self.now += seconds
            yield number


class GrowingTexts:
    """A scheduler with a text that grows for a number of steps, and notes their ends."""

    def __init__(self, clock, seconds, count):
        self.clock, self.seconds, self.count = clock, seconds, count
        self.ends, self.ended = [], []

    @property
    def is_busy(self):
        return len(self.ends) < self.count

    def step(self):
        self.clock.now += self.seconds
        self.ends.append(self.clock.now)
        return []


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def run_calls(run_async):
    """Start a thread for these schedulers, which waits until all calls are queued, and run the calls."""

    def run(make_calls, *schedulers: Any):
        async def ask():
            engine, gate = EngineThread(schedulers), threading.Event()
            engine._commands.put(gate.wait)
            engine.start(asyncio.get_running_loop())
            calls = [asyncio.ensure_future(call) for call in make_calls(engine)]
            await asyncio.sleep(0.01)  # until each has put its first command
            gate.set()
            results = await asyncio.gather(*calls, return_exceptions=True)
            engine.stop()
            return results

        return run_async(ask())

    return run


async def collected(engine, key, items):
    return [item async for item in engine.each(key, items)]


@pytest.mark.parametrize("num_clients", [1, 2, 16])
@pytest.mark.parametrize("item", [0.001, 0.01, 0.2], ids=["short", "medium", "long"])
@pytest.mark.parametrize("step", [0.001, 0.02, 0.1])
def test_texts_keep_half_of_the_time_next_to_any_number_of_calls(clock, run_calls, num_clients, item, step):
    texts = GrowingTexts(clock, step, 200)
    num_items = round(200 * step / item / num_clients) + 1  # of all clients: as long as the steps

    def calls(engine):
        return [collected(engine, str(client), clock.work(item, num_items)) for client in range(num_clients)]

    assert run_calls(calls, texts) == [list(range(num_items))] * num_clients
    assert sum(200 * [step]) >= 0.5 * texts.ends[-1] - item
    assert max(after - before for before, after in pairwise(texts.ends)) <= step + MOST_SECONDS + item


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_text_keeps_half_of_the_time_next_to_many_that_are_only_read(
    clock, toy_model, run_async, monkeypatch, max_tokens
):
    served = serve_model("toy", foretell.load(toy_model), ModelSettings(memory=10**8))

    def timed(scheduler, seconds):
        def step():
            clock.now += seconds
            ends[scheduler].append(clock.now)
            return original()

        original, scheduler.step = scheduler.step, step

    def answer_to(text, limit):
        ids = list(text.encode())
        return make_answer(
            served, parse(GenerationRequest, {"ignore_eos": True}), Wanted([ids], limit, "max_tokens"), ""
        )

    async def ask():
        engine, gate = EngineThread([served.scheduler]), threading.Event()
        engine._commands.put(gate.wait)
        engine.start(asyncio.get_running_loop())
        with ExitStack() as stack:
            reads = [answer_to(f"{number} is read", max_tokens) for number in range(100)]
            text = answer_to("a text", 20)
            for answer in (*reads, text):
                stack.enter_context(engine.writing(answer))
            gate.set()
            for answer in (*reads, text):
                await answer.ended()
        engine.stop()

    ends = {served.scheduler: [], served.reader: []}
    monkeypatch.setattr(served.reader.pace, "room", lambda *_: 8)
    timed(served.scheduler, 0.01)
    timed(served.reader, 0.02)
    run_async(ask())
    of_text = ends[served.scheduler]
    assert len(of_text) == 20 < len(ends[served.reader])
    assert sum(20 * [0.01]) >= 0.5 * of_text[-1] - MOST_SECONDS


def test_a_call_may_add_another_one_for_its_own_client():
    turns, done = Turns(), []
    turns.add("key", lambda: not turns.add("key", lambda: not done.append("added")))
    turns.add("key", lambda: not done.append("second"))
    while turns:
        turns.run_next()
    assert done == ["second", "added"]


def test_keys_take_turns(clock, run_calls):
    order = []

    def parts(key):
        for _ in range(3):
            clock.now += SLICE_SECONDS
            order.append(key)
            yield None

    def calls(engine):
        return [*(collected(engine, "many", parts("many")) for _ in range(16)), collected(engine, "one", parts("one"))]

    run_calls(calls)
    assert order[:6] == ["many", "one"] * 3
    assert len(order) == 17 * 3


def test_requests_of_one_key_take_turns_where_an_item_is_complete(clock, run_calls):
    """An incomplete item may hold a large cache, so each key has at most one."""
    order = []

    def noted(name):
        for _ in range(2):
            for part in range(3):
                clock.now += SLICE_SECONDS
                order.append(name)
                yield part if part == 2 else None

    results = run_calls(lambda engine: [collected(engine, "key", noted(name)) for name in "ab"])
    assert "".join(order) == "aaabbbaaabbb"
    assert results == [[2, 2]] * 2


def test_an_error_ends_its_own_call(clock, run_calls):
    def broken():
        yield from clock.work(SLICE_SECONDS, 2)
        raise ValueError("broken")

    def calls(engine):
        return [
            collected(engine, "a", broken()),
            collected(engine, "a", clock.work(SLICE_SECONDS, 4)),
            engine.call("a", lambda: "short"),
        ]

    error, *others = run_calls(calls)
    assert str(error) == "broken"
    assert others == [[0, 1, 2, 3], "short"]


def test_what_a_client_that_left_would_still_get_is_not_computed(run_async, monkeypatch):
    computed, at_second, go_on = [], threading.Event(), threading.Event()

    def items():
        for number in range(1000):
            computed.append(number)
            if number == 1:
                at_second.set()
                go_on.wait()
            yield None

    async def ask():
        engine, pending = EngineThread([]), items()
        left = ref(pending)
        engine.start(asyncio.get_running_loop())
        call = asyncio.ensure_future(collected(engine, "a", pending))
        del pending
        await asyncio.to_thread(at_second.wait)
        call.cancel()
        await asyncio.wait((call,))
        del call
        go_on.set()
        await engine.call("a", lambda: None)
        engine.stop()
        return left()

    monkeypatch.setattr(engine_thread, "SLICE_SECONDS", 0)
    assert run_async(ask()) is None
    assert computed == [0, 1]
