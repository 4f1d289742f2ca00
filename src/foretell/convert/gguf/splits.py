"""How llama.cpp cuts text before its merges: the pre-tokenizers that it knows by name, and which one a tokenizer has.

A file with another name in it would be read without complaint, and texts would become other tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretell.errors import TokenizerError
from foretell.text.tokenizer_json import (
    LLAMA3_PATTERN,
    QWEN2_PATTERN,
    TokenizerJson,
    byte_level_split,
    digit_split,
    pattern_split,
)


@dataclass(frozen=True)
class Split:
    """A pre-tokenizer as a tokenizer.json has it, and whether a word of the vocabulary is taken whole."""

    document: TokenizerJson
    takes_words: bool = False  # `ignore_merges`


# llama.cpp's name -> what it does; Llama 3 and DBRX cut alike
SPLITS = {
    "gpt-2": Split(byte_level_split(use_regex=True)),
    "qwen2": Split(pattern_split(QWEN2_PATTERN)),
    "llama-bpe": Split(pattern_split(LLAMA3_PATTERN), takes_words=True),
    "dbrx": Split(pattern_split(LLAMA3_PATTERN)),
    "smollm": Split(digit_split()),
}
WITHOUT_MERGES = "gpt-2"  # bytes stay bytes, wherever the text is cut


def find_split(document: TokenizerJson) -> str:
    """The name of the pre-tokenizer that cuts text as this tokenizer does; `TokenizerError` where there is none."""
    model = document["model"]
    if not model["merges"]:
        return WITHOUT_MERGES
    ours = list(steps(document["pre_tokenizer"])), bool(model.get("ignore_merges"))
    for name, split in SPLITS.items():
        if ours == (list(steps(split.document)), split.takes_words):
            return name
    raise TokenizerError(
        f"GGUF: the tokenizer cuts text as none of llama.cpp's pre-tokenizers does that are known here "
        f"({', '.join(SPLITS)}), so that it would read other tokens; train one with --tokenizer.split qwen2 or gpt2"
    )


def steps(part: TokenizerJson | None) -> Iterator[dict[str, Any]]:
    """The single steps of a pre-tokenizer, without what has no say in the tokens."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for inner in part["pretokenizers"]:
            yield from steps(inner)
    else:
        yield {key: value for key, value in part.items() if key != "trim_offsets"}
