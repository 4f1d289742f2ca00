"""Train a tokenizer on texts or make one from a list of words: characters, words, bytes, byte-level BPE.

The last id of every trained tokenizer ends a document: `<|endoftext|>`, unless one of the requested special tokens has
a usual name of an end token. The same texts always give the same tokenizer.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

import tokenizers
from tokenizers import normalizers, pre_tokenizers, trainers

from foretell.errors import TokenizerError, UsageError, did_you_mean
from foretell.text.streaming import AFTER_WORD, iter_pieces
from foretell.text.tokenizer import Tokenizer
from foretell.text.tokenizer_json import (
    BYTE_TO_CHARACTER,
    CHARACTER_TO_BYTE,
    END,
    END_NAMES,
    LOWER_CASE,
    QWEN2_PATTERN,
    UNKNOWN,
    TokenizerJson,
    byte_level_json,
    byte_level_split,
    character_json,
    pattern_split,
    word_level_json,
)
from foretell.text.untrusted_tokenizer import refuse_surrogates, rust_failures

KINDS = ("characters", "words", "bytes", "bpe")
DEFAULT_BPE_SIZE = 2048
BPE_SPLIT = "qwen2"  # the default in training: single digits, and punctuation separate from the word before it
SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 512, 16_384
BYTES_PER_ENTRY = 400  # bytes of text per vocabulary entry: on two books within 0.3% of the best of three sizes

# Pre-tokenizers by their names in llama.cpp
SPLITS: dict[str, TokenizerJson] = {"gpt2": byte_level_split(use_regex=True), "qwen2": pattern_split(QWEN2_PATTERN)}

# The trainer's time grows with the square of a word's length: one word of 16 KB took 0.2 s, 64 KB 3 s, 128 KB 14 s;
# 4 MB had not ended after 34 minutes. A megabyte in words of 100, 1,000, 3,000, 10,000 characters took 5, 6, 6, 10 s.
# So longer words are cut for the trainer only; encoding never cuts inside a word.
LONGEST_WORD = 1_000
_LONGER = re.compile(  # the splits never join two of these classes, except a space before a word and newlines after it
    rf"(?<![^\W_])[^\W_]{{{LONGEST_WORD + 1},}}"
    rf"|(?<!\s)\s{{{LONGEST_WORD + 1},}}"
    rf"|(?<![^\w\s]|_)(?:[^\w\s]|_){{{LONGEST_WORD + 1},}}"
)

Result = TypeVar("Result")

_LOWERCASE = normalizers.Lowercase()  # equals LOWER_CASE; str.lower() differs for a sigma that ends a word
_WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])  # equals WORD_SPLIT


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    *,
    vocab_size: int | None = None,
    split: str = "gpt2",
    special: Sequence[str] = (),
    start: str | None = None,
) -> Tokenizer:
    """Train a tokenizer of `kind` 'characters', 'words', 'bytes' or 'bpe' on texts; deterministic.

    vocab_size: the number of ids. 'bpe' (default 2048, at least 257) stops earlier if the texts have no more pairs to
    merge; 'words' keeps the most frequent words and writes the others as `<|unknown|>`; the other kinds refuse it.
    split: how 'bpe' splits text into words, 'gpt2' or 'qwen2'. special: the names of special tokens, whose occurrences
    in the texts are ignored. start: a special token to put before every text. Raises TokenizerError for an unknown kind
    or split, a size that does not fit the texts, texts that are all empty, a lone surrogate, or the name of a special
    token that is also an ordinary token.
    """
    _refuse_unknown("kind", kind, KINDS)
    _refuse_unknown("split", split, SPLITS)
    if vocab_size is not None and kind not in ("bpe", "words"):
        raise UsageError(f"leave vocab_size out: only bpe and words have a choice of size, not {kind}")
    if split != "gpt2" and kind != "bpe":
        raise TokenizerError(f"split={split!r} is for kind 'bpe'; leave it out for {kind!r}")
    names = special_names([*special, *([] if start is None else [start])])
    plain = _not_empty(split_at_names(texts, special) if special else texts)
    match kind:
        case "characters":
            content = _train_characters(plain, names)
        case "words":
            content = _train_words(plain, vocab_size, names)
        case "bytes":
            vocabulary = {BYTE_TO_CHARACTER[byte]: byte for byte in range(256)}
            content = byte_level_json(_extended(vocabulary, names), [], byte_level_split(use_regex=False), names)
        case _:
            content = _train_bpe(plain, vocab_size, SPLITS[split], names)
    tokenizer = Tokenizer(content)
    return tokenizer if start is None else tokenizer.with_start(start)


def train_lower_case_words(texts: Iterable[str], *, vocab_size: int | None = None) -> Tokenizer:
    """Train a tokenizer of kind 'words' that converts texts to lower case. Raises the errors of `train_tokenizer`."""
    lowered = map(_LOWERCASE.normalize_str, _not_empty(texts))
    tokenizer = train_tokenizer("words", lowered, vocab_size=vocab_size)
    return Tokenizer({**tokenizer.to_json(), "normalizer": LOWER_CASE})


def special_names(asked: Sequence[str]) -> list[str]:
    """The special tokens of a new tokenizer, end tokens last; END is added if none has a usual end token's name."""
    if any(not name.strip() for name in asked):
        raise TokenizerError("the name of a special token is empty; give one that no text contains, such as '<EOS>'")
    names = list(dict.fromkeys(asked))
    ends = [name for name in names if name in END_NAMES] or [END]
    return [*(name for name in names if name not in ends), *ends]


def vocabulary_for(text_bytes: int, most: int = LARGEST_VOCABULARY) -> int:
    """The largest power of two that leaves BYTES_PER_ENTRY bytes of text for each entry."""
    fitting = 2 ** max(0, (text_bytes // BYTES_PER_ENTRY).bit_length() - 1)
    return min(max(fitting, SMALLEST_VOCABULARY), most)


def split_option(kind: str, split: str | None) -> dict[str, str]:
    """The argument `split` of `train_tokenizer`, if the kind has one."""
    return {"split": split or BPE_SPLIT} if kind == "bpe" or split else {}


def split_at_names(texts: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    """The text between the names; longer names are matched first. A name across two texts is not found."""
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    return itertools.chain.from_iterable(map(pattern.split, texts))


def vocabulary_tokenizer(words: Sequence[str], *, special: Sequence[str] = ()) -> Tokenizer:
    """A words tokenizer with the given words as ids 0, 1, 2, ...

    The names in `special` become special tokens; those that are not among the words get the ids after them. Raises
    TokenizerError for a word that occurs twice, or that the split into words never produces.
    """
    tokens = [*words, *(name for name in special if name not in words)]
    if not tokens or "" in tokens:
        raise TokenizerError("a vocabulary needs at least one word, and no word may be empty")
    token, count = Counter(tokens).most_common(1)[0]
    if count > 1:
        raise TokenizerError(f"the word {token!r} is in the vocabulary {count} times; each word must be unique")
    for word in words:
        if word not in special and (parts := _split_words(word)) != [word]:
            raise TokenizerError(f"the word {word!r} would be read as {parts}; white space and punctuation end a word")
    return Tokenizer(word_level_json(tokens, special))


def _refuse_unknown(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = did_you_mean(name, known)
        raise TokenizerError(f"unknown tokenizer {what} {name!r}{near} (one of {', '.join(known)})")


def _not_empty(texts: Iterable[str]) -> Iterator[str]:
    """The texts that are not empty. Raises TokenizerError if there are none, or if one is not valid Unicode."""
    if isinstance(texts, str):
        raise TokenizerError("texts must be a list of strings, not one string; put it in a list")
    not_empty = (text for text in texts if text)
    first = next(not_empty, None)
    if first is None:
        raise TokenizerError("there is no text to train a tokenizer on; give at least one that is not empty")
    return map(_unicode, itertools.chain([first], not_empty))


def _unicode(text: str) -> str:
    refuse_surrogates(text)
    return text


def _train_characters(texts: Iterator[str], special: list[str]) -> TokenizerJson:
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    _refuse_ordinary(special, characters)
    return character_json([*sorted(characters), *special], special)


def _train_words(texts: Iterator[str], vocab_size: int | None, special: list[str]) -> TokenizerJson:
    smallest = 2 + len(special)  # one word and UNKNOWN
    if vocab_size is not None and vocab_size < smallest:
        raise TokenizerError(f"vocab_size={vocab_size} leaves no room for a word; give {smallest} or more")
    counts: Counter[str] = Counter()
    for piece in _pieces(texts):
        counts.update(_split_words(piece))
    if not counts:
        raise TokenizerError("the texts contain only white space; give at least one with a word")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    _refuse_ordinary(special, words)
    special = special if vocab_size is None else [UNKNOWN, *special]
    kept = words if vocab_size is None else words[: vocab_size - len(special)]
    return word_level_json([*kept, *special], special)


def _train_bpe(texts: Iterator[str], vocab_size: int | None, split: TokenizerJson, special: list[str]) -> TokenizerJson:
    size = DEFAULT_BPE_SIZE if vocab_size is None else vocab_size
    if size < 256 + len(special):
        raise TokenizerError(f"vocab_size={size} is too small for byte-level BPE; give {256 + len(special)} or more")
    backend = tokenizers.Tokenizer.from_str(json.dumps(byte_level_json({}, [], split)))
    alphabet = sorted(CHARACTER_TO_BYTE)
    trainer = trainers.BpeTrainer(vocab_size=size - len(special), initial_alphabet=alphabet, show_progress=False)
    short = itertools.chain.from_iterable(map(_cut_words, _pieces(texts)))
    with rust_failures("the tokenizer cannot be trained"):
        _interruptible(lambda pieces: backend.train_from_iterator(pieces, trainer), short)
    learned = json.loads(backend.to_str())["model"]
    return byte_level_json(_extended(learned["vocab"], special), learned["merges"], split, special)


def _extended(vocabulary: dict[str, int], special: Sequence[str]) -> dict[str, int]:
    _refuse_ordinary(special, vocabulary)
    return vocabulary | {name: len(vocabulary) + index for index, name in enumerate(special)}


def _refuse_ordinary(special: Sequence[str], ordinary: Collection[str]) -> None:
    for name in special:
        if name in ordinary:
            raise TokenizerError(
                f"the special token {name!r} is also an ordinary token of the vocabulary; "
                "give it a name that no text contains, such as '<EOS>'"
            )


def _pieces(texts: Iterator[str]) -> Iterator[str]:
    """Cut words into strings of bounded length, so that a huge text needs no more memory than many small ones."""
    return itertools.chain.from_iterable(iter_pieces(text, AFTER_WORD) for text in texts)


def _cut_words(text: str) -> Iterator[str]:
    """Cut a text inside runs of letters and digits, of marks or of white space that exceed LONGEST_WORD."""
    start = 0
    for run in _LONGER.finditer(text):
        for end in range(run.start() + LONGEST_WORD, run.end(), LONGEST_WORD):
            yield text[start:end]
            start = end
    yield text[start:]


def _interruptible(call: Callable[[Iterator[str]], Result], texts: Iterator[str]) -> Result:
    """Call a library function in a thread, so that Python handles signals while it runs.

    A signal before all texts are read ends the call at the next text; after that, the call continues in its thread.
    """
    result: Future[Result] = Future()
    all_read, stopped = threading.Event(), threading.Event()

    def until_stopped() -> Iterator[str]:
        for text in texts:
            if stopped.is_set():
                raise InterruptedError
            yield text
        all_read.set()

    def run() -> None:
        try:
            result.set_result(call(until_stopped()))
        except BaseException as error:  # also a panic in Rust
            result.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        return result.result()
    finally:
        stopped.set()
        if thread.is_alive() and not all_read.is_set():
            thread.join()  # the interpreter aborts if it exits while Rust calls Python


def _split_words(text: str) -> list[str]:
    return [word for word, _ in _WORDS.pre_tokenize_str(text)]


def id_tokenizer(vocab_size: int, end_ids: Iterable[int] = ()) -> Tokenizer:
    """A tokenizer whose texts are ids: "464 3290" is [464, 3290]. For a model without a tokenizer.

    end_ids: the ids that end a text; ids outside the vocabulary are ignored.
    """
    tokenizer = Tokenizer(word_level_json([str(token_id) for token_id in range(vocab_size)], ()))
    tokenizer.end_ids = tuple(token_id for token_id in end_ids if 0 <= token_id < vocab_size)
    return tokenizer
