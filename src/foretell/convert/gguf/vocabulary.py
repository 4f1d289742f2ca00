"""A tokenizer as GGUF's key-value pairs, and a tokenizer built from such pairs, as llama.cpp builds one.

Only byte-level BPE (and bytes alone) can be exported. llama.cpp's token types: 1 normal, 3 control (our special tokens,
which text never becomes), 4 user-defined (added tokens that text can become), 5 unused.

llama.cpp selects the pre-tokenizer, which splits text before the merges, by name. It would read a file with the wrong
name without complaint and give other tokens, so the tokenizer's split is compared with the known ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from foretell.errors import TokenizerError
from foretell.text import Tokenizer
from foretell.text.tokenizer_json import (
    LLAMA3_PATTERN,
    QWEN2_PATTERN,
    TokenizerJson,
    byte_level_json,
    byte_level_split,
    digit_split,
    missing_bytes,
    pattern_split,
    special_token,
)

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
START = "tokenizer.ggml"
TOKENS, KINDS, MERGES, PRE = f"{START}.tokens", f"{START}.token_type", f"{START}.merges", f"{START}.pre"
TEMPLATE = "tokenizer.chat_template"
NO_MERGE = "Ā Ā"  # llama.cpp requires merges, and the format has no empty list; this pair is never in such a vocabulary
PLACEMENT = ("single_word", "lstrip", "rstrip")


@dataclass(frozen=True)
class PreTokenizer:
    """A pre-tokenizer as in a tokenizer.json, and whether a word in the vocabulary is taken whole."""

    document: TokenizerJson
    takes_words: bool = False  # `ignore_merges`


# llama.cpp's name -> its split; Llama 3 and DBRX split alike
PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(byte_level_split(use_regex=True)),
    "qwen2": PreTokenizer(pattern_split(QWEN2_PATTERN)),
    "llama-bpe": PreTokenizer(pattern_split(LLAMA3_PATTERN), takes_words=True),
    "dbrx": PreTokenizer(pattern_split(LLAMA3_PATTERN)),
    "smollm": PreTokenizer(digit_split()),
}
WITHOUT_MERGES = "gpt-2"  # bytes stay bytes with any split


def write_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """The pairs of a tokenizer for a model with `vocab_size` rows; `TokenizerError` if llama.cpp cannot do the same."""
    document = tokenizer.to_json()
    check_kind(tokenizer, document)
    check_marks(tokenizer, document)
    names, kinds = token_list(document, vocab_size)
    ends = tokenizer.end_ids
    pairs = {
        f"{START}.model": "gpt2",
        PRE: find_split(document),
        TOKENS: names,
        KINDS: kinds,
        MERGES: [" ".join(merge) for merge in document["model"]["merges"]] or [NO_MERGE],
        f"{START}.bos_token_id": ends[0] if tokenizer.start_id is None else tokenizer.start_id,
        f"{START}.eos_token_id": ends[0],
        f"{START}.add_bos_token": bool(tokenizer.start_ids),
        f"{START}.add_eos_token": False,
    }
    if len(ends) > 1:
        pairs[f"{START}.eot_token_id"] = ends[1]
    if tokenizer.chat_template is not None:
        pairs[TEMPLATE] = tokenizer.chat_template
    return pairs


def check_kind(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse tokenizers that are not byte-level BPE in llama.cpp's form."""
    if tokenizer.kind not in ("bpe", "bytes") or document["decoder"]["type"] != "ByteLevel":
        actual = "bpe of characters" if tokenizer.kind == "bpe" else tokenizer.kind
        raise TokenizerError(
            f"GGUF: the tokenizer is of kind {actual}, and llama.cpp is given byte-level ones only: bpe and bytes of "
            "the kinds trained here"
        )
    model = document["model"]
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token", "byte_fallback"):
        if model.get(field):
            raise TokenizerError(
                f"GGUF: the tokenizer has {field} = {model[field]!r}, which llama.cpp does not support"
            )
    missing = missing_bytes(model["vocab"])
    if missing:
        raise TokenizerError(
            f"GGUF: {len(missing)} of the bytes of UTF-8 are not in the vocabulary, the first is 0x{missing[0]:02X}; "
            "llama.cpp would drop them silently"
        )
    if not is_composed(document) and document["normalizer"] is not None:
        raise TokenizerError(
            f"GGUF: the tokenizer normalizes text ({document['normalizer']['type']}), llama.cpp does not"
        )


def is_composed(document: TokenizerJson) -> bool:
    """True if the tokenizer normalizes text to Unicode's NFC first, which llama.cpp does not."""
    return document["normalizer"] == {"type": "NFC"}


def check_marks(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse start, end and added tokens that GGUF cannot express."""
    if len(tokenizer.start_ids) > 1:
        raise TokenizerError(f"GGUF: {len(tokenizer.start_ids)} tokens start every text; llama.cpp adds one")
    if not tokenizer.end_ids:
        raise TokenizerError("GGUF: the tokenizer has no end token, and llama.cpp would use token 11")
    for token in document["added_tokens"]:
        if not token["special"] and any(token[flag] for flag in PLACEMENT):
            raise TokenizerError(
                f"GGUF: the added token {token['content']!r} absorbs or requires white space around it; "
                "llama.cpp does not"
            )


def token_list(document: TokenizerJson, vocab_size: int) -> tuple[list[str], list[int]]:
    """The name and type of every row; rows without a token are unused."""
    names = [f"[PAD{token_id}]" for token_id in range(vocab_size)]
    kinds = [UNUSED] * vocab_size
    for name, token_id in document["model"]["vocab"].items():
        names[token_id], kinds[token_id] = name, NORMAL
    for token in document["added_tokens"]:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    name, count = Counter(names).most_common(1)[0]
    if count > 1:  # llama.cpp aborts
        raise TokenizerError(f"GGUF: {count} of the model's rows have the name {name!r}; each needs a different one")
    return names, kinds


def find_split(document: TokenizerJson) -> str:
    """llama.cpp's name of the pre-tokenizer that splits text as this tokenizer does; `TokenizerError` if unknown."""
    model = document["model"]
    if not model["merges"]:
        return WITHOUT_MERGES
    ours = list(steps(document["pre_tokenizer"])), bool(model.get("ignore_merges"))
    for name, known in PRE_TOKENIZERS.items():
        if ours == (list(steps(known.document)), known.takes_words):
            return name
    raise TokenizerError(
        f"GGUF: the tokenizer splits text as none of the known pre-tokenizers of llama.cpp does "
        f"({', '.join(PRE_TOKENIZERS)}), so llama.cpp would read other tokens; "
        "train one with --tokenizer.split qwen2 or gpt2"
    )


def steps(part: TokenizerJson | None) -> Iterator[dict[str, Any]]:
    """The steps of a pre-tokenizer, without settings that do not affect the tokens."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for inner in part["pretokenizers"]:
            yield from steps(inner)
    else:
        yield {key: value for key, value in part.items() if key != "trim_offsets"}


def read_vocabulary(pairs: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A tokenizer built from the pairs alone; text never becomes a control token."""
    pre_tokenizer = PRE_TOKENIZERS[pairs[PRE]]
    names, kinds = pairs[TOKENS], pairs[KINDS]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    merges = [merge for merge in pairs[MERGES] if merge.replace(" ", "") in vocabulary]
    document = byte_level_json(vocabulary, merges, pre_tokenizer.document)
    document["model"]["ignore_merges"] = pre_tokenizer.takes_words
    document["added_tokens"] = [
        special_token(names[token_id], token_id) | {"special": kind == CONTROL}
        for token_id, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    ]
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    backend.encode_special_tokens = True
    return backend
