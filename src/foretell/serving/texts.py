"""Routes that read texts and write none: embeddings, scores, tokens."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import torch
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from foretell.inference.query import POOLINGS
from foretell.serving.choice import Answer
from foretell.serving.connection import until_disconnected
from foretell.serving.errors import ApiError, errors_of
from foretell.serving.json_bodies import to_json, to_json_in_parts
from foretell.serving.models import ExploredModel, ServedModel
from foretell.serving.preparation import (
    Wanted,
    as_list,
    check_ids,
    encode,
    encode_chat,
    encode_text,
    limited,
    make_answer,
)
from foretell.serving.requests import (
    MOST_INPUTS,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    PassRequest,
    Request,
    ScoreRequest,
    TokenizeRequest,
)
from foretell.serving.server import Server
from foretell.serving.tokens import key_of

Asked = TypeVar("Asked", bound=Request)
BYTES_PER_TOKEN = 80  # of a score


class TextEndpoint(ABC, Generic[Asked]):
    """An ASGI application for one route with a plain answer."""

    request_type: type[Asked]
    media_type: ClassVar = "application/json"
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, server: Server):
        self.server = server

    @abstractmethod
    async def respond(self, served: Any, request: Asked, key: str) -> bytes:
        """The answer; given up when the client leaves."""

    async def find(self, request: Asked) -> Any:
        """The model that answers."""
        return self.server.models.find(request.model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        request = await self.server.read(self.request_type, http)
        headers = {**self.server.check_fields(request), **self.headers}
        served = await self.find(request)

        async def work(key: str) -> None:
            content = await self.respond(served, request, key)
            await Response(content, headers=headers, media_type=self.media_type)(scope, receive, send)

        with self.server.admitted(http) as key:
            await until_disconnected(work(key), receive)


AskedPass = TypeVar("AskedPass", bound=PassRequest)


class PassEndpoint(TextEndpoint[AskedPass]):
    """A route about one pass, also of a translation model."""

    async def find(self, request: AskedPass) -> ExploredModel:
        return await self.server.in_worker(partial(self.server.models.of_pass, request))


def list_to_json(rows: Iterable[bytes], fields: dict[str, Any]) -> bytes:
    """A list object. Its rows are written one by one: while JSON is written, no other thread runs."""
    return b'{"object":"list","data":[' + b",".join(rows) + b"]," + to_json(fields)[1:]


class Embeddings(TextEndpoint[EmbeddingRequest]):
    """POST /v1/embeddings: the stream after the last norm, averaged over the text or at its last token."""

    request_type = EmbeddingRequest

    async def respond(self, served: ServedModel, request: EmbeddingRequest, key: str) -> bytes:
        width = served.model.config.width
        if request.dimensions not in (None, width):
            raise ApiError(400, f"dimensions is the width of the model here, {width}", "dimensions")
        texts = await self.server.in_worker(partial(self._encode, served, request))
        rows = []
        for index, ids in enumerate(texts):  # one at a time: answers of others are written in between
            vector = await self.server.engine.call(partial(embedding, served, ids, request.pooling))
            shown = vector if request.encoding_format == "float" else in_base64(vector)
            rows.append(to_json({"object": "embedding", "index": index, "embedding": shown}))
        count = sum(map(len, texts))
        numbers = {"prompt_tokens": count, "total_tokens": count}
        return list_to_json(rows, {"model": served.name, "usage": numbers})

    def _encode(self, served: ServedModel, request: EmbeddingRequest) -> list[list[int]]:
        inputs = as_list(request.input, "input", MOST_INPUTS)
        if not all(inputs):
            raise ApiError(400, "an input is empty; give at least one token", "input")
        texts = [encode(served, text, "input") for text in inputs]
        if too_long := next((ids for ids in texts if len(ids) > served.context_length), None):
            message = (
                f"a text has {len(too_long):,} tokens and the context of {served.name} is {served.context_length:,}"
            )
            raise ApiError(400, f"{message}; shorten it", "input", "context_length_exceeded")
        return texts


@torch.inference_mode()
def embedding(served: ServedModel, ids: list[int], pooling: str) -> list[float]:
    """The vector (D,) of a text."""
    decoder = served.model.decoder
    hidden = decoder.hidden(torch.tensor([ids], device=decoder.device))[0].float()  # (T, D)
    return POOLINGS[pooling](hidden).tolist()


def in_base64(vector: list[float]) -> str:
    """float32 numbers, little-endian."""
    return base64.b64encode(torch.tensor(vector, dtype=torch.float32).numpy().astype("<f4").tobytes()).decode()


class Scores(TextEndpoint[ScoreRequest]):
    """POST /v1/score: log-probabilities of texts, or of each continuation after a context."""

    request_type = ScoreRequest

    async def respond(self, served: ServedModel, request: ScoreRequest, key: str) -> bytes:
        answer, firsts = await self.server.in_worker(partial(self._prepare, served, request, key))
        self.server.engine.submit(answer)
        try:
            await answer.ended()
        finally:
            self.server.engine.cancel(answer)
        count = sum(map(len, answer.prompts))
        usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}

        def render() -> bytes:
            pairs = zip(answer.choices, firsts, strict=True)
            rows = [score_row(choice.index, choice.continuation.sequence, first, served) for choice, first in pairs]
            return list_to_json(map(to_json, rows), {"model": served.name, "usage": usage})

        return await self.server.compute(render, BYTES_PER_TOKEN * count)

    def _prepare(self, served: ServedModel, request: ScoreRequest, key: str) -> tuple[Answer, list[int]]:
        """The texts as sequences that are read and not continued, and the first token of each that is scored."""
        if (request.text is None) == (request.continuations is None):
            raise ApiError(400, "give either text, or context and continuations", "text")
        if request.text is not None and request.context:
            raise ApiError(400, "context goes with continuations, not with text", "context")
        tokenizer = served.model.tokenizer
        if request.continuations is None:
            assert request.text is not None
            field, prompts = "text", [encode(served, text, "text") for text in as_list(request.text, "text")]
            firsts = [len(tokenizer.start_ids)] * len(prompts)
        else:
            context = encode(served, request.context, "context")
            field = "context" if len(context) > served.context_length else "continuations"
            with errors_of("continuations"):
                texts = map(tokenizer.encode, limited(request.continuations, "continuations"))
                prompts = [[*context, *text] for text in texts]
            firsts = [len(context)] * len(prompts)
        wanted = Wanted(prompts, 0, "max_tokens", prompt_logprobs=1, field=field)
        return make_answer(served, GenerationRequest(), wanted, key), firsts


def score_row(index: int, sequence, first: int, served: ServedModel) -> dict[str, Any]:
    """The scored tokens of a text; the first token of a text has no log-probability."""
    rows = sequence.prompt_logprobs[first:]
    known = [row for row in rows if row is not None]
    tokens = [
        {"id": token, "text": served.model.tokenizer.text_of(token), "logprob": None if row is None else row.logprob}
        for token, row in zip(sequence.prompt[first:], rows, strict=True)
    ]
    return {
        "object": "score",
        "index": index,
        "tokens": tokens,
        "logprob": sum(row.logprob for row in known),
        "is_greedy": all(row.top[0][0] == row.token for row in known),
    }


class Tokenize(TextEndpoint[TokenizeRequest]):
    """POST /tokenize: the ids of a text or of a conversation."""

    request_type = TokenizeRequest

    async def respond(self, served: ServedModel, request: TokenizeRequest, key: str) -> bytes:
        return await self.server.in_worker(partial(self._render, served, request))

    def _render(self, served: ServedModel, request: TokenizeRequest) -> bytes:
        ids = self._encode(served, request)
        body: dict[str, Any] = {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": served.context_length,
            "token_strs": None,
        }
        if request.return_token_strs:
            body["token_strs"] = [key_of(token, served.model.tokenizer) for token in ids]
        return to_json_in_parts(body)

    def _encode(self, served: ServedModel, request: TokenizeRequest) -> list[int]:
        if (request.prompt is None) == (request.messages is None):
            raise ApiError(400, "give either prompt or messages", "prompt")
        if request.messages is not None:
            return encode_chat(served, request.messages)
        assert request.prompt is not None
        tokenizer = served.model.tokenizer
        if request.add_special_tokens:
            return encode_text(tokenizer, request.prompt, add_special_tokens=True)
        # Clients find the ids of the start and the end by the texts of /tokenizer_info
        special = {tokenizer.piece(token): [token] for token in (*tokenizer.start_ids, *tokenizer.end_ids)}
        return special.get(request.prompt) or encode_text(tokenizer, request.prompt, add_special_tokens=False)


class Detokenize(TextEndpoint[DetokenizeRequest]):
    """POST /detokenize: the text of ids."""

    request_type = DetokenizeRequest

    async def respond(self, served: ServedModel, request: DetokenizeRequest, key: str) -> bytes:
        check_ids(served, request.tokens, "tokens")
        return await self.server.in_worker(lambda: to_json({"prompt": served.model.tokenizer.decode(request.tokens)}))
