"""Training tokenizers: the vocabulary of each kind, determinism, and refused arguments."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import Interrupted, TokenizerError, UsageError, end_by_signal
from foretell.text import Tokenizer, train_lower_case_words, train_tokenizer, vocabulary_tokenizer
from foretell.text.tokenizer_training import LONGEST_WORD, _cut_words, _interruptible


def test_character_ids_are_sorted_with_the_end_token_last() -> None:
    tokenizer = train_tokenizer("characters", ["cab", "a\n"])
    assert tokenizer.encode("\nabc") == [0, 1, 2, 3]
    assert (tokenizer.end_id, tokenizer.vocab_size) == (4, 5)


def test_word_ids_follow_frequency_then_alphabet() -> None:
    tokenizer = train_tokenizer("words", ["b a, b\nc, b a"])
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == ["b", ",", "a", "c", "<|endoftext|>"]


def test_punctuation_marks_are_words() -> None:
    tokenizer = train_tokenizer("words", ["Wait... (really?)"])
    assert tokenizer.pieces(tokenizer.encode("Wait... (really?)")) == ["Wait", ".", ".", ".", "(", "really", "?", ")"]


def test_lower_case_words_are_counted_and_read_without_case() -> None:
    tokenizer = train_lower_case_words(["The film, THE Σοφός the İ"], vocab_size=5)
    assert tokenizer.pieces(range(5)) == ["the", ",", "film", "<|unknown|>", "<|endoftext|>"]
    assert tokenizer.encode("tHe FILM") == [0, 2]
    whole = train_lower_case_words(["THE ΣΟΦΌΣ İSTANBUL"])
    assert whole.decode(whole.encode("The ΣΟΦΌΣ İstanbul")) == "the σοφόσ i̇stanbul"
    assert (whole.kind, whole.vocab_size) == ("words", 4)


@settings(max_examples=100, deadline=None)
@given(text=st.text(min_size=1).filter(str.strip), kind=st.sampled_from(["characters", "words"]))
def test_vocabulary_covers_its_training_text(text: str, kind: str) -> None:
    tokenizer = train_tokenizer(kind, [text])
    written = "".join(tokenizer.pieces(tokenizer.encode(text)))
    assert "".join(written.split()) == "".join(text.split())


def test_vocab_size_of_words_counts_every_id() -> None:
    tokenizer = train_tokenizer("words", ["a a a b b c"], vocab_size=4)
    assert tokenizer.pieces(range(4)) == ["a", "b", "<|unknown|>", "<|endoftext|>"]
    assert tokenizer.encode("a c b") == [0, 2, 1]


@pytest.mark.parametrize("split", ["gpt2", "qwen2"])
def test_bpe_has_every_byte_and_the_requested_size(corpus: list[str], split: str) -> None:
    tokenizer = train_tokenizer("bpe", corpus, vocab_size=300, split=split)
    assert tokenizer.vocab_size == 300
    assert tokenizer.end_id == 299
    assert tokenizer.start_id is None
    assert len({tokenizer.encode(chr(n))[0] for n in range(128)}) == 128


def test_smallest_bpe_has_only_bytes() -> None:
    tokenizer = train_tokenizer("bpe", ["abc abc"], vocab_size=257)
    assert len(tokenizer.encode("abc é")) == 6


def test_splits_differ_in_numbers() -> None:
    texts = ["1999 1999 1999 1999"]
    gpt2, qwen2 = (train_tokenizer("bpe", texts, vocab_size=270, split=split) for split in ("gpt2", "qwen2"))
    assert len(gpt2.encode("1999")) == 1
    assert len(qwen2.encode("1999")) == 4


def test_long_text_trains_the_same_tokenizer_as_its_lines(corpus: list[str]) -> None:
    lines = ["the cat sat\n" * 3, "on that mat, 1 2 3\n"] * 4000
    whole, parts = (train_tokenizer("bpe", texts, vocab_size=280) for texts in (["".join(lines)], lines))
    assert whole.fingerprint == parts.fingerprint


@pytest.mark.parametrize("word", ["abcdefgh" * 500, "é1" * 3000, "-_=." * 1500, " " * 5000, "\n" * 5000])
def test_the_trainer_gets_no_word_longer_than_the_limit(word: str) -> None:
    text = f"before {word} after, and more text"
    pieces = list(_cut_words(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) < 1.1 * LONGEST_WORD
    tokenizer = train_tokenizer("bpe", [text], vocab_size=270)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.sampled_from(["a", "7", "é", "\u0301", "-", "_", " ", "\n", "'s", "東"]).map(lambda c: c * 999))
)
def test_words_within_the_limit_are_not_cut(words: list[str]) -> None:
    """So the vocabulary of ordinary text is the same with and without the limit."""
    text = "".join(word + ("x. " if word.isspace() else " x ") for word in words)
    assert list(_cut_words(text)) == [text]


@pytest.mark.parametrize("texts", [["a", "b"], itertools.repeat("a")], ids=["all read", "reading"])
def test_a_signal_ends_training_while_the_library_runs(texts: Iterable[str]) -> None:
    """A call that blocks or reads forever is in place of the library."""
    end, failures = threading.Event(), list[type[BaseException]]()

    def call(pieces: Iterator[str]) -> None:
        list(itertools.islice(pieces, 3))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        try:
            list(pieces)
        except InterruptedError as error:
            failures.append(type(error))
            raise
        end.wait(60)

    before = signal.signal(signal.SIGTERM, end_by_signal)
    try:
        with pytest.raises(Interrupted):
            _interruptible(call, iter(texts))
    finally:
        end.set()
        signal.signal(signal.SIGTERM, before)
    assert failures == ([] if isinstance(texts, list) else [InterruptedError])


@pytest.mark.parametrize("kind", ["characters", "words", "bytes", "bpe"])
def test_training_is_deterministic(corpus: list[str], kind: str) -> None:
    assert len({train_tokenizer(kind, iter(corpus)).fingerprint for _ in range(3)}) == 1


def test_training_is_deterministic_across_processes(corpus: list[str]) -> None:
    here = [train_tokenizer(kind, corpus).fingerprint for kind in ("words", "bpe")]
    code = (
        "import sys; from foretell.text import train_tokenizer\n"
        f"print(*(train_tokenizer(kind, {corpus!a}).fingerprint for kind in ('words', 'bpe')))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == here


def test_kind_of_each_trained_tokenizer(trained: dict[str, Tokenizer]) -> None:
    kinds = {name: tokenizer.kind for name, tokenizer in trained.items()}
    assert kinds == {
        "characters": "characters",
        "words": "words",
        "words-capped": "words",
        "bytes": "bytes",
        "bpe-gpt2": "bpe",
        "bpe-qwen2": "bpe",
    }
    assert train_tokenizer("bpe", ["ab ab ab"], vocab_size=258).kind == "bpe"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "bpee", "texts": ["a"]}, r"unknown tokenizer kind 'bpee', did you mean 'bpe'\?"),
        ({"kind": "sentencepiece", "texts": ["a"]}, "unknown tokenizer kind 'sentencepiece'.*characters, words, bytes"),
        ({"kind": "bpe", "texts": ["a"], "split": "gpt3"}, r"unknown tokenizer split 'gpt3', did you mean 'gpt2'\?"),
        ({"kind": "bytes", "texts": ["a"], "split": "qwen2"}, "split='qwen2' is for kind 'bpe'"),
        ({"kind": "bpe", "texts": ["a"], "vocab_size": 256}, "vocab_size=256 is too small.*257"),
        ({"kind": "words", "texts": ["a"], "vocab_size": 2}, "vocab_size=2 leaves no room"),
        ({"kind": "bytes", "texts": ["a"], "vocab_size": 300}, "leave vocab_size out"),
        ({"kind": "characters", "texts": ["a"], "vocab_size": 300}, "leave vocab_size out"),
        ({"kind": "bytes", "texts": []}, "there is no text"),
        ({"kind": "bpe", "texts": ["", ""]}, "there is no text"),
        ({"kind": "words", "texts": [" \n"]}, "only white space"),
        ({"kind": "bpe", "texts": "one string"}, "put it in a list"),
        ({"kind": "bpe", "texts": ["fine", "a\ud800"]}, "lone surrogate"),
        ({"kind": "characters", "texts": ["fine", "a\ud800"]}, "lone surrogate"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises((TokenizerError, UsageError), match=message) as caught:
        train_tokenizer(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "special", "message"),
    [
        ([], [], "at least one word"),
        (["a", ""], [], "no word may be empty"),
        (["a", "b", "a"], [], "'a' is in the vocabulary 2 times"),
        (["don't"], [], r"would be read as \['don', \"'\", 't'\]"),
        (["two words"], [], "would be read as"),
    ],
)
def test_bad_vocabulary_is_refused(words: list[str], special: list[str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        vocabulary_tokenizer(words, special=special)


def test_special_tokens_that_are_not_words_get_the_last_ids() -> None:
    tokenizer = vocabulary_tokenizer(["a", "b"], special=["<EOS>"])
    assert (tokenizer.special_tokens, tokenizer.end_id) == ({"<EOS>": 2}, 2)
