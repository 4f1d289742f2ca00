"""The JSON documents (tokenizer.json) of the tokenizers made here, and the ways of splitting text they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretell.text.backend import Document

END = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
UNKNOWN_WORD, WORD_END = "<unk>", "</w>"  # OpenAI GPT's

# The patterns as their makers publish them (Qwen/Qwen2-7B and meta-llama/Meta-Llama-3-8B, tokenizer.json).
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

EVERY_CHARACTER: Document = {
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}
WORD_SPLIT: Document = {
    "type": "Sequence",
    "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}],
}


def byte_level_split(use_regex: bool, prefix_space: bool = False) -> Document:
    """Bytes as printable characters, cut by GPT-2's pattern where `use_regex`, else not at all."""
    return {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": use_regex}


def pattern_split(pattern: str, prefix_space: bool = False) -> Document:
    """Text cut by a regular expression (Oniguruma's syntax), then bytes as printable characters."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level_split(use_regex=False, prefix_space=prefix_space)]}


def digit_split() -> Document:
    """SmolLM's: every digit alone, then GPT-2's pattern."""
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, byte_level_split(use_regex=True)]}


def word_level_document(tokens: Sequence[str], special: Sequence[str]) -> Document:
    """Whole words with ids in the given order, white space and punctuation ending a word."""
    return _document(_word_level(tokens), special, WORD_SPLIT, None)


def character_document(tokens: Sequence[str], special: Sequence[str]) -> Document:
    """Single characters with ids in the given order."""
    return _document(_word_level(tokens), special, EVERY_CHARACTER, {"type": "Fuse"})


def byte_level_document(vocabulary: dict[str, int], merges: Sequence[Any], split: Document) -> Document:
    """Byte-level BPE; `<|endoftext|>` is special where the vocabulary has it."""
    model = {"type": "BPE", "vocab": vocabulary, "merges": list(merges)}
    special = [END] if END in vocabulary else []
    return _document(model, special, split, byte_level_split(use_regex=True))


def suffixed_document(vocabulary: dict[str, int], merges: Sequence[Any]) -> Document:
    """OpenAI GPT's BPE: lower case without accents, words and punctuation apart, `</w>` at the end of each."""
    kind = {"type": "BPE", "unk_token": UNKNOWN_WORD, "end_of_word_suffix": WORD_END}
    model = {**kind, "vocab": vocabulary, "merges": list(merges)}
    special = [UNKNOWN_WORD] if UNKNOWN_WORD in vocabulary else []
    decoder = {"type": "BPEDecoder", "suffix": WORD_END}
    bert = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    document = _document(model, special, {"type": "BertPreTokenizer"}, decoder)
    return {**document, "normalizer": {"type": "BertNormalizer", **bert}}


def special_token(name: str, number: int) -> Document:
    """The entry of a special token in `added_tokens`."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": name, **plain, "special": True}


def _document(model: Document, special: Sequence[str], split: Document, decoder: Document | None) -> Document:
    added = [special_token(name, model["vocab"][name]) for name in special]
    return {"version": "1.0", "added_tokens": added, "pre_tokenizer": split, "decoder": decoder, "model": model}


def _word_level(tokens: Sequence[str]) -> Document:
    # The format wants an unknown token's name even where the vocabulary has none; what it lacks is then refused.
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN}
