"""Make a tokenizer from texts or from a list of words: characters, words, bytes, byte-level BPE.

Every trained tokenizer has one token that ends a document, `<|endoftext|>`, with the last id, and no start token. The
same texts always give the same tokenizer.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import tokenizers
from tokenizers import pre_tokenizers, trainers

from foretell.errors import TokenizerError, did_you_mean
from foretell.text.backend import refuse_surrogates, rust_failures
from foretell.text.byte_level import BYTE_TO_CHARACTER, CHARACTER_TO_BYTE
from foretell.text.long_text import AFTER_WORD, iter_pieces
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_json import (
    END,
    QWEN2_PATTERN,
    UNKNOWN,
    TokenizerJson,
    byte_level_json,
    byte_level_split,
    character_json,
    pattern_split,
    word_level_json,
)

DEFAULT_BPE_SIZE = 2048
SMALLEST_BPE_SIZE = 257  # 256 bytes and END
SMALLEST_WORDS_SIZE = 3  # one word, UNKNOWN and END

# The names of these pre-tokenizers in llama.cpp
SPLITS: dict[str, TokenizerJson] = {"gpt2": byte_level_split(use_regex=True), "qwen2": pattern_split(QWEN2_PATTERN)}

_WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])  # equals WORD_SPLIT


def train_tokenizer(
    kind: str, texts: Iterable[str], *, vocab_size: int | None = None, split: str = "gpt2"
) -> Tokenizer:
    """A tokenizer of `kind` 'characters', 'words', 'bytes' or 'bpe' for the texts; deterministic.

    `vocab_size` counts every id. For 'bpe' (default 2048, at least 257) it is the size reached if the texts have that
    many pairs to merge; for 'words' it keeps the most frequent ones and writes the rest as `<|unknown|>`; the other
    kinds refuse it. `split` ('gpt2' or 'qwen2') is how 'bpe' splits text into words. Raises TokenizerError for an
    unknown kind or split, a size that does not fit the kind, texts that are all empty, or a lone surrogate.
    """
    _refuse_unknown("kind", kind, _TRAINERS)
    _refuse_unknown("split", split, SPLITS)
    if vocab_size is not None and kind not in ("bpe", "words"):
        raise TokenizerError(f"the size of a {kind} vocabulary follows from the text; leave vocab_size out")
    if split != "gpt2" and kind != "bpe":
        raise TokenizerError(f"split={split!r} is for kind 'bpe'; leave it out for {kind!r}")
    return Tokenizer(_TRAINERS[kind](_not_empty(texts), vocab_size, split))


def vocabulary_tokenizer(words: Sequence[str], *, special: Sequence[str] = ()) -> Tokenizer:
    """A words tokenizer with the given words as ids 0, 1, 2, ...

    The names in `special` become special tokens; those that are not among the words get the ids after them. Raises
    TokenizerError for a word that occurs twice or that the split into words never produces.
    """
    tokens = [*words, *(name for name in special if name not in words)]
    if not tokens or "" in tokens:
        raise TokenizerError("a vocabulary needs at least one word, and no word may be empty")
    token, count = Counter(tokens).most_common(1)[0]
    if count > 1:
        raise TokenizerError(f"the word {token!r} is in the vocabulary {count} times; each word has one id")
    _refuse_unreachable([word for word in words if word not in special])
    return Tokenizer(word_level_json(tokens, special))


def _refuse_unknown(what: str, name: str, known: Mapping[str, object]) -> None:
    if name not in known:
        near = did_you_mean(name, known)
        raise TokenizerError(f"unknown tokenizer {what} {name!r}{near} (one of {', '.join(known)})")


def _refuse_unreachable(words: Sequence[str]) -> None:
    for word in words:
        parts = _split_words(word)
        if parts != [word]:
            raise TokenizerError(f"the word {word!r} would be read as {parts}; white space and punctuation end a word")


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    """The texts that are not empty. TokenizerError: there is none, or one is not Unicode."""
    if isinstance(texts, str):
        raise TokenizerError("texts must be a list of strings, not one string; put it in a list")
    not_empty = (text for text in texts if text)
    first = next(not_empty, None)
    if first is None:
        raise TokenizerError("there is no text to make a tokenizer from; give at least one that is not empty")
    return map(_unicode, itertools.chain([first], not_empty))


def _unicode(text: str) -> str:
    refuse_surrogates(text)
    return text


def _train_characters(texts: Iterator[str], vocab_size: int | None, split: str) -> TokenizerJson:
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    return character_json([*sorted(characters), END], [END])


def _train_words(texts: Iterator[str], vocab_size: int | None, split: str) -> TokenizerJson:
    if vocab_size is not None and vocab_size < SMALLEST_WORDS_SIZE:
        raise TokenizerError(f"vocab_size={vocab_size} leaves no room for a word; give {SMALLEST_WORDS_SIZE} or more")
    counts: Counter[str] = Counter()
    for piece in _pieces(texts):
        counts.update(_split_words(piece))
    if not counts:
        raise TokenizerError("the texts hold only white space; give at least one with a word in it")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    special = [END] if vocab_size is None else [UNKNOWN, END]
    kept = words if vocab_size is None else words[: vocab_size - len(special)]
    return word_level_json([*kept, *special], special)


def _train_bytes(texts: Iterator[str], vocab_size: int | None, split: str) -> TokenizerJson:
    vocabulary = {BYTE_TO_CHARACTER[byte]: byte for byte in range(256)} | {END: 256}
    return byte_level_json(vocabulary, [], byte_level_split(use_regex=False))


def _train_bpe(texts: Iterator[str], vocab_size: int | None, split: str) -> TokenizerJson:
    size = DEFAULT_BPE_SIZE if vocab_size is None else vocab_size
    if size < SMALLEST_BPE_SIZE:
        raise TokenizerError(f"vocab_size={size} is too small for byte-level BPE; give {SMALLEST_BPE_SIZE} or more")
    backend = tokenizers.Tokenizer.from_str(json.dumps(byte_level_json({}, [], SPLITS[split])))
    alphabet = sorted(CHARACTER_TO_BYTE)
    trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    with rust_failures("the tokenizer cannot be trained"):
        backend.train_from_iterator(_pieces(texts), trainer)
    learned = json.loads(backend.to_str())["model"]
    vocabulary = learned["vocab"] | {END: len(learned["vocab"])}
    return byte_level_json(vocabulary, learned["merges"], SPLITS[split])


_TRAINERS: dict[str, Callable[[Iterator[str], int | None, str], TokenizerJson]] = {
    "characters": _train_characters,
    "words": _train_words,
    "bytes": _train_bytes,
    "bpe": _train_bpe,
}


def _pieces(texts: Iterator[str]) -> Iterator[str]:
    """The same words in strings of bounded length, so that one huge text takes no more memory than many small ones."""
    return itertools.chain.from_iterable(iter_pieces(text, AFTER_WORD) for text in texts)


def _split_words(text: str) -> list[str]:
    return [word for word, _ in _WORDS.pre_tokenize_str(text)]


def id_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer whose texts are ids: "464 3290" is [464, 3290]. For a model that came without a tokenizer."""
    return Tokenizer(word_level_json([str(token_id) for token_id in range(vocab_size)], ()))
