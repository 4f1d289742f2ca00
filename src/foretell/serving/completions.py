"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from foretell.generation.logprobs import TokenLogprob
from foretell.serving.choice import Answer
from foretell.serving.errors import ApiError
from foretell.serving.generation import ChoicesEndpoint, Piece
from foretell.serving.models import ServedModel
from foretell.serving.preparation import Wanted, as_list, chat_of, encode, encode_chat, make_answer
from foretell.serving.requests import ChatRequest, CompletionRequest
from foretell.serving.tokens import chat_logprobs, completion_logprobs, key_of, offsets
from foretell.text import Tokenizer


class Completions(ChoicesEndpoint[CompletionRequest]):
    """Texts, or ids, continued."""

    request_type, prefix = CompletionRequest, "cmpl"
    names = ("text_completion", "text_completion")

    def prepare(self, served: ServedModel, request: CompletionRequest, key: str) -> Answer:
        if request.best_of not in (1, request.n):
            raise ApiError(400, "best_of is not supported; ask for n choices", "best_of", "unsupported_field")
        prompts = [
            encode(served, prompt, "prompt", request.add_special_tokens) for prompt in as_list(request.prompt, "prompt")
        ]
        shown = request.logprobs if request.echo else None
        wanted = Wanted(
            prompts,
            request.max_tokens,
            "max_tokens",
            top_logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if shown is None else shown,
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
        if piece.is_first and request.return_token_ids:
            row["prompt_token_ids"] = sequence.prompt
        if piece.is_first and request.prompt_logprobs is not None:
            row["prompt_logprobs"] = [
                None if each is None else prompt_logprobs(each, tokenizer) for each in sequence.prompt_logprobs
            ]
        return row


def prompt_logprobs(row: TokenLogprob, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """The likeliest tokens and the prompt's own, by id, as vLLM has them."""
    ranked = {token: (value, rank) for rank, (token, value) in enumerate(row.top, start=1)}
    ranked |= {row.token: (row.logprob, row.rank)}
    return {
        str(token): {"logprob": value, "rank": rank, "decoded_token": key_of(token, tokenizer)}
        for token, (value, rank) in ranked.items()
    }


class Chats(ChoicesEndpoint[ChatRequest]):
    """Conversations, continued by an answer."""

    request_type, prefix = ChatRequest, "chatcmpl"
    names = ("chat.completion", "chat.completion.chunk")

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
            field="messages",
        )
        return make_answer(served, request, wanted, key)

    def row(self, piece: Piece, answer: Answer, request: ChatRequest, is_chunk: bool) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text}
        later = {"content": piece.text} if piece.text else {}
        row: dict[str, Any] = {"index": piece.choice.index}
        row |= (
            {"delta": message if piece.is_first else later} if is_chunk else {"message": {**message, "refusal": None}}
        )
        row |= {"finish_reason": piece.finish_reason, "logprobs": None}
        if request.logprobs:
            row["logprobs"] = chat_logprobs(piece.tokens, answer.model.model.tokenizer)
        if request.return_token_ids:
            row["token_ids"] = [token.id for token in piece.tokens]
        return row
