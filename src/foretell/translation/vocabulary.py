"""The vocabularies of a translation model: text of two languages to ids and back.

The source ends with the end token. The target begins with the start token and ends with the end token; where the
tokenizer has no start token, the end token begins it too, as in fairseq.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from foretell.config import TokenizerConfig
from foretell.errors import TokenizerError
from foretell.text import Tokenizer, train_tokenizer
from foretell.translation.batches import EncodedPair
from foretell.translation.pairs import Pair

DEFAULT_BPE_SIZE = 8192
SMALLEST_BPE_SIZE = 512
BYTES_PER_ENTRY = 400  # text for each entry, so that entries are seen often enough to be learned


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both languages, which may be one, and the ids that frame a sentence."""

    source: Tokenizer
    target: Tokenizer
    start_id: int
    source_end_id: int
    target_end_id: int

    @property
    def is_shared(self) -> bool:
        """True if both languages have the same tokenizer."""
        return self.source.fingerprint == self.target.fingerprint

    def encode_source(self, text: str) -> list[int]:
        """The ids that the encoder reads."""
        return [*self.source.encode(text), self.source_end_id]

    def encode_pairs(self, pairs: Sequence[Pair]) -> list[EncodedPair]:
        """The ids of many pairs."""
        sources = self.source.encode_batch([pair.source for pair in pairs])
        targets = self.target.encode_batch([pair.target for pair in pairs])
        start, end = [self.start_id], [self.target_end_id]
        return [
            EncodedPair(np.append(source, self.source_end_id), np.concatenate([start, target, end]))
            for source, target in zip(sources, targets, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of target ids, without special tokens."""
        return self.target.decode(list(ids), skip_special=True).strip()


def make_vocabulary(source: Tokenizer, target: Tokenizer) -> Vocabulary:
    """The vocabulary of two tokenizers; each needs a token that ends a text."""
    ends = [end_of(tokenizer) for tokenizer in (source, target)]
    start = target.start_id
    return Vocabulary(source, target, ends[1] if start is None else start, *ends)


def end_of(tokenizer: Tokenizer) -> int:
    """The end token of a tokenizer; a `TokenizerError` where it has none."""
    if tokenizer.end_id is None:
        raise TokenizerError("the tokenizer has no token that ends a text, and a translation needs one")
    return tokenizer.end_id


def train_vocabulary(pairs: Sequence[Pair], config: TokenizerConfig, *, is_shared: bool) -> Vocabulary:
    """Tokenizers made from pairs: one for both languages, or one for each."""
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if is_shared:
        both = train_side([*sides[0], *sides[1]], config)
        return make_vocabulary(both, both)
    return make_vocabulary(*(train_side(side, config) for side in sides))


def train_side(texts: Sequence[str], config: TokenizerConfig) -> Tokenizer:
    """A tokenizer of texts; the default size of a BPE vocabulary depends on the amount of text."""
    size = config.vocab_size
    if size is None and config.kind == "bpe":
        fitting = sum(len(text.encode("utf-8")) for text in texts) // BYTES_PER_ENTRY
        size = min(max(2 ** max(0, fitting.bit_length() - 1), SMALLEST_BPE_SIZE), DEFAULT_BPE_SIZE)
    split = {"split": config.split or "qwen2"} if config.kind == "bpe" or config.split else {}
    return train_tokenizer(config.kind, texts, vocab_size=size, **split)
