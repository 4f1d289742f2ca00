"""Bounds on a tokenizer.json from an untrusted source, checked before the library reads it.

A file of 61 bytes can name an id of 2^31-1, for which the library takes 8 GB, and five replacements in a row can make
one character 10 billion. No published tokenizer comes near these bounds.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from typing import Any

from foretell.errors import TokenizerError
from foretell.text.tokenizer_json import TokenizerJson

MOST_UNUSED_IDS = 2**16  # ids below the largest that no token has, beyond one for each token
MOST_EXPANSION = 64  # characters that the steps of a section make of one; NFKC in one step makes up to 18
MOST_PREPENDED = 1_000  # characters
MOST_STEPS = 200  # of a section, nested ones included
MOST_TEMPLATE_IDS = 1_000
SECTIONS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def refuse_costly(content: TokenizerJson, origin: str) -> None:
    """Raise TokenizerError for a content that would cost memory or time out of proportion to its size."""
    _refuse_sparse_ids(content["model"].get("vocab"), origin)
    for affix in AFFIXES:
        _refuse_long(content["model"].get(affix), f"its {affix}", origin)
    for section in SECTIONS:
        steps = list(_steps(content.get(section), section, origin))
        expansion = math.prod(max(1, _expansion(step)) for step in steps)
        if expansion > MOST_EXPANSION:
            raise TokenizerError(
                f"{origin}: its {section} can make a text {expansion:,} times as long (at most {MOST_EXPANSION}); "
                "get the file from another source"
            )
        for step in steps:
            _refuse_long(step.get("prepend"), f"what its {section} puts before a text", origin)
            _refuse_long_template(step.get("special_tokens"), step.get("single"), origin)


def _refuse_sparse_ids(vocabulary: Any, origin: str) -> None:
    """Refuse ids far above the number of tokens: the library's tables have an entry for each id below the largest."""
    if not isinstance(vocabulary, dict):
        return
    most = 2 * len(vocabulary) + MOST_UNUSED_IDS
    for token, token_id in vocabulary.items():
        if isinstance(token_id, int) and token_id > most:
            raise TokenizerError(
                f"{origin}: the token {token[:60]!r} has the id {token_id}, and the vocabulary has only "
                f"{len(vocabulary)} tokens; the file is wrong"
            )


def _steps(part: Any, section: str, origin: str) -> Iterator[dict[str, Any]]:
    """Every object within a section; they come without recursion, since they can be nested deeply."""
    pending, count = [part], 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and "type" in value:
            count += 1
            if count > MOST_STEPS:
                raise TokenizerError(f"{origin}: its {section} has more than {MOST_STEPS} steps; the file is wrong")
            yield value
            pending += [inner for inner in value.values() if isinstance(inner, list | dict)]
        elif isinstance(value, list):
            pending += [inner for inner in value if isinstance(inner, list | dict)]


def _expansion(step: dict[str, Any]) -> int:
    """The most characters that a step makes of one."""
    kind, pattern = step.get("type"), step.get("pattern")
    if kind == "Replace":
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        length = len(literal) if isinstance(literal, str) else 1
        replacement = len(str(step.get("content")))
        # A regular expression and an empty text match between characters too
        return math.ceil(replacement / length) if length and isinstance(literal, str) else replacement + 1
    if kind == "Precompiled":
        return _longest_precompiled(step.get("precompiled_charsmap"))
    if kind == "ByteLevel" or (kind == "BPEDecoder" and not step.get("suffix")):
        return 2
    return 1


def _longest_precompiled(encoded: Any) -> int:
    """The length of the longest text in SentencePiece's table: the size of an index, the index, texts ended by NUL."""
    try:
        table = base64.b64decode(encoded)
    except (binascii.Error, TypeError, ValueError):
        return 1  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(len(text.decode("utf-8", errors="replace")) for text in texts.split(b"\0"))


def _refuse_long(text: Any, what: str, origin: str) -> None:
    if isinstance(text, str) and len(text) > MOST_PREPENDED:
        raise TokenizerError(f"{origin}: {what} has {len(text):,} characters (at most {MOST_PREPENDED:,})")


def _refuse_long_template(entries: Any, steps: Any, origin: str) -> None:
    ids = (
        [entry.get("ids") for entry in entries.values() if isinstance(entry, dict)] if isinstance(entries, dict) else []
    )
    counts = [len(part) for part in (*ids, steps) if isinstance(part, list)]
    if max(counts, default=0) > MOST_TEMPLATE_IDS:
        raise TokenizerError(
            f"{origin}: its template puts {max(counts):,} tokens around a text (at most {MOST_TEMPLATE_IDS:,})"
        )
