"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import cached_property
from typing import Any

from foretell.serving.choice import Answer, Choice, ShownToken
from foretell.serving.errors import ApiError
from foretell.serving.generation import GenerationEndpoint, Piece, rows_as_data, usage
from foretell.serving.models import ServedModel
from foretell.serving.preparation import Wanted, as_list, encode, make_answer
from foretell.serving.requests import CompletionRequest
from foretell.serving.tokens import completion_logprobs, offsets

OBJECT = {"object": "text_completion"}


class Completions(GenerationEndpoint[CompletionRequest]):
    """Texts, or ids, continued."""

    request_type, prefix = CompletionRequest, "cmpl"

    def prepare(self, served: ServedModel, request: CompletionRequest, key: str) -> Answer:
        if request.best_of not in (1, request.n):
            raise ApiError(400, "best_of is not supported; ask for n choices", "best_of", "unsupported_field")
        prompts = [encode(served, prompt, request.add_special_tokens) for prompt in as_list(request.prompt)]
        shown = request.logprobs if request.echo else None
        wanted = Wanted(
            prompts,
            request.max_tokens,
            "max_tokens",
            top_logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if shown is None else shown,
        )
        return make_answer(served, request, wanted, key)

    def plain(self, answer: Answer, request: CompletionRequest) -> dict[str, Any]:
        choices = []
        for choice in answer.choices:
            echoed = Echo(choice, answer, request)
            choices.append(echoed.row(choice.text, choice.tokens, choice.finish_reason, is_first=True))
        return {**OBJECT, "choices": choices, "usage": usage(answer)}

    async def events(
        self, answer: Answer, request: CompletionRequest, pieces: AsyncIterator[Piece], common: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        common |= OBJECT
        to_data = rows_as_data(common)
        echoes = [Echo(choice, answer, request) for choice in answer.choices]
        async for piece in pieces:
            echo = echoes[piece.choice.index]
            row = echo.row(piece.text, piece.tokens, piece.finish_reason, is_first=piece.is_first)
            yield to_data(row)
        async for line in self.closing(answer, request, common):
            yield line


class Echo:
    """The rows of one choice, with its prompt where the request asks for it."""

    def __init__(self, choice: Choice, answer: Answer, request: CompletionRequest):
        self.choice, self.request = choice, request
        self.tokenizer = answer.model.model.tokenizer
        self.prompt = choice.continuation.sequence.prompt

    @cached_property
    def prompt_text(self) -> str:
        """The text of the prompt, as it was given."""
        stream = self.tokenizer.stream()
        return "".join([*map(stream.push, self.prompt), stream.finish()])

    def row(
        self, text: str, tokens: Iterable[ShownToken], finish_reason: str | None, *, is_first: bool
    ) -> dict[str, Any]:
        """An entry of `choices`."""
        echoes = self.request.echo and is_first
        row: dict[str, Any] = {
            "index": self.choice.index,
            "text": self.prompt_text + text if echoes else text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        tokens = list(tokens)
        if self.request.logprobs is not None:
            shown = [(token.id, len(self.prompt_text) + token.start, token.logprob) for token in tokens]
            rows = [*self._prompt_rows(), *shown] if echoes else shown
            row["logprobs"] = completion_logprobs(rows, self.tokenizer, self.request.logprobs)
        if self.request.return_token_ids:
            row["token_ids"] = [token.id for token in tokens]
        if is_first and self.request.return_token_ids:
            row["prompt_token_ids"] = self.prompt
        if is_first and self.request.prompt_logprobs is not None:
            row["prompt_logprobs"] = prompt_logprobs(self.choice)
        return row

    def _prompt_rows(self):
        return zip(
            self.prompt,
            offsets(self.prompt, self.tokenizer),
            self.choice.continuation.sequence.prompt_logprobs,
            strict=True,
        )


def prompt_logprobs(choice: Choice) -> list[dict[str, float] | None]:
    """The log-probabilities of the prompt's tokens, by id, as vLLM has them; null for the first."""
    return [
        None if row is None else {str(token): value for token, value in [*row.top, (row.token, row.logprob)]}
        for row in choice.continuation.sequence.prompt_logprobs
    ]
