"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from foretell.serving.choice import Answer, ShownToken
from foretell.serving.errors import ApiError
from foretell.serving.generation import GenerationEndpoint, Piece, rows_as_data, usage
from foretell.serving.models import ServedModel
from foretell.serving.preparation import Wanted, chat_of, encode_chat, make_answer
from foretell.serving.requests import ChatRequest
from foretell.serving.tokens import chat_logprobs


class Chats(GenerationEndpoint[ChatRequest]):
    """Conversations, continued by an answer."""

    request_type, prefix = ChatRequest, "chatcmpl"

    def prepare(self, served: ServedModel, request: ChatRequest, key: str) -> Answer:
        if request.top_logprobs and not request.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        form = chat_of(served)
        limit = request.max_completion_tokens or request.max_tokens
        wanted = Wanted(
            [encode_chat(served, request.messages)],
            limit,
            "max_completion_tokens" if request.max_completion_tokens else "max_tokens",
            top_logprobs=request.top_logprobs if request.logprobs else None,
            stop_texts=tuple(form.stop_texts),
            stop_ids=form.stop_ids,
        )
        return make_answer(served, request, wanted, key)

    def plain(self, answer: Answer, request: ChatRequest) -> dict[str, Any]:
        choices = []
        for choice in answer.choices:
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            row = {"index": choice.index, "message": message, "finish_reason": choice.finish_reason}
            choices.append({**row, **self._extras(choice.tokens, answer, request)})
        return {"object": "chat.completion", "choices": choices, "usage": usage(answer)}

    async def events(
        self, answer: Answer, request: ChatRequest, pieces: AsyncIterator[Piece], common: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        common["object"] = "chat.completion.chunk"
        to_data = rows_as_data(common)
        async for piece in pieces:
            delta = {"content": piece.text} if piece.text else {}
            if piece.is_first:
                delta = {"role": "assistant", "content": piece.text}
            row = {"index": piece.choice.index, "delta": delta, "finish_reason": piece.finish_reason}
            yield to_data({**row, **self._extras(piece.tokens, answer, request)})
        async for line in self.closing(answer, request, common):
            yield line

    def _extras(self, tokens: list[ShownToken], answer: Answer, request: ChatRequest) -> dict[str, Any]:
        extras: dict[str, Any] = {"logprobs": None}
        if request.logprobs:
            extras["logprobs"] = chat_logprobs(tokens, answer.model.model.tokenizer)
        if request.return_token_ids:
            extras["token_ids"] = [token.id for token in tokens]
        return extras
