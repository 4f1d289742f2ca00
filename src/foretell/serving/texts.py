"""Routes that do not generate text: embeddings, scores, tokens."""

from __future__ import annotations

import base64
from typing import Any

import torch

from foretell.evaluation.multiple_choice import scored_rows
from foretell.inference.query import embed_in_passes
from foretell.serving.choice import Answer
from foretell.serving.errors import ApiError, errors_of, refused
from foretell.serving.json_bodies import to_json, to_json_in_parts
from foretell.serving.models import ServedModel
from foretell.serving.preparation import (
    Wanted,
    as_list,
    check_characters,
    check_ids,
    checked_length,
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
    ScoreRequest,
    TokenizeRequest,
)
from foretell.serving.server import Endpoint
from foretell.serving.tokens import key_of

BYTES_PER_TOKEN = 80  # size of a score
TOKENS_AT_ONCE = 256  # tokens of texts to embed per pass, so that other requests can run in between


class Embeddings(Endpoint[EmbeddingRequest]):
    """POST /v1/embeddings: the stream after the last norm, averaged over the text or at its last token."""

    request_type = EmbeddingRequest

    async def respond(self, served: ServedModel, request: EmbeddingRequest, key: str) -> bytes:
        width = served.model.config.width
        if request.dimensions not in (None, width):
            raise ApiError(400, f"dimensions is the width of the model here, {width}", "dimensions")
        texts = await self.server.in_worker(self._encode, served, request)
        passes, rows = embed_in_passes(served.model, texts, request.pooling, TOKENS_AT_ONCE), dict[int, bytes]()
        async for vectors in self.server.engine.each(key, passes):
            for index, vector in vectors:
                shown = vector if request.encoding_format == "float" else in_base64(vector)
                rows[index] = to_json({"object": "embedding", "index": index, "embedding": shown})
        count = sum(map(len, texts))
        fields = to_json({"model": served.name, "usage": {"prompt_tokens": count, "total_tokens": count}})
        return b'{"object":"list","data":[' + b",".join(rows[index] for index in range(len(texts))) + b"]," + fields[1:]

    def _encode(self, served: ServedModel, request: EmbeddingRequest) -> list[list[int]]:
        inputs = as_list(request.input, "input", MOST_INPUTS)
        texts = [encode_own(served, text, "input", request.allow_special) for text in inputs]
        if too_long := next((ids for ids in texts if len(ids) > served.context_length), None):
            sizes = f"{len(too_long):,} tokens and the context of {served.name} is {served.context_length:,}"
            raise ApiError(400, f"a text has {sizes}; shorten it", "input", "context_length_exceeded")
        return texts


def encode_own(served: ServedModel, text: str | list[int], field: str, allow_special: bool) -> list[int]:
    """`encode` of a text; only a prompt may have no token besides the start token. Raises ApiError."""
    ids = encode(served, text, field, allow_special=allow_special)
    if not text or (isinstance(text, str) and tuple(ids) == served.model.tokenizer.start_ids):
        raise refused(field, "the text is empty; give at least one character")
    return ids


def in_base64(vector: list[float]) -> str:
    """float32 numbers, little-endian."""
    return base64.b64encode(torch.tensor(vector, dtype=torch.float32).numpy().astype("<f4").tobytes()).decode()


class Scores(Endpoint[ScoreRequest]):
    """POST /v1/score: log-probabilities of texts, or of continuations of a context."""

    request_type = ScoreRequest

    async def respond(self, served: ServedModel, request: ScoreRequest, key: str) -> bytes:
        answer, firsts = await self.server.in_worker(self._prepare, served, request, key)
        with self.server.engine.writing(answer):
            await answer.ended()

        def render() -> bytes:
            pairs = zip(answer.choices, firsts, strict=True)
            rows = [score_row(choice.index, choice.continuation.sequence, first, served) for choice, first in pairs]
            fields = {"model": served.name, "usage": answer.usage}
            return to_json_in_parts({"object": "list", "data": rows, **fields})

        return await self.server.compute(render, BYTES_PER_TOKEN * answer.usage["prompt_tokens"])

    def _prepare(self, served: ServedModel, request: ScoreRequest, key: str) -> tuple[Answer, list[int]]:
        """Sequences that read the texts without continuing them, and the first scored token of each."""
        if (request.text is None) == (request.continuations is None):
            raise ApiError(400, "give either text, or context and continuations", "text")
        if request.text is not None and request.context:
            raise ApiError(400, "context goes with continuations, not with text", "context")
        tokenizer, special = served.tokenizer_for(request.allow_special), request.allow_special
        if request.continuations is None:
            assert request.text is not None
            texts = as_list(request.text, "text")
            field, prompts = "text", [encode_own(served, text, "text", special) for text in texts]
            firsts = [len(tokenizer.start_ids)] * len(prompts)
        else:
            context = encode(
                served, request.context, "context", allow_special=special
            )  # first, so that its errors name it
            checked_length(served, context, Wanted([context], 0, "max_tokens", field="context"), 0)
            field = "continuations"
            texts = limited(request.continuations, "continuations")
            check_characters(served, max(texts, key=len), "continuations")
            with errors_of("continuations"):
                prompts, first = scored_rows(tokenizer, request.context, texts)
            firsts = [first] * len(prompts)
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


class Tokenize(Endpoint[TokenizeRequest]):
    """POST /tokenize: the ids of a text or of a conversation."""

    request_type = TokenizeRequest

    async def respond(self, served: ServedModel, request: TokenizeRequest, key: str) -> bytes:
        return await self.server.in_worker(self._render, served, request)

    def _render(self, served: ServedModel, request: TokenizeRequest) -> bytes:
        ids = self._encode(served, request)
        texts = [key_of(token, served.model.tokenizer) for token in ids] if request.return_token_strs else None
        body = {"tokens": ids, "count": len(ids), "max_model_len": served.context_length}
        return to_json_in_parts({**body, "token_strs": texts})

    def _encode(self, served: ServedModel, request: TokenizeRequest) -> list[int]:
        if (request.prompt is None) == (request.messages is None):
            raise ApiError(400, "give either prompt or messages", "prompt")
        if request.messages is not None and request.allow_special:
            raise ApiError(
                400, "the messages of a chat are always text; allow_special goes with prompt", "allow_special"
            )
        if request.messages is not None:
            return encode_chat(served, request.messages)
        assert request.prompt is not None
        tokenizer = served.tokenizer_for(request.allow_special)
        if request.add_special_tokens:
            return encode_text(tokenizer, request.prompt, add_special_tokens=True)
        # Clients find the ids of start and end tokens by their texts from /tokenizer_info
        special = {tokenizer.piece(token): [token] for token in (*tokenizer.start_ids, *tokenizer.end_ids)}
        return special.get(request.prompt) or encode_text(tokenizer, request.prompt, add_special_tokens=False)


class Detokenize(Endpoint[DetokenizeRequest]):
    """POST /detokenize: the text of ids."""

    request_type = DetokenizeRequest

    async def respond(self, served: ServedModel, request: DetokenizeRequest, key: str) -> bytes:
        check_ids(served, request.tokens, "tokens")
        return await self.server.in_worker(lambda: to_json({"prompt": served.model.tokenizer.decode(request.tokens)}))
