"""Tokenizers that come as vocab.json and merges.txt: how text is cut, only the name of their class says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretell.errors import TokenizerError
from foretell.text.backend import Document
from foretell.text.documents import (
    QWEN2_PATTERN,
    byte_level_document,
    byte_level_split,
    pattern_split,
    suffixed_document,
)

_Family = Callable[[dict[str, int], list[Any], bool], Document]


def _gpt2(vocabulary: dict[str, int], merges: list[Any], prefix_space: bool) -> Document:
    return byte_level_document(vocabulary, merges, byte_level_split(use_regex=True, prefix_space=prefix_space))


def _qwen2(vocabulary: dict[str, int], merges: list[Any], prefix_space: bool) -> Document:
    split = pattern_split(QWEN2_PATTERN, prefix_space=prefix_space)
    return {**byte_level_document(vocabulary, merges, split), "normalizer": {"type": "NFC"}}


def _openai_gpt(vocabulary: dict[str, int], merges: list[Any], prefix_space: bool) -> Document:
    return suffixed_document(vocabulary, merges)


_FAMILIES: dict[str, _Family] = {
    "GPT2Tokenizer": _gpt2,
    "Qwen2Tokenizer": _qwen2,
    "Qwen3Tokenizer": _qwen2,
    "OpenAIGPTTokenizer": _openai_gpt,
}

# What a directory is whose tokenizer_config.json names no class, by the model_type of its config.json
CLASS_OF_MODEL = {
    "gpt2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
}


def family_document(
    name: str, vocabulary: dict[str, int], merges: list[Any], directory: Path, *, prefix_space: bool = False
) -> Document:
    """The tokenizer.json of a family, named by transformers' class for it. TokenizerError: a family not known here."""
    family = _FAMILIES.get(name.removesuffix("Fast"))
    if family is None:
        # RoBERTa's and others' files have these names too, but text is split otherwise
        known = ", ".join(_FAMILIES)
        raise TokenizerError(
            f"{directory} has vocab.json and merges.txt of a {name}, not of one of {known}; it needs tokenizer.json"
        )
    return family(vocabulary, merges, prefix_space)
