"""Routes of task models: translations, forecasts and predictions, in the JSON formats of the commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from foretell.errors import UsageError
from foretell.language_model import LanguageModel
from foretell.serving.errors import ApiError, errors_of
from foretell.serving.json_bodies import to_json
from foretell.serving.models import ExploredModel, Row, ServedTask
from foretell.serving.requests import FIRST_ERROR, MOST_PROMPTS, PassRequest, Request
from foretell.serving.server import Endpoint, Server

if TYPE_CHECKING:
    from foretell.translation.translator import Translator

MOST_SAMPLED = 50_000  # samples times steps of a series: a few seconds
Percent = Annotated[float, Gt(0), Lt(100)]
Values = Annotated[list[float | None], MinLen(1), MaxLen(100_000), FIRST_ERROR]  # null: a missing value
Texts = Annotated[list[str], MinLen(1), MaxLen(MOST_PROMPTS), FIRST_ERROR]


class TranslateRequest(Request):
    """POST /v1/translate."""

    input: str | Texts
    beam: Annotated[int, Ge(1), Le(16)] = 5
    length_penalty: Annotated[float, Ge(0), Le(10)] | None = None

    def plain_texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class ForecastRequest(Request):
    """POST /v1/forecast: series as lists of values, oldest first."""

    series: Annotated[list[Values], MinLen(1), MaxLen(MOST_PROMPTS)]
    horizon: Annotated[int, Ge(1), Le(10_000)] | None = None
    levels: Annotated[list[Percent], MaxLen(10)] = [80.0, 95.0]  # noqa: RUF012 - pydantic copies it; the default of the verb
    samples: Annotated[int, Ge(1), Le(1000)] = 100
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 1

    def named(self) -> list[tuple[str, list[float | None]]]:
        """The series with names, which are numbered if there are several."""
        is_one = len(self.series) == 1
        return [("series" if is_one else f"series {number}", each) for number, each in enumerate(self.series, start=1)]


class PredictRequest(Request):
    """POST /v1/predict: texts, or several texts per input for models tuned on pairs or choices."""

    input: str | Annotated[list[str | Texts], MinLen(1), MaxLen(MOST_PROMPTS)]

    def plain_texts(self) -> list[str]:
        inputs = [self.input] if isinstance(self.input, str) else self.input
        return [text for each in inputs for text in ([each] if isinstance(each, str) else each)]


TaskRequest = TranslateRequest | ForecastRequest | PredictRequest
TASK_REQUESTS: dict[str, type[TaskRequest]] = {
    "/v1/translate": TranslateRequest,
    "/v1/forecast": ForecastRequest,
    "/v1/predict": PredictRequest,
}


class TaskEndpoint(Endpoint[TaskRequest]):
    """An ASGI application for a task and its models."""

    def __init__(self, server: Server, path: str):
        super().__init__(server)
        self.path, self.request_type = path, TASK_REQUESTS[path]

    async def respond(self, served: ServedTask, request: TaskRequest, key: str) -> bytes:
        given = request.named() if isinstance(request, ForecastRequest) else request.input
        inputs = [given] if isinstance(given, str) else given
        with errors_of("series" if isinstance(request, ForecastRequest) else "input"):
            answers = (part for each in inputs for part in served.answer(request, each))
            rows = [row async for row in self.server.engine.each(key, answers)]
        return to_json({"object": "list", "model": served.name, "data": rows})

    async def find(self, request: TaskRequest) -> ServedTask:
        return self.server.models.find_task(request.model, self.path)


def translation_task(name: str, translator: Translator, look_bytes: int) -> ServedTask:
    """A translation model. Imports are inside, so that other servers work without the package."""
    from foretell.translation.translate import Decoding, translating

    def answer(request: TranslateRequest, sentence: str) -> Iterator[Row | None]:
        if not sentence.strip():
            raise UsageError("the sentence is empty; give at least one word")
        decoding = Decoding(request.beam, request.length_penalty)
        (translation,) = yield from translating(translator, [sentence], decoding)
        yield translation.to_json()

    target = LanguageModel(translator.model, translator.vocabulary.target, name)
    first = ExploredModel(name, target, look_bytes)

    def explored(request: PassRequest) -> ExploredModel:
        if not request.source.strip():
            raise UsageError(f"{name} translates; give the sentence to translate")
        return first.with_input(replace(translator.given(request.source), name=name))

    return ServedTask(name, "/v1/translate", answer, explored, "source", translator.vocabulary.source.spelled_names)


def forecast_task(name: str, model: LanguageModel, look_bytes: int) -> ServedTask:
    from foretell.forecasting.forecaster import as_forecaster, forecasting
    from foretell.forecasting.output import forecast_json
    from foretell.forecasting.series import Series, numbered
    from foretell.forecasting.value_model import ValueTokenizer, reading_values

    forecaster = as_forecaster(model)
    tokenizer = ValueTokenizer(forecaster.codec.vocab_size)
    plain = reading_values(forecaster, "0 1", tokenizer)
    first = ExploredModel(name, plain, look_bytes, levels=plain.levels)

    def explored(request: PassRequest) -> ExploredModel:
        given = reading_values(forecaster, request.text, tokenizer, len(request.appended))
        return first.with_input(given, given.levels)

    def answer(request: ForecastRequest, named: tuple[str, list[float | None]]) -> Iterator[Row | None]:
        name, values = named
        if all(value is None for value in values):
            raise UsageError(f"{name}: all values are missing, so there is nothing to continue")
        series = [Series(name, np.array([np.nan if value is None else value for value in values]), numbered())]
        steps = request.horizon or forecaster.for_series(series)[1]
        values_sampled = request.samples * steps
        if values_sampled > MOST_SAMPLED:
            message = f"{values_sampled:,} values per series; at most {MOST_SAMPLED:,} are sampled, while others wait"
            raise ApiError(400, f"{message}; ask for fewer samples or steps", "samples")
        (forecast,) = yield from forecasting(forecaster, series, steps, request.samples, request.seed)
        yield forecast_json(forecast, request.levels)

    return ServedTask(name, "/v1/forecast", answer, explored, "values")


def prediction_task(name: str, model: LanguageModel, look_bytes: int) -> ServedTask:
    """A model with a task's head, for a text, a pair, a choice or tags."""
    from foretell.finetuning.head import head_of
    from foretell.finetuning.label_attribution import readout_of
    from foretell.finetuning.predict import as_task_input, predict

    def answer(request: PredictRequest, texts: str | list[str]) -> Iterator[Row | None]:
        (prediction,) = predict(model, [texts])
        yield prediction.to_json() | ({"cut": prediction.cut} if prediction.cut else {})

    fewest = head_of(model).task.reader.form.fewest
    plain = as_task_input(model, ["a"] * (fewest - 1))
    first = ExploredModel(name, plain, look_bytes, readout=readout_of(plain, "a"))

    def explored(request: PassRequest) -> ExploredModel:
        reading = as_task_input(model, request.others, request.answer)
        return first.with_input(reading, readout=readout_of(reading, request.text))

    reads = {1: "example", 2: "pair"}.get(fewest, "choice")
    return ServedTask(name, "/v1/predict", answer, explored, reads, model.tokenizer.spelled_names)


TASK_OF_PART = {"series_codec": forecast_task, "task_head": prediction_task}  # by the kind of a part


def tasks_of(name: str, model: LanguageModel, look_bytes: int) -> list[ServedTask]:
    return [
        TASK_OF_PART[part.kind](name, model, look_bytes) for part in model.parts.values() if part.kind in TASK_OF_PART
    ]
