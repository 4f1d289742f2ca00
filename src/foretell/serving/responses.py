"""POST /v1/responses: OpenAI's newer protocol, without stored state."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from foretell.serving.choice import Answer
from foretell.serving.errors import ApiError
from foretell.serving.generation import GenerationEndpoint, data, pieces
from foretell.serving.models import ServedModel
from foretell.serving.preparation import Wanted, encode_chat, make_answer
from foretell.serving.requests import INCLUDED_LOGPROBS, ChatMessage, ResponsesRequest
from foretell.serving.tokens import ShownToken, chat_logprobs


class Responses(GenerationEndpoint[ResponsesRequest]):
    """A conversation, continued by one message."""

    request_type, prefix = ResponsesRequest, "resp"

    def prepare(self, served: ServedModel, request: ResponsesRequest, key: str) -> Answer:
        if request.n != 1:
            raise ApiError(400, "a response is one message; use /v1/chat/completions for n", "n")
        asks = [ChatMessage(role="user", content=request.input)] if isinstance(request.input, str) else request.input
        told = [] if request.instructions is None else [ChatMessage(role="system", content=request.instructions)]
        wanted = Wanted(
            [encode_chat(served, [*told, *asks], "input")],
            request.max_output_tokens,
            "max_output_tokens",
            top_logprobs=request.top_logprobs if INCLUDED_LOGPROBS in request.include else None,
            field="input",
            chat=served.chat,
        )
        if shape := request.text.get("format"):
            request = request.model_copy(update={"response_format": shape})
        return make_answer(served, request, wanted, key)

    def plain(self, answer: Answer, request: ResponsesRequest) -> dict[str, Any]:
        body = Body(answer, request)
        return {**body.fields(body.status, [body.message()]), "usage": body.usage()}

    async def events(self, answer: Answer, request: ResponsesRequest) -> AsyncIterator[bytes]:
        body, common, numbers = Body(answer, request), self.common(answer), count()

        def event(kind: str, **fields: Any) -> bytes:
            return data({"type": kind, "sequence_number": next(numbers), **fields}, kind)

        part_address = {"item_id": body.message_id, "output_index": 0, "content_index": 0}
        item = {"output_index": 0}
        opening = {**common, **body.fields("in_progress", [])}
        yield event("response.created", response=opening)
        yield event("response.in_progress", response=opening)
        yield event("response.output_item.added", **item, item=body.message("in_progress", []))
        yield event("response.content_part.added", **part_address, part=body.part("", []))
        async for piece in pieces(answer):
            if piece.text or piece.tokens:
                logprobs = body.logprobs(piece.tokens)
                yield event("response.output_text.delta", **part_address, delta=piece.text, logprobs=logprobs)
        text, logprobs = body.choice.text, body.logprobs(body.choice.tokens)
        yield event("response.output_text.done", **part_address, text=text, logprobs=logprobs)
        yield event("response.content_part.done", **part_address, part=body.part(text, logprobs))
        yield event("response.output_item.done", **item, item=body.message())
        common["foretell"] |= await self.looks(answer)
        closing = {**common, **body.fields(body.status, [body.message()]), "usage": body.usage()}
        yield event(f"response.{body.status}", response=closing)


class Body:
    """The objects of a response."""

    def __init__(self, answer: Answer, request: ResponsesRequest):
        self.answer, self.choice, self.request = answer, answer.choices[0], request
        self.message_id = f"msg-{uuid.uuid4().hex}"

    @property
    def status(self) -> str:
        return "incomplete" if self.choice.finish_reason == "length" else "completed"

    def fields(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        is_cut = status == "incomplete"
        return {
            "object": "response",
            "created_at": self.answer.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": self.request.instructions,
            "metadata": {},
            "output": output,
            "parallel_tool_calls": False,
            "temperature": self.request.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": self.request.top_p,
            "max_output_tokens": self.request.max_output_tokens,
            "text": {**self.request.text, "format": self.request.text.get("format") or {"type": "text"}},
        }

    def message(self, status: str | None = None, content: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        if content is None:
            content = [self.part(self.choice.text, self.logprobs(self.choice.tokens))]
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "status": status or self.status,
            "content": content,
        }

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def logprobs(self, tokens: list[ShownToken]) -> list[dict[str, Any]]:
        return chat_logprobs(tokens, self.answer.model.model.tokenizer)["content"]

    def usage(self) -> dict[str, Any]:
        counts = self.answer.usage
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        }
