"""Constrained decoding: allow only tokens after which the text can still match a regular expression or JSON schema.

The matching is done by llguidance (the extra `constrain`), over the bytes that each token writes.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from foretell.config.sampling import SamplingConfig
from foretell.errors import UsageError
from foretell.generation.filters import Prefix, Prefixes

# llguidance has no time limit, and a{100000} takes 0.3 s per token, because each step follows the whole repetition
MAX_CHARACTERS = 20_000  # characters of a regular expression with its repetitions expanded
MAX_SCHEMA = 2**16  # characters of a schema
REPETITION = re.compile(r"\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}")  # llguidance refuses larger numbers
STATES_KEPT = 256  # states of texts; a missing state is computed from the beginning of its text
JSON_FORM: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}  # as json.dumps writes
TokenBytes = tuple[bytes, ...]  # the bytes of each id; empty for special tokens


@dataclass
class State:
    """The state of the constraint after a text: the tokens that can follow, as bits, and whether the text may end.

    matcher: None if the text does not match.
    """

    matcher: Any
    bits: np.ndarray
    size: int
    may_end: bool

    @property
    def allowed(self) -> Tensor:
        """True for the tokens (V,) that can follow."""
        return torch.from_numpy(np.unpackbits(self.bits, count=self.size).astype(np.bool_))


class Constraint:
    """A regular expression or JSON schema that the text must match, with the state of each continuation."""

    def __init__(self, config: SamplingConfig, token_bytes: TokenBytes):
        """Raises UsageError for a pattern or schema that is invalid or matches no text of these tokens."""
        self.name = "regex" if config.regex is not None else "json_schema"
        self.shown = shown_constraint(config)
        self.grammar = make_grammar(config)
        self.size, self.vocabulary = len(token_bytes), vocabulary_of(token_bytes)
        self._states: OrderedDict[tuple[int, ...], State] = OrderedDict()
        self._check()

    def state(self, generated: Sequence[int]) -> State:
        """The state after these ids. After ids that do not match (wrong guesses), any token can follow."""
        key = tuple(generated)
        if key not in self._states:
            self._states[key] = self._advance(key)
        self._states.move_to_end(key)
        if len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)
        return self._states[key]

    def is_complete(self, generated: Sequence[int]) -> bool:
        """True if the text matches and nothing can follow."""
        state = self.state(generated)
        return state.may_end and not state.bits.any()

    def mask(self, prefix: Prefix) -> Tensor:
        """True for the tokens (V,) that can follow, including the end tokens if the text may end."""
        state = self.state(prefix.generated)
        mask = state.allowed
        if state.may_end:
            mask[list(prefix.end_ids)] = True
        return mask

    def exclude(self, logits: Tensor, prefixes: Prefixes) -> Tensor:
        """A filter that excludes tokens after which the generated text cannot match."""
        allowed = torch.stack([self.mask(prefix) for prefix in prefixes])
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def _advance(self, key: tuple[int, ...]) -> State:
        """The state after these ids, computed from the state before the last id if it is in memory."""
        before = self._states.get(key[:-1]) if key else None
        if before is None:
            matcher, new = import_llguidance().LLMatcher(self.vocabulary, self.grammar, log_level=0), list(key)
        elif before.matcher is None:
            return State(None, before.bits, self.size, True)
        else:
            matcher, new = before.matcher.deep_copy(), [key[-1]]
        num_consumed = matcher.try_consume_tokens(new)
        self._check_matcher(matcher)
        if num_consumed < len(new):
            if before is not None and bool(before.allowed[new[-1]]):
                raise UsageError(f"{self.shown}: llguidance refused the token {new[-1]}, which its mask had allowed")
            return State(None, np.packbits(np.ones(self.size, np.bool_)), self.size, True)
        may_end = matcher.is_accepting()
        allowed = np.frombuffer(matcher.compute_logit_bias(), np.uint8)[: self.size] > 0
        self._check_matcher(matcher)
        return State(matcher, np.packbits(allowed), self.size, may_end)

    def _check_matcher(self, matcher: Any) -> None:
        """Raises UsageError for a matcher in an error state, such as after a limit; it accepts no more tokens."""
        error = matcher.get_error()
        if error and not error.startswith("NoExtensionBias"):  # NoExtensionBias: no token can follow, as the mask shows
            raise UsageError(f"{self.shown} cannot be used: {first_reason(error)}")

    def _check(self) -> None:
        start = self.state(())
        if not bool(start.allowed.any()):
            why = "matches only the empty text" if start.may_end else "has no match that this vocabulary can write"
            raise UsageError(f"{self.shown} {why}")
        self.state((int(start.allowed.nonzero()[0]),))  # one step reaches most limits before any text is generated


def excerpt(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_size(config: SamplingConfig) -> None:
    """Raises UsageError for a regular expression or schema that would take too long per token."""
    try:
        size = len(json.dumps(config.json_schema)) if config.json_schema else 0
    except RecursionError:
        raise UsageError("the JSON schema is nested too deeply") from None
    if size > MAX_SCHEMA:
        raise UsageError(f"the JSON schema has {size:,} characters; at most {MAX_SCHEMA:,} are supported")
    for pattern in [config.regex] if config.regex else iter_patterns(config.json_schema):
        if (size := written_out(pattern)) > MAX_CHARACTERS:
            raise UsageError(
                f"regex '{excerpt(pattern)}' has {size:,} characters with its repetitions expanded; "
                f"at most {MAX_CHARACTERS:,} are supported"
            )


def iter_patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield from (value,) if key == "pattern" and isinstance(value, str) else iter_patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from iter_patterns(value)


def written_out(pattern: str) -> int:
    """An upper bound of the characters of a regular expression with its counted repetitions expanded."""
    groups, last, position = [0], 0, 0  # characters of each open group, and of the part that a repetition repeats
    while position < len(pattern):
        repetition = REPETITION.match(pattern, position)
        character = pattern[position]
        if repetition is not None:
            count = max(int(number) for number in repetition.groups() if number)
            groups[-1] += last * (count - 1)
            last *= max(1, count)  # a{9}{9} is a repeated repetition
            position = repetition.end()
            continue
        if character == "(":
            groups.append(0)
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            last = 1
            groups[-1] += 1
        position += 2 if character == "\\" else 1
    return sum(groups)


def first_reason(error: str) -> str:
    """One line of the library's message: the text after `error:`, or the first line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    reasons = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return [*reasons, *lines][0]


def shown_constraint(config: SamplingConfig) -> str:
    return "the JSON schema" if config.regex is None else f"regex '{excerpt(config.regex)}'"


def make_grammar(config: SamplingConfig) -> str:
    """The constraint of a configuration as a grammar of llguidance. Raises UsageError for an invalid one."""
    check_size(config)
    matcher, schema = import_llguidance().LLMatcher, cast("Any", config.json_schema)
    try:
        if config.regex is None:
            grammar = matcher.grammar_from_json_schema(schema, overrides=JSON_FORM)
        else:
            grammar = matcher.grammar_from_regex(config.regex)
        reason = matcher.validate_grammar(grammar)
    except ValueError as error:  # such as a number that the library's JSON does not support
        grammar, reason = "", str(error)
    if reason:
        raise UsageError(f"{shown_constraint(config)} cannot be used: {excerpt(first_reason(reason))}")
    return grammar


def import_llguidance() -> Any:
    """The module; UsageError if it is not installed."""
    try:
        return import_module("llguidance")
    except ModuleNotFoundError as error:
        if error.name != "llguidance":
            raise
        raise UsageError(
            "a regex or a JSON schema needs the extra 'constrain': pip install 'foretell[constrain]'"
        ) from None


class EndedVocabulary:
    """A vocabulary for llguidance, with one more token that ends a text."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, token_bytes: TokenBytes):
        self.tokens = [*token_bytes, b"<end>"]
        self.eos_token_id = len(token_bytes)
        empty = [token for token, content in enumerate(token_bytes) if not content]
        self.special_token_ids = [*empty, self.eos_token_id]
        self.ids = {content: token for token, content in enumerate(token_bytes) if content}
        self.longest = max(map(len, self.ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize a text that must follow: the longest token at each position; the end token if none matches.

        Without these ids, llguidance would treat the text as already generated.
        """
        rest, ids = text.encode() if isinstance(text, str) else text, []
        while rest:
            length = next((size for size in range(self.longest, 0, -1) if rest[:size] in self.ids), None)
            if length is None:
                return [*ids, self.eos_token_id]
            ids.append(self.ids[rest[:length]])
            rest = rest[length:]
        return ids


@lru_cache(maxsize=2)  # 0.1 s at 50,257 tokens
def vocabulary_of(token_bytes: TokenBytes) -> Any:
    """A vocabulary as llguidance's object."""
    vocabulary: Any = EndedVocabulary(token_bytes)
    size = len(token_bytes) + 1
    return import_llguidance().LLTokenizer(vocabulary, n_vocab=size, eos_token=size - 1)
