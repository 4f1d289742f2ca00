"""A failure stays with its own request, in the thread of the models too."""

from __future__ import annotations

import asyncio

import pytest

import foretell
from foretell.errors import UsageError
from foretell.serving.engine_thread import EngineThread
from foretell.serving.errors import ApiError
from foretell.serving.json_bodies import parse
from foretell.serving.models import ModelSettings, ServedModel, serve_model
from foretell.serving.preparation import Wanted, make_answer
from foretell.serving.requests import GenerationRequest


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
        engine.submit(broken)
        engine.submit(whole)
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
    answer = answer_to(served, change=[{"value": value, "scale": 0, "heads": [0]}])
    watch = answer.choices[0].watch
    assert watch is not None
    with pytest.raises((ApiError, UsageError)):
        watch.begin()
    watch.end()
    assert list(engine._prepared) == kept
