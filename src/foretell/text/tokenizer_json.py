"""The content of a tokenizer.json: write it, read its properties, declare start and end tokens.

All properties of a Tokenizer are derived from this JSON, so they survive saving and loading without any other file.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from itertools import chain
from typing import Any

TokenizerJson = dict[str, Any]  # the content of a tokenizer.json, or a part of it

END = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
UNKNOWN_WORD, WORD_END = "<unk>", "</w>"  # OpenAI GPT's

# The names of the token that ends a document in published tokenizers; the first one present is used.
END_NAMES = (
    END,  # GPT-2, Qwen base models, and everything trained here
    "<|end_of_text|>",  # Llama 3
    "</s>",  # Llama 1 and 2, Mistral, T5
    "<eos>",  # Gemma
    "<EOS>",
    "<|im_end|>",  # chat models without any of the above
    "<|eos|>",
    "[EOS]",
)
# Names of special tokens as other programs write them into texts; not <s>, which is HTML. All begin with one letter,
# because the search is then 3 times as fast in prose
LIKE_SPECIAL = re.compile(r"<(?:\|[^<>|\s]{1,40}\||/s|(?i:bos|eos|sos|pad|sep|cls|unk|mask))>")

# --- bytes as printable characters -----------------------------------------------------------------------------------
#
# Byte-level vocabularies are stored as text: each byte is written as one printable character (Radford et al. 2019,
# `encoder.py`: bytes_to_unicode). Bytes that are printable in Latin-1 are written as themselves; the 68 others are
# numbered from U+0100, so that a space is 'Ġ' and a newline 'Ċ'.


def _table() -> dict[int, str]:
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


BYTE_TO_CHARACTER = _table()
CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}
# UTF-8 never contains these bytes (RFC 3629), so a vocabulary may lack them (StarCoder's does)
NOT_IN_UTF8 = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


def missing_bytes(vocabulary: Container[str]) -> list[int]:
    """The bytes of UTF-8 that a byte-level vocabulary cannot write."""
    return [byte for byte, char in BYTE_TO_CHARACTER.items() if byte not in NOT_IN_UTF8 and char not in vocabulary]


def piece_bytes(piece: str) -> bytes:
    """The bytes of a byte-level vocabulary string: 'âĢ' is b'\\xe2\\x80'.

    A piece with a character outside the table (an added token with a space) is encoded in UTF-8, as in the ByteLevel
    decoder of `tokenizers`.
    """
    if all(character in CHARACTER_TO_BYTE for character in piece):
        return bytes(CHARACTER_TO_BYTE[character] for character in piece)
    return piece.encode("utf-8")


def readable(data: bytes) -> str:
    """UTF-8 text; bytes that are not a complete character are shown as '<0xE2>'."""
    # Valid UTF-8 holds no surrogates, so each surrogate inserted by surrogateescape marks a stray byte.
    text = data.decode("utf-8", errors="surrogateescape")
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in text)


# --- splitting of text into words ------------------------------------------------------------------------------------

# The published patterns (tokenizer.json of Qwen/Qwen2-7B and meta-llama/Meta-Llama-3-8B)
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_CASED = (  # a word ends before a capital letter
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
TEKKEN_PATTERN = _CASED % ("", "", "")  # mistralai/Mistral-Nemo-Base-2407
GPT4O_PATTERN = _CASED % (_CONTRACTION, _CONTRACTION, "{1,3}")  # microsoft/Phi-4-mini-instruct

EVERY_CHARACTER: TokenizerJson = {
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}
WORD_SPLIT: TokenizerJson = {
    "type": "Sequence",
    "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}],
}


def byte_level_split(use_regex: bool, prefix_space: bool = False) -> TokenizerJson:
    """Bytes as printable characters, split by GPT-2's pattern if `use_regex`, else not split."""
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": use_regex}


def pattern_split(pattern: str, prefix_space: bool = False) -> TokenizerJson:
    """Text split by a regular expression (Oniguruma syntax), then bytes as printable characters."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level_split(use_regex=False, prefix_space=prefix_space)]}


def digit_split() -> TokenizerJson:
    """SmolLM's split: single digits, then GPT-2's pattern."""
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, byte_level_split(use_regex=True)]}


def split_steps(split: TokenizerJson | None) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, without `trim_offsets`, which differs between programs and does not affect ids."""
    if split is None:
        return []
    if split["type"] == "Sequence":
        return [step for part in split["pretokenizers"] for step in split_steps(part)]
    return [{key: value for key, value in split.items() if key != "trim_offsets"}]


LOWER_CASE: TokenizerJson = {"type": "Lowercase"}

# --- writing one -----------------------------------------------------------------------------------------------------


def word_level_json(tokens: Sequence[str], special: Sequence[str]) -> TokenizerJson:
    """Whole words with ids in the given order; white space and punctuation end a word."""
    return _tokenizer_json(_word_level(tokens), special, WORD_SPLIT, None)


def character_json(tokens: Sequence[str], special: Sequence[str]) -> TokenizerJson:
    """Single characters with ids in the given order."""
    return _tokenizer_json(_word_level(tokens), special, EVERY_CHARACTER, {"type": "Fuse"})


def byte_level_json(
    vocabulary: dict[str, int], merges: Sequence[Any], split: TokenizerJson, special: Sequence[str] = (END,)
) -> TokenizerJson:
    """Byte-level BPE; names in `special` that are in the vocabulary become special tokens."""
    model = {"type": "BPE", "vocab": vocabulary, "merges": list(merges)}
    known = [name for name in special if name in vocabulary]
    return _tokenizer_json(model, known, split, byte_level_split(use_regex=True))


def openai_gpt_json(vocabulary: dict[str, int], merges: Sequence[Any]) -> TokenizerJson:
    """OpenAI GPT's BPE: lower case without accents, words and punctuation separate, each ending with `</w>`."""
    kind = {"type": "BPE", "unk_token": UNKNOWN_WORD, "end_of_word_suffix": WORD_END}
    model = {**kind, "vocab": vocabulary, "merges": list(merges)}
    special = [UNKNOWN_WORD] if UNKNOWN_WORD in vocabulary else []
    decoder = {"type": "BPEDecoder", "suffix": WORD_END}
    bert = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    content = _tokenizer_json(model, special, {"type": "BertPreTokenizer"}, decoder)
    return {**content, "normalizer": {"type": "BertNormalizer", **bert}}


def sentencepiece_json(
    vocabulary: dict[str, int], merges: Sequence[Any], unknown: str | None, has_prefix: bool
) -> TokenizerJson:
    """SentencePiece's BPE over whole texts, with bytes for unknown characters; a blank goes before a text, or not."""
    blank, replace = "▁", {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    model = {"type": "BPE", "vocab": vocabulary, "merges": list(merges), "unk_token": unknown, "fuse_unk": True}
    steps = [{"type": "Prepend", "prepend": blank}, replace] if has_prefix else [replace]
    decoders: list[TokenizerJson] = [
        {"type": "Replace", "pattern": {"String": blank}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_prefix else []
    content = _tokenizer_json({**model, "byte_fallback": True}, (), None, {"type": "Sequence", "decoders": decoders})
    return {**content, "normalizer": {"type": "Sequence", "normalizers": steps}}


def special_token(name: str, token_id: int) -> TokenizerJson:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": name, **flags, "special": True}


def _tokenizer_json(
    model: TokenizerJson, special: Sequence[str], split: TokenizerJson | None, decoder: TokenizerJson | None
) -> TokenizerJson:
    added = [special_token(name, model["vocab"][name]) for name in special]
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": split, "decoder": decoder, "model": model}


def _word_level(tokens: Sequence[str]) -> TokenizerJson:
    # The format requires a name for the unknown token even if the vocabulary has none; then unknown words are refused.
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    return {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN}


# --- reading its properties ------------------------------------------------------------------------------------------


def tokenizer_kind(content: TokenizerJson) -> str:
    """'characters', 'words', 'bytes' or 'bpe'; 'unigram' and 'wordpiece' for loaded tokenizers of those families."""
    model = content["model"]
    if model["type"] == "WordLevel":
        return "characters" if content["pre_tokenizer"] == EVERY_CHARACTER else "words"
    if model["type"] == "BPE" and is_byte_level(content) and not model["merges"]:
        return "bytes"
    return model["type"].lower()


def is_byte_level(content: TokenizerJson) -> bool:
    """True if the vocabulary writes bytes as characters of GPT-2's table."""
    decoder = content["decoder"]
    return decoder is not None and decoder["type"] == "ByteLevel"


def spells_bytes(content: TokenizerJson) -> bool:
    """True if text is converted to GPT-2's byte characters before the model."""
    steps = split_steps(content["pre_tokenizer"])
    return any(step.get("type") == "ByteLevel" for step in (*steps, content["normalizer"] or {}))


def added_tokens(content: TokenizerJson, *, only_special: bool = False) -> dict[str, int]:
    """The ids of the tokens added to the model's vocabulary by name, in order of their ids."""
    tokens = sorted(content["added_tokens"], key=lambda token: token["id"])
    return {token["content"]: token["id"] for token in tokens if token["special"] or not only_special}


def special_tokens(content: TokenizerJson) -> dict[str, int]:
    """The ids of special tokens by name, in order of their ids."""
    return added_tokens(content, only_special=True)


def token_id(content: TokenizerJson, name: str) -> int | None:
    """The id of a token, added or in the model's vocabulary; None if it does not exist."""
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pairs of piece and score, in order of their ids
        vocabulary = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    return added_tokens(content).get(name, vocabulary.get(name))


def vocab_size(content: TokenizerJson) -> int:
    """One more than the highest id."""
    vocabulary = content["model"]["vocab"]
    ids = range(len(vocabulary)) if isinstance(vocabulary, list) else vocabulary.values()
    return max(chain(ids, (token["id"] for token in content["added_tokens"]))) + 1


def unknown_id(content: TokenizerJson) -> int | None:
    model = content["model"]
    if model["type"] == "Unigram":
        return model["unk_id"]
    return token_id(content, model["unk_token"])


def template_ids(content: TokenizerJson) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's template puts before every text (Llama's <s>; none for GPT-2), and after it."""
    for template in templates(content):
        steps = template["single"]
        text_index = next((index for index, step in enumerate(steps) if "Sequence" in step), len(steps))
        before, after = (_ids_of(part, template) for part in (steps[:text_index], steps[text_index + 1 :]))
        if before or after:
            return before, after
    return (), ()


def _ids_of(steps: list[dict[str, Any]], template: dict[str, Any]) -> tuple[int, ...]:
    names = [step["SpecialToken"]["id"] for step in steps if "SpecialToken" in step]
    return tuple(token_id for name in names for token_id in template["special_tokens"][name]["ids"])


def end_ids(content: TokenizerJson) -> tuple[int, ...]:
    """The ids that end a text; the first one ends a document.

    The template may declare them (see `with_ends`); otherwise it is the first of END_NAMES in the vocabulary.
    """
    starts, _ = template_ids(content)
    for template in templates(content):
        used = names_in_template(template)
        entries = template["special_tokens"]
        unused = [token_id for name, entry in entries.items() if name not in used for token_id in entry["ids"]]
        closing = [token_id for entry in entries.values() for token_id in entry["ids"] if token_id not in starts]
        if candidates := unused or closing[:1]:
            return tuple(candidates)
    special = special_tokens(content)
    return tuple(special[name] for name in END_NAMES if name in special)[:1]


# --- declaring start and end tokens ----------------------------------------------------------------------------------


def with_ends(content: TokenizerJson, tokens: Sequence[str]) -> TokenizerJson:
    """A copy that declares these special tokens as ends of a text, and the first one as the end of a document.

    A tokenizer.json has no field for end tokens, and readers refuse unknown fields. A template that lists tokens
    without using them is valid everywhere and does not affect ids.
    """
    special = special_tokens(content)
    template = next(templates(content), _plain_template())
    used = {name: entry for name, entry in template["special_tokens"].items() if name in names_in_template(template)}
    # An entry can have any name. Under its token's name, it could replace the entry of the same start token.
    name = f"end: {tokens[0]}" if tokens[0] in used else tokens[0]
    declared = {name: {"id": name, "ids": [special[token] for token in tokens], "tokens": list(tokens)}}
    return _with_template(content, {**template, "special_tokens": used | declared})


def with_start(content: TokenizerJson, token: str) -> TokenizerJson:
    """A copy with a template that puts the special token `token` before every text."""
    step = {"SpecialToken": {"id": token, "type_id": 0}}
    entry = {token: {"id": token, "ids": [special_tokens(content)[token]], "tokens": [token]}}
    plain = _plain_template()
    single, pair = ([step, *plain[name]] for name in ("single", "pair"))
    return _with_template(content, {**plain, "single": single, "pair": pair, "special_tokens": entry})


def with_special(content: TokenizerJson, names: Sequence[str]) -> TokenizerJson:
    """A copy with further special tokens, whose ids follow the highest id; existing names stay."""
    added, first = content["added_tokens"], vocab_size(content)
    new = [name for name in names if token_id(content, name) is None]
    tokens = [special_token(name, first + index) for index, name in enumerate(new)]
    return {**content, "added_tokens": [*added, *tokens]}


def _with_template(content: TokenizerJson, template: dict[str, Any]) -> TokenizerJson:
    others = [step for step in _post_processors(content) if step["type"] != "TemplateProcessing"]
    return {**content, "post_processor": {"type": "Sequence", "processors": [*others, template]}}


def names_in_template(template: dict[str, Any]) -> set[str]:
    steps = (*template["single"], *template["pair"])
    return {step["SpecialToken"]["id"] for step in steps if "SpecialToken" in step}


def _plain_template() -> dict[str, Any]:
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}


def _post_processors(content: TokenizerJson) -> list[dict[str, Any]]:
    processor = content["post_processor"]
    if processor is None:
        return []
    return processor["processors"] if processor["type"] == "Sequence" else [processor]


def templates(content: TokenizerJson) -> Iterator[dict[str, Any]]:
    """The post-processing steps that put special tokens around a text."""
    return (step for step in _post_processors(content) if step["type"] == "TemplateProcessing")
