"""Requests as data: fields with their limits, and fields that are refused or ignored.

Names are OpenAI's or else vLLM's. Limits are checked before anything is allocated.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, BeforeValidator, Field, ModelWrapValidatorHandler, model_validator

from foretell.serving.errors import ApiError
from foretell.serving.json_bodies import parse_json

MOST_PROMPTS, MOST_INPUTS, MOST_CHOICES = 128, 2048, 256
MOST_SCHEMA_BYTES = 16 * 1024

Id = Annotated[int, Ge(0), Le(2**31)]
FIRST_ERROR = Field(fail_fast=True)  # an error for each of a million wrong items would take seconds and a gigabyte
Ids = Annotated[list[Id], MaxLen(2**20), FIRST_ERROR]
Texts = Annotated[list[str], MinLen(1), MaxLen(MOST_INPUTS), FIRST_ERROR]
Prompts = str | Texts | Annotated[Ids, MinLen(1)] | Annotated[list[Ids], MinLen(1), MaxLen(MOST_INPUTS), FIRST_ERROR]
Text = Annotated[str, MinLen(1), MaxLen(65_536)]
Name = Annotated[str, MinLen(1), MaxLen(256)]
StopText = Annotated[str, MaxLen(256)]
Indices = Annotated[list[Annotated[int, Ge(0), Le(2**31)]], MinLen(1), MaxLen(4096)]
Vector = Annotated[list[float], MinLen(1), MaxLen(65_536)]
Length = Annotated[int, Ge(1), Le(2**31)]
TopTokens = Annotated[int, Ge(0), Le(20)]
Penalty = Annotated[float, Ge(-2), Le(2)]
CONSTRAINTS = ("regex", "json_schema", "structured_outputs", "response_format")
ANY_OBJECT = {"type": "object"}  # a JSON schema
SAMPLING = {  # fields that are options of `make_sampling` without a change
    *("temperature", "top_p", "min_p", "min_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
}
INCLUDED_LOGPROBS = "message.output_text.logprobs"  # the only value of `include` that has an effect

# Fields for unsupported features, with the values that request nothing
REFUSED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "background": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "conversation": (),
    "echo": (False,),  # of a chat
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    **dict.fromkeys(("guided_choice", "guided_grammar", "guided_json", "guided_regex"), ()),  # old names of vLLM
    "kv_transfer_params": (),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "prediction": (),
    "previous_response_id": (),
    "priority": (0,),
    "prompt": (),  # a stored prompt for a chat
    "prompt_embeds": (),
    "skip_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncation": ("disabled",),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
IGNORED = frozenset(  # accepted without an effect
    (
        *("max_tool_calls", "metadata", "moderation", "parallel_tool_calls", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "reasoning", "reasoning_effort", "safety_identifier"),
        *("service_tier", "user", "verbosity"),
    )
)


def without_nulls(values: Any) -> Any:
    """An object without its null fields."""
    return {name: value for name, value in values.items() if value is not None} if isinstance(values, dict) else values


WithoutNulls = BeforeValidator(without_nulls)


class Part(BaseModel, strict=True, allow_inf_nan=False):
    """A request, or an object in it. Null fields count as missing."""

    @model_validator(mode="wrap")
    @classmethod
    def has_no_nulls(cls, values: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        return validate(without_nulls(values))  # before the validators of all subclasses


class KnownFields(Part):
    """A part of a request that refuses unknown fields, because a misspelled one would look like a missing value."""

    @model_validator(mode="before")
    @classmethod
    def has_known_fields(cls, values: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [name for name in values if name not in known] if isinstance(values, dict) else []
        if unknown:
            raise ValueError(f"{unknown[0][:80]!r} is not known here; the fields are {', '.join(known)}")
        return values


class Look(KnownFields):
    """`look`: the values to return with an answer.

    values: globs of names as in `foretell info --names`. tokens: prompt, answer or all tokens. positions:
    only these, counted from 0. lens: the number of tokens predicted from the stream after every block. contributions:
    by every head and layer to the logit of the first new token.
    """

    values: Annotated[list[Name], MaxLen(64)] = []
    tokens: Literal["prompt", "new", "all"] = "all"
    positions: Indices | None = None
    lens: TopTokens = 0
    contributions: bool = False
    format: Literal["json", "safetensors"] = "json"


class ChangeRequest(KnownFields):
    """An entry of `change`: one operation on the values that a glob matches.

    scale: multiply (0 switches a part off). add: add a number or a vector. set: replace by a number or a vector. patch:
    replace by the value in a pass over this text. heads, neurons, positions: limit the change to these.
    """

    value: Name
    scale: float | None = None
    add: float | Vector | None = None
    set: float | Vector | None = None
    patch: Text | None = None
    heads: Indices | None = None
    neurons: Indices | None = None
    positions: Indices | None = None

    @model_validator(mode="after")
    def has_one_operation(self) -> Self:
        if sum(operand is not None for operand in (self.scale, self.add, self.set, self.patch)) != 1:
            raise ValueError("give one of scale, add, set and patch")
        return self


ChangeRequests = Annotated[list[ChangeRequest], MaxLen(64)]


class Request(Part, extra="allow"):
    """A request."""

    model: Annotated[str, MaxLen(1024)] = ""

    def plain_texts(self) -> list[str]:
        """The texts in which names of special tokens are to be noted, because they are read as ordinary text."""
        return []

    def unknown_fields(self) -> list[str]:
        """The unknown fields. Raises ApiError for a field that requests an unsupported feature."""
        extra = self.model_extra or {}
        for name, value in extra.items():
            if name in REFUSED and value not in REFUSED[name]:
                raise ApiError(400, f"{name} is not supported by this server; leave it out", name, "unsupported_field")
        return [name for name in extra if name not in IGNORED and name not in REFUSED]


class PassRequest(Request):
    """One pass over a text: the tokens of the text, `appended` ones after it, and changes of values.

    source: the source sentence for a translation model; then the text is its translation. others: the second text of a
    pair, or the answers to a question. answer: the index of the answer whose pass is shown.
    """

    text: Text
    source: Annotated[str, MaxLen(65_536)] = ""
    others: Annotated[list[Annotated[str, MaxLen(65_536)]], MaxLen(32)] = []
    answer: Annotated[int, Ge(0), Lt(32)] = 0
    appended: Annotated[list[Id], MaxLen(4096)] = []
    change: ChangeRequests = []

    def plain_texts(self) -> list[str]:
        return [self.text, *self.others]


class TextsRequest(Request):
    """A request with texts, whose names of special tokens are read as these tokens only with `allow_special`."""

    allow_special: bool = False

    @abstractmethod
    def prompts(self) -> Prompts:
        """The texts, or ids."""

    def plain_texts(self) -> list[str]:
        prompts = self.prompts()
        texts = [prompts] if isinstance(prompts, str) else prompts
        has_texts = not self.allow_special and bool(texts) and isinstance(texts[0], str)
        return [text for text in texts if isinstance(text, str)] if has_texts else []


class StreamOptions(Part):
    include_usage: bool = False


class Structure(KnownFields):
    """`structured_outputs`: the format of the answer, with vLLM's names; json_schema is an alias of json."""

    schema_in_json: dict[str, Any] | str | None = Field(None, alias="json")  # BaseModel has a method json
    json_object: bool | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: Annotated[str, MinLen(1), MaxLen(MOST_SCHEMA_BYTES)] | None = None
    choice: Annotated[list[str], MinLen(1), MaxLen(1000)] | None = None


class GenerationRequest(Request):
    """The common fields of completions, chats and responses, with OpenAI's defaults."""

    format_field: ClassVar[str] = "response_format"  # its name in errors
    temperature: Annotated[float, Ge(0), Le(2)] = 1.0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    top_k: Annotated[int, Ge(-1), Le(2**31)] = 0  # -1 and 0: all tokens
    min_p: Annotated[float, Ge(0), Le(1)] = 0.0
    n: Annotated[int, Ge(1), Le(16)] = 1
    stop: StopText | Annotated[list[StopText], MaxLen(64)] = []
    stop_token_ids: Annotated[Ids, MaxLen(128)] = []
    seed: Annotated[int, Ge(-(2**63)), Le(2**63 - 1)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Ge(-100), Le(100)]], MaxLen(300), WithoutNulls] = {}
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Ge(0.01), Le(100)] = 1.0
    min_tokens: Annotated[int, Ge(0), Le(2**31)] = 0
    bad_words: Annotated[list[Annotated[str, MinLen(1), MaxLen(256)]], MaxLen(300)] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    response_format: dict[str, Any] | None = None
    structured_outputs: Structure = Structure()
    json_schema: dict[str, Any] | None = None
    regex: Annotated[str, MinLen(1), MaxLen(MOST_SCHEMA_BYTES)] | None = None
    cache_salt: Annotated[str, MaxLen(256)] = ""
    add_special_tokens: bool = True
    return_token_ids: bool = False
    look: Look | None = None
    change: ChangeRequests = []

    @property
    def is_watched(self) -> bool:
        return self.look is not None or bool(self.change)

    @property
    def constraint_field(self) -> str | None:
        """The field with a schema or a pattern; None if there is none."""
        name = next((name for name in CONSTRAINTS if name in self.model_fields_set), None)
        return self.format_field if name == "response_format" else name

    def stop_texts(self) -> list[str]:
        texts = [self.stop] if isinstance(self.stop, str) else self.stop
        return [text for text in texts if text]

    def sampling(self) -> dict[str, Any]:
        """The options of `make_sampling`, without the seed. Raises ApiError for a bias of an unknown token."""
        wrong = next(
            (name for name in self.logit_bias if not (name.isascii() and name.isdecimal()) or len(name) > 9), None
        )
        if wrong is not None:
            raise ApiError(400, f"logit_bias maps token ids to numbers, and {wrong[:20]!r} is not an id", "logit_bias")
        return {
            **self.model_dump(include=SAMPLING),
            "top_k": self.top_k if self.top_k > 0 else None,
            "logit_bias": {int(name): bias for name, bias in self.logit_bias.items()},
            "ban": self.bad_words,
            **self.constraint(),
        }

    def constraint(self) -> dict[str, Any]:
        """The regex or JSON schema that the answer must match, from any of the fields for it."""
        structure = self.structured_outputs
        shape = schema_of(self.response_format, self.format_field)
        schemas = [self.json_schema, structure.json_schema, structure.schema_in_json, shape]
        schemas += [ANY_OBJECT] if structure.json_object else []
        patterns = [self.regex, structure.regex, None if structure.choice is None else any_of(structure.choice)]
        field = self.constraint_field or self.format_field
        constraints = [{"json_schema": checked_schema(schema, field)} for schema in schemas if schema is not None]
        constraints += [{"regex": pattern} for pattern in patterns if pattern is not None]
        if len(constraints) > 1:
            raise ApiError(400, "the request has several schemas or patterns; give one", field)
        return constraints[0] if constraints else {}


class CompletionRequest(GenerationRequest, TextsRequest):
    """POST /v1/completions."""

    prompt: Prompts
    max_tokens: Annotated[int, Ge(0), Le(2**31)] = 16
    logprobs: TopTokens | None = None
    prompt_logprobs: TopTokens | None = None
    echo: bool = False
    best_of: int = 1

    def prompts(self) -> Prompts:
        return self.prompt


class ContentPart(Part):
    type: str
    text: str | None = None


class ChatMessage(Part):
    """A message; a list of text parts is one text."""

    role: str
    content: str | list[ContentPart]

    @model_validator(mode="before")
    @classmethod
    def is_message(cls, values: Any) -> Any:
        given = values if isinstance(values, dict) else {}
        if given.get("tool_calls") or given.get("function_call"):
            raise ValueError("tools are not supported by this server; send messages without tool_calls")
        if given.get("type") not in (None, "message"):
            raise ValueError(f"items of type {str(given['type'])[:40]!r} are not supported; this server reads messages")
        return values


Messages = Annotated[list[ChatMessage], MinLen(1), MaxLen(2048)]


def texts_of(messages: list[ChatMessage]) -> list[str]:
    contents = [message.content for message in messages]
    return [each if isinstance(each, str) else "".join(part.text or "" for part in each) for each in contents]


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    logprobs: bool = False
    top_logprobs: TopTokens = 0

    def plain_texts(self) -> list[str]:
        return texts_of(self.messages)


class ResponsesRequest(GenerationRequest):
    """POST /v1/responses, without features that need stored state."""

    format_field = "text.format"
    input: str | Messages
    instructions: str | None = None
    max_output_tokens: Length | None = None
    top_logprobs: TopTokens = 0
    include: Annotated[list[str], MaxLen(16)] = []
    text: Annotated[dict[str, Any], WithoutNulls] = {}

    def plain_texts(self) -> list[str]:
        asks = [self.input] if isinstance(self.input, str) else texts_of(self.input)
        return [self.instructions or "", *asks]

    def unknown_fields(self) -> list[str]:
        unknown = super().unknown_fields()
        unknown += [] if {*self.text} <= {"format", "verbosity"} else ["text"]
        return unknown if {*self.include} <= {INCLUDED_LOGPROBS} else [*unknown, "include"]


class EmbeddingRequest(TextsRequest):
    """POST /v1/embeddings."""

    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    pooling: Literal["last", "mean"] = "mean"

    def prompts(self) -> Prompts:
        return self.input


class ScoreRequest(TextsRequest):
    """POST /v1/score: the log-probabilities of texts, or of continuations of a context."""

    text: str | Texts | None = None
    context: str = ""
    continuations: Texts | None = None

    def prompts(self) -> Prompts:
        texts = [self.text] if isinstance(self.text, str) else self.text
        return [self.context, *(texts or []), *(self.continuations or [])]


class TokenizeRequest(TextsRequest):
    """POST /tokenize: a text, or messages through the chat template."""

    prompt: Annotated[str, MaxLen(2**20)] | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    def prompts(self) -> Prompts:
        return self.prompt or texts_of(self.messages or [])


class DetokenizeRequest(Request):
    """POST /detokenize."""

    tokens: Ids


def schema_of(response_format: Any, field: str) -> Any:
    """The JSON schema of a `response_format`; None for plain text. llama.cpp's json_object may have a schema."""
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if response_format is None or kind == "text":
        return None
    if kind == "json_object":
        return response_format.get("schema") or ANY_OBJECT
    if kind != "json_schema":
        raise ApiError(400, f"{field}.type must be text, json_object or json_schema", field)
    inner = response_format.get("json_schema", response_format)  # in the Responses API, the schema is one level up
    schema = inner.get("schema") if isinstance(inner, dict) else inner
    if schema is None:
        raise ApiError(400, f"{field}: the type json_schema needs a schema", field)
    return schema


def checked_schema(schema: Any, field: str) -> dict[str, Any]:
    """A schema in a field, checked against the limits."""
    if isinstance(schema, str):
        try:
            schema = parse_json(schema.encode("utf-8", "surrogatepass"))
        except ApiError as error:
            raise ApiError(400, error.message.replace("the body", "the schema"), field) from None
    if not isinstance(schema, dict):
        raise ApiError(400, "a JSON schema is an object", field)
    if (size := len(json.dumps(schema))) > MOST_SCHEMA_BYTES:
        raise ApiError(400, f"the schema has {size:,} bytes; at most {MOST_SCHEMA_BYTES:,} are read", field)
    return schema


def any_of(texts: list[str]) -> str:
    """A pattern that matches any of these texts."""
    return "|".join("".join(f"\\x{{{ord(c):x}}}" if not c.isalnum() else c for c in text) for text in texts)
