"""Routes that generate text as plain answers or streams: completions and chats."""

from __future__ import annotations

import asyncio
import uuid
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from foretell.serving.choice import Answer, Choice
from foretell.serving.connection import Stream
from foretell.serving.errors import ApiError, errors_of
from foretell.serving.json_bodies import to_json, to_json_in_parts
from foretell.serving.models import ServedModel
from foretell.serving.preparation import Wanted, as_list, encode, encode_chat, make_answer
from foretell.serving.requests import ChatRequest, CompletionRequest, GenerationRequest
from foretell.serving.server import Endpoint
from foretell.serving.tokens import ShownToken, chat_logprobs, completion_logprobs, offsets, prompt_logprobs

Asked = TypeVar("Asked", bound=GenerationRequest)
DONE = b"data: [DONE]\n\n"
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
BYTES_PER_TOKEN = 160  # approximate size of an answer with log-probabilities


@dataclass(frozen=True)
class Piece:
    """The new part of a choice since the last piece."""

    choice: Choice
    text: str
    tokens: list[ShownToken]
    finish_reason: str | None
    is_first: bool


class GenerationEndpoint(Endpoint[Asked]):
    """A route that generates text. Subclasses define the formats of its answers."""

    prefix: ClassVar[str]  # prefix of the ids of answers

    @abstractmethod
    def prepare(self, served: ServedModel, request: Asked, key: str) -> Answer:
        """The sequences of a request; runs in a worker thread."""

    @abstractmethod
    def plain(self, answer: Answer, request: Asked) -> dict[str, Any]:
        """The whole answer, without `common` fields."""

    @abstractmethod
    def events(self, answer: Answer, request: Asked) -> AsyncIterator[bytes]:
        """The lines of a stream."""

    async def respond(self, served: ServedModel, request: Asked, key: str) -> bytes | Stream:
        answer = await self.server.in_worker(self.prepare, served, request, key)
        if request.stream:
            return Stream(self._stream(answer, request), EVENTS, lambda error: data(error) + DONE)
        with self.server.engine.writing(answer):
            await answer.ended()
            common, looks = self.common(answer), await self.looks(answer)
        common["foretell"] |= looks

        def render() -> bytes:
            return to_json_in_parts({**common, **self.plain(answer, request)})

        size = BYTES_PER_TOKEN * answer.usage["total_tokens"]
        return await (self.server.in_worker(render) if looks else self.server.compute(render, size))

    async def _stream(self, answer: Answer, request: Asked) -> AsyncGenerator[bytes, None]:
        with self.server.engine.writing(answer):
            async for line in self.events(answer, request):
                yield line

    async def looks(self, answer: Answer) -> dict[str, Any]:
        """`foretell.look`: the values of each choice; empty if no look was requested."""
        watches = [choice.watch for choice in answer.choices if choice.watch is not None and choice.watch.request.look]
        with errors_of("look"):
            return (
                {"look": [await watch.result(partial(self.server.engine.call, answer.key)) for watch in watches]}
                if watches
                else {}
            )

    def common(self, answer: Answer) -> dict[str, Any]:
        """The fields of all objects of an answer."""
        return {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": answer.created,
            "model": answer.model.name,
            "system_fingerprint": answer.model.fingerprint,
            "foretell": {"seed": answer.seed},
        }


async def pieces(answer: Answer) -> AsyncIterator[Piece]:
    """Yield the growth of all choices until all have ended; at least one piece for each. Raises the first error."""
    read = dict.fromkeys(answer.choices, (0, 0))  # characters and tokens read so far, for choices that have not ended
    while read:
        await answer.wait()
        answer.check()
        for choice, (characters, tokens) in list(read.items()):
            reason = choice.finish_reason  # read before the text, because it is set last
            text, new = choice.text[characters:], choice.tokens[tokens:]
            if text or new or reason is not None:
                yield Piece(choice, text, new, reason, is_first=not (characters or tokens))
                if len(answer.choices) > 1:  # asyncio logs each of many writes before it notes that a client has left
                    await asyncio.sleep(0)
            read[choice] = characters + len(text), tokens + len(new)
            if reason is not None:
                del read[choice]


def data(value: Any, event: str | None = None) -> bytes:
    """A value as a server-sent event."""
    line = b"data: " + to_json(value) + b"\n\n"
    return line if event is None else f"event: {event}\n".encode() + line


class ChoicesEndpoint(GenerationEndpoint[Asked]):
    """A route whose answers have `choices`; a chunk of a stream has a piece of one choice."""

    names: ClassVar[tuple[str, str]]  # the `object` of an answer and of a chunk

    @abstractmethod
    def row(self, piece: Piece, answer: Answer, request: Asked, is_chunk: bool) -> dict[str, Any]:
        """An entry of `choices`."""

    def plain(self, answer: Answer, request: Asked) -> dict[str, Any]:
        whole = [Piece(each, each.text, each.tokens, each.finish_reason, is_first=True) for each in answer.choices]
        choices = [self.row(piece, answer, request, is_chunk=False) for piece in whole]
        return {"object": self.names[0], "choices": choices, "usage": answer.usage}

    async def events(self, answer: Answer, request: Asked) -> AsyncIterator[bytes]:
        common = self.common(answer)
        common["object"] = self.names[1]
        to_data = rows_as_data(common)
        async for piece in pieces(answer):
            yield to_data(self.row(piece, answer, request, is_chunk=True))
        if looks := await self.looks(answer):
            chunk = {**common, "choices": [], "foretell": {**common["foretell"], **looks}}
            yield await self.server.in_worker(data, chunk)
        if request.stream_options.include_usage:
            yield data({**common, "choices": [], "usage": answer.usage})
        yield DONE


def rows_as_data(common: dict[str, Any]) -> Callable[[dict[str, Any]], bytes]:
    """A function that writes chunks with one entry of `choices`; the other fields are serialised once."""
    head = data(common).removesuffix(b"}\n\n") + b',"choices":['
    return lambda row: head + to_json(row) + b"]}\n\n"


class Completions(ChoicesEndpoint[CompletionRequest]):
    """POST /v1/completions: continue texts or ids."""

    request_type, prefix = CompletionRequest, "cmpl"
    names = ("text_completion", "text_completion")

    def prepare(self, served: ServedModel, request: CompletionRequest, key: str) -> Answer:
        if request.best_of not in (1, request.n):
            raise ApiError(400, "best_of is not supported; ask for n choices", "best_of", "unsupported_field")
        given = as_list(request.prompt, "prompt")
        prompts = [
            encode(served, prompt, "prompt", request.add_special_tokens, request.allow_special) for prompt in given
        ]
        counts = (request.prompt_logprobs, request.logprobs if request.echo else None)
        wanted = Wanted(
            prompts,
            request.max_tokens,
            "max_tokens",
            top_logprobs=request.logprobs,
            prompt_logprobs=max((count for count in counts if count is not None), default=None),
        )
        return make_answer(served, request, wanted, key)

    def row(self, piece: Piece, answer: Answer, request: CompletionRequest, is_chunk: bool) -> dict[str, Any]:
        choice, tokenizer = piece.choice, answer.model.model.tokenizer
        sequence, echoes = choice.continuation.sequence, request.echo and piece.is_first
        row: dict[str, Any] = {
            "index": choice.index,
            "text": choice.prompt_text + piece.text if echoes else piece.text,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
        }
        if request.logprobs is not None:
            rows = [(token.id, len(choice.prompt_text) + token.start, token.logprob) for token in piece.tokens]
            if echoes:
                starts = offsets(sequence.prompt, tokenizer)
                rows = [*zip(sequence.prompt, starts, sequence.prompt_logprobs, strict=True), *rows]
            row["logprobs"] = completion_logprobs(rows, tokenizer, request.logprobs)
        if request.return_token_ids:
            row["token_ids"] = [token.id for token in piece.tokens]
            row |= {"prompt_token_ids": sequence.prompt} if piece.is_first else {}
        if piece.is_first and request.prompt_logprobs is not None:
            row["prompt_logprobs"] = [
                None if each is None else prompt_logprobs(each, tokenizer, request.prompt_logprobs)
                for each in sequence.prompt_logprobs
            ]
        return row


class Chats(ChoicesEndpoint[ChatRequest]):
    """POST /v1/chat/completions: answer conversations."""

    request_type, prefix = ChatRequest, "chatcmpl"
    names = ("chat.completion", "chat.completion.chunk")

    def prepare(self, served: ServedModel, request: ChatRequest, key: str) -> Answer:
        if request.top_logprobs and not request.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        limit = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
        wanted = Wanted(
            [encode_chat(served, request.messages)],
            getattr(request, limit),
            limit,
            top_logprobs=request.top_logprobs if request.logprobs else None,
            field="messages",
            chat=served.chat,
        )
        return make_answer(served, request, wanted, key)

    def row(self, piece: Piece, answer: Answer, request: ChatRequest, is_chunk: bool) -> dict[str, Any]:
        message = {"role": "assistant"} if piece.is_first else {}
        if piece.text or piece.is_first:
            message["content"] = piece.text
        row: dict[str, Any] = {"index": piece.choice.index}
        row |= {"delta": message} if is_chunk else {"message": {**message, "refusal": None}}
        row |= {"finish_reason": piece.finish_reason, "logprobs": None}
        if request.logprobs:
            row["logprobs"] = chat_logprobs(piece.tokens, answer.model.model.tokenizer)
        if request.return_token_ids:
            row["token_ids"] = [token.id for token in piece.tokens]
        return row
