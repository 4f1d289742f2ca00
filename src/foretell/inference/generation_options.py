"""The options of a generation as users give them: tokens and words as text, and a draft model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from foretell.config import SamplingConfig
from foretell.errors import UsageError
from foretell.generation.speculation import DraftModel, PromptLookup, Proposer
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer

DRAFT_TOKENS = 4
SHOWN_TOKENS = 5  # of a text that is more than one token
ID = re.compile(r"#(\d+)")
WRITES_SPACES_INTO_WORDS = ("bpe", "unigram")  # kinds with other tokens for a word after a space


def make_sampling(options: Mapping[str, Any], tokenizer: Tokenizer) -> SamplingConfig:
    """The configuration of options, with texts as ids. Raises UsageError, ConfigError or TokenizerError."""
    values = dict(options)
    if "logit_bias" in values:
        values["logit_bias"] = {token_id(token, tokenizer): bias for token, bias in values["logit_bias"].items()}
    if "ban" in values:
        if isinstance(values["ban"], str):
            raise UsageError("ban takes a list of words, such as ban=['word']")
        values["ban"] = list(dict.fromkeys(ids for word in values["ban"] for ids in spellings(word, tokenizer)))
    return SamplingConfig(**values)


def token_id(token: str | int, tokenizer: Tokenizer) -> int:
    """The id of a token given as its id, as '#id', as the name of a special token, or as its text."""
    written = ID.fullmatch(token) if isinstance(token, str) else None
    if isinstance(token, int) or written:
        known = int(written[1]) if written else int(token)
        tokenizer.piece(known)  # refuses an unknown one
        return known
    if token in tokenizer.special_tokens:
        return tokenizer.special_tokens[token]
    ids = tokenizer.encode(token)
    if len(ids) != 1:
        parts = [repr(tokenizer.text_of(part)) for part in ids[:SHOWN_TOKENS]] + ["..."] * (len(ids) > SHOWN_TOKENS)
        raise UsageError(
            f"a logit bias is for one token, and {token!r} is {len(ids)}{': ' if ids else ''}{', '.join(parts)}; give "
            "one of its tokens, or ban the word"
        )
    return ids[0]


def spellings(word: str | Sequence[int], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The ids of a word, alone and after a space."""
    if not isinstance(word, str):
        return [tuple(word)]
    if not word:
        raise UsageError("a banned word is empty; give at least one character")
    texts = [word]
    if tokenizer.kind in WRITES_SPACES_INTO_WORDS and not word.startswith(" "):
        texts.append(f" {word}")
    return [tuple(tokenizer.encode(text)) for text in texts]


def make_proposer(model: LanguageModel, speculate: int | None, draft: LanguageModel | None) -> Proposer | None:
    """A draft model where one is given, else prompt lookup with guesses of `speculate` tokens, else none.

    With a draft model, `speculate` is the length of its guesses. Raises UsageError for a draft model with another
    vocabulary and for a length below 1.
    """
    if speculate is not None and speculate < 1:
        raise UsageError(f"speculate must be 1 token or more, not {speculate}")
    if draft is None:
        return None if speculate is None else PromptLookup(speculate)
    size, other = model.tokenizer.vocab_size, draft.tokenizer.vocab_size
    if size != other or any(model.tokenizer.text_of(token) != draft.tokenizer.text_of(token) for token in range(size)):
        raise UsageError(
            f"the draft model {draft.name} has another tokenizer ({other:,} tokens) than {model.name} ({size:,}); its "
            "guesses would be other texts"
        )
    return DraftModel(draft.decoder, speculate or DRAFT_TOKENS)
