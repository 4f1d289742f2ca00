"""A tokenizer as GGUF's key-value pairs, and one built from such pairs, as llama.cpp would.

Only byte-level BPE (and bytes alone) can leave. llama.cpp's kinds of token: 1 normal, 3 control (our special tokens,
which no text becomes), 4 user-defined (added tokens that a text does become), 5 unused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tokenizers

from foretell.convert.gguf.splits import SPLITS, find_split
from foretell.errors import TokenizerError
from foretell.text import Tokenizer
from foretell.text.byte_level import CHARACTER_TO_BYTE
from foretell.text.tokenizer_json import TokenizerJson, byte_level_json, special_token

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
START = "tokenizer.ggml"
TOKENS, KINDS, MERGES, PRE = f"{START}.tokens", f"{START}.token_type", f"{START}.merges", f"{START}.pre"
TEMPLATE = "tokenizer.chat_template"
NO_MERGE = "Ā Ā"  # llama.cpp wants merges, the format has no empty list, and no vocabulary without merges has this pair
PLACEMENT = ("single_word", "lstrip", "rstrip")


def write_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """The pairs of a tokenizer for a model with so many rows. What llama.cpp cannot do is a `TokenizerError`."""
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
    """Refuse what is no byte-level BPE, or one of another make than llama.cpp's."""
    if tokenizer.kind not in ("bpe", "bytes") or document["decoder"]["type"] != "ByteLevel":
        raise TokenizerError(
            f"GGUF: llama.cpp has no tokenizer of this kind ({tokenizer.kind}) that would give the same tokens; "
            "of those that are made here, bpe and bytes can leave"
        )
    model = document["model"]
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token", "byte_fallback"):
        if model.get(field):
            raise TokenizerError(f"GGUF: the tokenizer has {field} = {model[field]!r}, which llama.cpp does not know")
    missing = [character for character in CHARACTER_TO_BYTE if character not in model["vocab"]]
    if missing:
        raise TokenizerError(
            f"GGUF: {len(missing)} of the 256 bytes are not in the vocabulary, the first as {missing[0]!r}; "
            "llama.cpp would drop them without a word"
        )
    if not is_composed(document) and document["normalizer"] is not None:
        raise TokenizerError(
            f"GGUF: the tokenizer changes text first ({document['normalizer']['type']}), llama.cpp does not"
        )


def is_composed(document: TokenizerJson) -> bool:
    """Does the tokenizer compose characters (Unicode's NFC) before it reads them? llama.cpp does not."""
    return document["normalizer"] == {"type": "NFC"}


def check_marks(tokenizer: Tokenizer, document: TokenizerJson) -> None:
    """Refuse start, end and added tokens that GGUF has no words for."""
    if len(tokenizer.start_ids) > 1:
        raise TokenizerError(
            f"GGUF: {len(tokenizer.start_ids)} tokens stand before every text; llama.cpp puts one there"
        )
    if not tokenizer.end_ids:
        raise TokenizerError("GGUF: the tokenizer has no end token, and llama.cpp would take token 11 for one")
    for token in document["added_tokens"]:
        if not token["special"] and any(token[place] for place in PLACEMENT):
            raise TokenizerError(
                f"GGUF: the added token {token['content']!r} takes the white space around it, or asks for some; "
                "llama.cpp does not"
            )


def token_list(document: TokenizerJson, vocab_size: int) -> tuple[list[str], list[int]]:
    """The name and kind of every row; rows that the tokenizer has nothing for are unused."""
    names = [f"[PAD{number}]" for number in range(vocab_size)]
    kinds = [UNUSED] * vocab_size
    for name, number in document["model"]["vocab"].items():
        names[number], kinds[number] = name, NORMAL
    for token in document["added_tokens"]:
        names[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    name, count = Counter(names).most_common(1)[0]
    if count > 1:  # llama.cpp would abort
        raise TokenizerError(f"GGUF: {count} of the model's rows have the name {name!r}; each needs one of its own")
    return names, kinds


def read_vocabulary(pairs: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A tokenizer that is built from the pairs alone; text becomes no control token."""
    split = SPLITS[pairs[PRE]]
    names, kinds = pairs[TOKENS], pairs[KINDS]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [merge for merge in pairs[MERGES] if merge.replace(" ", "") in vocabulary]
    document = byte_level_json(vocabulary, merges, split.document)
    document["model"]["ignore_merges"] = split.takes_words
    document["added_tokens"] = [
        special_token(names[number], number) | {"special": kind == CONTROL}
        for number, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    ]
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    backend.encode_special_tokens = True
    return backend
