"""Conversion of requests to sequences: prompts to ids, and options to rules. Runs in worker threads."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from foretell.errors import TokenizerError, UsageError
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import NoRoomError, Rules, Sequence
from foretell.inference.completion import make_sampling
from foretell.inference.continuation import Continuation
from foretell.serving.changes import Changes
from foretell.serving.choice import Answer, Choice
from foretell.serving.errors import ApiError, errors_of, refused
from foretell.serving.look import Watch, check_look
from foretell.serving.models import ExploredModel, ServedModel, task_path_of
from foretell.serving.requests import (
    MOST_CHOICES,
    MOST_PROMPTS,
    ChatMessage,
    GenerationRequest,
    PassRequest,
    Prompts,
)
from foretell.text import StopStrings, Tokenizer
from foretell.text.chat_template import ChatFormat, Message, Role
from foretell.text.streaming import PIECE_SIZE

CHARACTERS_PER_TOKEN = 256  # more than the longest tokens of known vocabularies have, 128 spaces
Item = TypeVar("Item")
ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Wanted:
    """The fields of a request that depend on the endpoint.

    max_tokens: None for all that fit the context. top_logprobs: None for no log-probabilities. field: the name of the
    field with the prompts. chat: the template of a conversation, whose stop texts and ids also end the answer.
    """

    prompts: list[list[int]]
    max_tokens: int | None
    max_tokens_field: str
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    field: str = "prompt"
    chat: ChatFormat | None = None


def make_answer(served: ServedModel, request: GenerationRequest, wanted: Wanted, key: str) -> Answer:
    """The answer to a request, to be submitted. key: the client's key; clients take turns and do not share a cache.

    Raises ApiError or ForetellError for an impossible request.
    """
    num_choices = len(wanted.prompts) * request.n
    if num_choices > MOST_CHOICES:
        size = f"{len(wanted.prompts)} prompts with n {request.n} are {num_choices} texts"
        raise ApiError(400, f"{size}; at most {MOST_CHOICES} are written at once", "n")
    tokenizer = served.model.tokenizer
    seed = secrets.randbelow(2**63) if request.seed is None else request.seed % 2**63
    options = request.sampling()
    check_ids(served, options["logit_bias"], "logit_bias")
    check_ids(served, request.stop_token_ids, "stop_token_ids")
    with errors_of(request.constraint_field):
        sampling = make_sampling({**options, "seed": seed}, tokenizer)
        sampler = Sampler(sampling, tokenizer.vocab_size, tokenizer.token_bytes)
    ends = () if request.ignore_eos else tokenizer.end_ids
    end_ids, stops = frozenset([*ends, *request.stop_token_ids]), request.stop_texts()
    if wanted.chat is not None:
        end_ids, stops = end_ids | wanted.chat.stop_ids, [*stops, *wanted.chat.stop_texts]
    check_look(request, served, num_choices)
    lengths = [len(prompt) + checked_length(served, prompt, wanted, request.min_tokens) for prompt in wanted.prompts]
    check_positions(request, max(lengths) - 1)  # the last token is not read
    changes, choices = Changes(served, request.change), list[Choice]()
    for prompt, length in zip(wanted.prompts, lengths, strict=True):
        shown = {"top_logprobs": wanted.top_logprobs, "prompt_logprobs": wanted.prompt_logprobs}
        rules = Rules(sampler, length - len(prompt), end_ids, **shown)
        for sample in range(request.n):
            sequence = Sequence(prompt, sample, rules=rules, key=key, cache_salt=request.cache_salt)
            continuation = Continuation(tokenizer, sequence, StopStrings(stops))
            watch = None
            if request.is_watched:
                watch = Watch(served, continuation, request, served.look_bytes // num_choices, changes)
            choices.append(Choice(len(choices), continuation, watch))
    return Answer(served, choices, wanted.prompts, seed)


def checked_length(served: ServedModel, prompt: list[int], wanted: Wanted, min_tokens: int) -> int:
    """The number of tokens to generate after a prompt. Raises ApiError if they do not fit the context."""
    error = NoRoomError(len(prompt), wanted.max_tokens, served.context_length)
    is_short = wanted.max_tokens is None or wanted.max_tokens <= error.room
    if error.room < 1 or not is_short:
        field = wanted.field if error.room < 1 else wanted.max_tokens_field
        raise ApiError(400, error.message(wanted.max_tokens_field, None), field, "context_length_exceeded")
    if wanted.max_tokens is None:
        return error.room
    if min_tokens > wanted.max_tokens:
        message = f"min_tokens is {min_tokens:,}, and {wanted.max_tokens_field} {wanted.max_tokens:,}"
        raise ApiError(400, f"{message}; lower the one or raise the other", "min_tokens")
    return wanted.max_tokens


def as_list(prompts: Prompts, field: str, most: int = MOST_PROMPTS) -> list[str | list[int]]:
    """The prompts of a request in any of the four forms. Raises the errors of `limited`."""
    if isinstance(prompts, str):
        return [prompts]
    ids = [item for item in prompts if isinstance(item, int)]
    return [ids] if ids else limited([item for item in prompts if not isinstance(item, int)], field, most)


def limited(items: list[Item], field: str, most: int = MOST_PROMPTS) -> list[Item]:
    """The prompts of a request. Raises ApiError for too many."""
    if len(items) > most:
        raise ApiError(400, f"{len(items):,} prompts in one request; at most {most:,} are read", field)
    return items


def encode(
    served: ServedModel,
    prompt: str | list[int],
    field: str,
    add_special_tokens: bool = True,
    allow_special: bool = False,
) -> list[int]:
    """The ids of a prompt. An empty text becomes the end token, if the vocabulary has one."""
    tokenizer = served.tokenizer_for(allow_special)
    if isinstance(prompt, str):
        check_characters(served, prompt, field)
        with errors_of(field), advice_of_task(served):
            ids = encode_text(tokenizer, prompt, add_special_tokens) or [*tokenizer.end_ids[:1]]
    else:
        ids = prompt
        check_ids(served, ids, field)
    if not ids:
        raise ApiError(400, "the prompt is empty; give at least one token", field)
    return ids


@contextmanager
def advice_of_task(served: ServedModel) -> Iterator[None]:
    """If a task model's vocabulary cannot encode a text, add the model's route to the error."""
    try:
        yield
    except TokenizerError as error:
        path = task_path_of(served.model)
        raise TokenizerError(f"{error}; {served.name} answers at {path}" if path else str(error)) from None


def pass_ids(served: ExploredModel, request: PassRequest) -> list[int]:
    """The ids of a pass. Raises ApiError for a text that is empty or longer than the context."""
    check_ids(served, request.appended, "appended")
    with errors_of("text"):
        ids = [*served.model.encode_fitting(request.text), *request.appended]
        served.model.decoder.check_length(len(ids))
    return ids  # changes may be at later positions: a text that is being edited can grow again


def check_characters(served: ServedModel, text: str, field: str) -> None:
    """Raise ApiError for a text that is far longer than the context; encoding it would delay others by seconds."""
    if len(text) > CHARACTERS_PER_TOKEN * served.context_length:
        sizes = f"the text has {len(text):,} characters and the model's context is {served.context_length:,} tokens"
        raise ApiError(400, f"{field}: {sizes}; shorten it", field, "context_length_exceeded")


def check_positions(request: GenerationRequest, length: int) -> None:
    """Raise ApiError for a position, to change or to look at, after the last token that is read."""
    for field, parts in ("change", request.change), ("look", [request.look] if request.look else []):
        last = max((position for part in parts for position in part.positions or ()), default=-1)
        if last >= length:
            raise refused(field, f"position {last} is outside the text; at most positions 0 to {length - 1} are read")


def check_ids(served: ExploredModel, ids: Iterable[int], field: str) -> None:
    """Raises ApiError for an id that is not in the vocabulary."""
    tokenizer = served.model.tokenizer
    if (wrong := next((token for token in ids if not tokenizer.has(token)), None)) is not None:
        which = f"{served.name}, which has ids below {tokenizer.vocab_size:,}"
        raise refused(field, f"{wrong} is not a token of {which}")


def encode_text(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """The ids of a text; long texts are encoded in pieces, so that other threads can run."""
    ids = tokenizer.encode(text) if len(text) <= PIECE_SIZE else tokenizer.encode_long(text).tolist()
    return tokenizer.with_start_ids(ids) if add_special_tokens else ids


def encode_chat(served: ServedModel, messages: list[ChatMessage], field: str = "messages") -> list[int]:
    """The ids of a conversation, up to the beginning of the next answer."""
    if served.chat is None:
        raise ApiError(400, f"{served.name} cannot write conversations; use /v1/completions", "model")
    with errors_of(field), advice_of_task(served):
        written = [Message(role_of(message), _message_text(message)) for message in messages]
        check_characters(served, "".join(message.content for message in written), field)
        return served.chat.encode_prompt(written)


def role_of(message: ChatMessage) -> Role:
    if message.role not in ROLES:
        raise UsageError(f"the role {message.role[:40]!r} is not supported; roles are {', '.join(ROLES)}")
    return ROLES[message.role]


def _message_text(message: ChatMessage) -> str:
    """The text of a message. Raises UsageError for images, audio and files, which are never fetched."""
    if isinstance(message.content, str):
        return message.content
    wrong = next((part.type for part in message.content if part.type not in ("text", "input_text", "output_text")), "")
    if wrong:
        raise UsageError(f"content of type {wrong[:40]!r} is not supported; this server reads text")
    texts = [part.text for part in message.content if part.text is not None]
    if len(texts) < len(message.content):
        raise UsageError("a part of the content has no text")
    return "".join(texts)
