"""Tokens in OpenAI's formats: text or bytes, offsets, log-probabilities in three forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from foretell.generation.logprobs import TokenLogprob
from foretell.text import Tokenizer


@dataclass(frozen=True)
class ShownToken:
    """A token of an answer, with the offset of its text and, if requested, its log-probability."""

    id: int
    start: int
    logprob: TokenLogprob | None


def key_of(token: int, tokenizer: Tokenizer) -> str:
    """The text of a token, or its bytes if they are part of a character: bytes:\\xe2. Keys are unique."""
    content = tokenizer.bytes_of(token)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def chat_logprobs(tokens: Iterable[ShownToken], tokenizer: Tokenizer) -> dict[str, Any]:
    """`choices[].logprobs` of a chat."""
    content = [
        {
            **chat_token(token.id, token.logprob.logprob, tokenizer),
            "top_logprobs": [chat_token(id, value, tokenizer) for id, value in token.logprob.top],
        }
        for token in tokens
        if token.logprob is not None
    ]
    return {"content": content, "refusal": None}


def chat_token(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"token": key_of(token, tokenizer), "logprob": logprob, "bytes": list(tokenizer.bytes_of(token))}


def completion_logprobs(
    tokens: Iterable[tuple[int, int, TokenLogprob | None]], tokenizer: Tokenizer, top: int
) -> dict[str, Any]:
    """`choices[].logprobs` of a completion, from (token, number of code points before it, log-probability).

    The log-probability of a prompt's first token is null.
    """
    rows = list(tokens)
    return {
        "tokens": [key_of(token, tokenizer) for token, _, _ in rows],
        "token_logprobs": [None if row is None else row.logprob for _, _, row in rows],
        "top_logprobs": [top_dictionary(row, tokenizer, top) for _, _, row in rows] if top else None,
        "text_offset": [offset for _, offset, _ in rows],
    }


def top_dictionary(row: TokenLogprob | None, tokenizer: Tokenizer, top: int) -> dict[str, float] | None:
    """The most likely tokens and the chosen one, by text; of tokens with equal texts, the more likely one."""
    if row is None:
        return None
    pairs = {}
    for token, value in [*row.top[:top], (row.token, row.logprob)]:
        pairs.setdefault(key_of(token, tokenizer), value)
    return pairs


def prompt_logprobs(row: TokenLogprob, tokenizer: Tokenizer, top: int) -> dict[str, dict[str, Any]]:
    """The most likely tokens and the prompt's token, by id, in vLLM's format."""
    ranked = {token: (value, rank) for rank, (token, value) in enumerate(row.top[:top], start=1)}
    ranked |= {row.token: (row.logprob, row.rank)}
    return {
        str(token): {"logprob": value, "rank": rank, "decoded_token": key_of(token, tokenizer)}
        for token, (value, rank) in ranked.items()
    }


def offsets(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """The number of code points before each id of a text."""
    stream, starts, length = tokenizer.stream(), [], 0
    for token in ids:
        starts.append(length)
        length += len(stream.push(token))
    return starts
