"""Routes of models that were trained for a task: translations, forecasts, predictions, in the JSON of their verbs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from foretell.errors import UsageError
from foretell.language_model import LanguageModel
from foretell.serving.connection import until_disconnected
from foretell.serving.errors import ApiError
from foretell.serving.models import ExploredModel, ServedTask
from foretell.serving.requests import FIRST_ERROR, MOST_PROMPTS, Request
from foretell.serving.server import Server

if TYPE_CHECKING:
    from foretell.translation.translator import Translator

MOST_SAMPLED = 50_000  # samples times steps of one series: a few seconds
SOURCES = 16  # whose models a live page keeps: to collect the names of the values takes longer than a pass
Percent = Annotated[float, Gt(0), Lt(100)]
Values = Annotated[list[float | None], MinLen(1), MaxLen(100_000), FIRST_ERROR]  # null: a missing value
Texts = Annotated[list[str], MinLen(1), MaxLen(MOST_PROMPTS), FIRST_ERROR]


class TaskRequest(Request):
    """One or several inputs; each is answered alone, so that others are answered in between."""

    def inputs(self) -> list[Any]:
        raise NotImplementedError


class TranslateRequest(TaskRequest):
    """POST /v1/translate."""

    input: str | Texts
    beam: Annotated[int, Ge(1), Le(16)] = 5
    length_penalty: Annotated[float, Ge(0), Le(10)] | None = None

    def inputs(self) -> list[Any]:
        return [self.input] if isinstance(self.input, str) else self.input


class ForecastRequest(TaskRequest):
    """POST /v1/forecast: series as lists of values, oldest first."""

    series: Annotated[list[Values], MinLen(1), MaxLen(MOST_PROMPTS)]
    horizon: Annotated[int, Ge(1), Le(10_000)] | None = None
    levels: Annotated[list[Percent], MaxLen(10)] = [80.0]  # noqa: RUF012 - pydantic copies it
    samples: Annotated[int, Ge(1), Le(1000)] = 100
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 1

    def inputs(self) -> list[Any]:
        return self.series


class PredictRequest(TaskRequest):
    """POST /v1/predict: texts, or several texts per input where the model was tuned on pairs or choices."""

    input: str | Annotated[list[str | Texts], MinLen(1), MaxLen(MOST_PROMPTS)]

    def inputs(self) -> list[Any]:
        return [self.input] if isinstance(self.input, str) else self.input


TASK_REQUESTS: dict[str, type[TaskRequest]] = {
    "/v1/translate": TranslateRequest,
    "/v1/forecast": ForecastRequest,
    "/v1/predict": PredictRequest,
}


class TaskEndpoint:
    """An ASGI application for one task and the models that were trained for it."""

    def __init__(self, server: Server, path: str):
        self.server, self.path, self.request_type = server, path, TASK_REQUESTS[path]
        self.models = {task.name: task for task in server.models.tasks if task.path == path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        request = await self.server.read(self.request_type, http)
        headers = self.server.check_fields(request)
        task = self._find(request.model)

        async def work() -> None:
            call = self.server.engine.call
            rows = [await call(partial(task.answer, request, each)) for each in request.inputs()]
            body = {"object": "list", "model": task.name, "data": rows}
            await JSONResponse(body, headers=headers)(scope, receive, send)

        with self.server.admitted(http):
            await until_disconnected(work(), receive)

    def _find(self, name: str) -> ServedTask:
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name not in self.models:
            known = ", ".join(self.models) or "none"
            asked = f"no model named {name[:80]!r} answers" if name else "the request names no model for"
            message = f"{asked} {self.path}; models for it: {known}"
            raise ApiError(404, message, "model", "model_not_found")
        return self.models[name]


# --- models ----------------------------------------------------------------------------------------------------------


def translation_task(name: str, translator: Translator, look_bytes: int) -> ServedTask:
    """A translation model. Its imports are here, so that a server without one works without the package."""
    from foretell.translation.translate import Decoding, translate

    def answer(request: TranslateRequest, sentence: str) -> dict[str, Any]:
        return translate(translator, [sentence], Decoding(request.beam, request.length_penalty))[0].to_json()

    @lru_cache(SOURCES)
    def given(source: str) -> ExploredModel:
        if not source.strip():
            raise UsageError(f"{name} translates; give the sentence to translate")
        return ExploredModel(name, replace(translator.given(source), name=name), look_bytes)

    return ServedTask(name, "/v1/translate", answer, given)


def forecast_task(name: str, model: LanguageModel) -> ServedTask:
    """A forecaster."""
    from foretell.forecasting.forecaster import as_forecaster, forecast
    from foretell.forecasting.output import forecast_json
    from foretell.forecasting.series import Series, numbered

    forecaster = as_forecaster(model)

    def answer(request: ForecastRequest, values: list[float | None]) -> dict[str, Any]:
        history = np.array([np.nan if value is None else value for value in values])
        series = [Series("series", history, numbered())]
        values_sampled = request.samples * (request.horizon or forecaster.for_series(series)[1])
        if values_sampled > MOST_SAMPLED:
            message = f"{values_sampled:,} values per series; at most {MOST_SAMPLED:,} are sampled, while others wait"
            raise ApiError(400, f"{message}; ask for fewer samples or steps", "samples")
        found = forecast(forecaster, series, request.horizon, request.samples, seed=request.seed)
        return forecast_json(found[0], request.levels)

    return ServedTask(name, "/v1/forecast", answer)


def prediction_task(name: str, model: LanguageModel) -> ServedTask:
    """A model with a task's head."""
    from foretell.finetuning.predict import predict

    def answer(request: PredictRequest, texts: str | list[str]) -> dict[str, Any]:
        return predict(model, [texts])[0].to_json()

    return ServedTask(name, "/v1/predict", answer)


TASK_OF_PART = {"series_codec": forecast_task, "task_head": prediction_task}  # by the kind of a part


def tasks_of(name: str, model: LanguageModel) -> list[ServedTask]:
    """The tasks that a language model was trained for."""
    return [TASK_OF_PART[part.kind](name, model) for part in model.parts.values() if part.kind in TASK_OF_PART]
