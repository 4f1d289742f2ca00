"""Training: what each kind's vocabulary is, that it is deterministic, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import TokenizerError
from foretell.text import Tokenizer, train_tokenizer, vocabulary_tokenizer


def test_characters_are_numbered_in_their_sorted_order_with_the_end_token_last() -> None:
    tokenizer = train_tokenizer("characters", ["cab", "a\n"])
    assert tokenizer.encode("\nabc") == [0, 1, 2, 3]
    assert (tokenizer.end_id, tokenizer.vocab_size) == (4, 5)


def test_words_are_numbered_by_frequency_then_alphabet() -> None:
    tokenizer = train_tokenizer("words", ["b a, b\nc, b a"])
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == ["b", ",", "a", "c", "<|endoftext|>"]


def test_punctuation_is_its_own_word() -> None:
    tokenizer = train_tokenizer("words", ["Wait... (really?)"])
    assert tokenizer.pieces(tokenizer.encode("Wait... (really?)")) == ["Wait", ".", ".", ".", "(", "really", "?", ")"]


@settings(max_examples=100, deadline=None)
@given(text=st.text(min_size=1).filter(str.strip), kind=st.sampled_from(["characters", "words"]))
def test_a_vocabulary_can_write_the_text_it_was_made_from(text: str, kind: str) -> None:
    tokenizer = train_tokenizer(kind, [text])
    written = "".join(tokenizer.pieces(tokenizer.encode(text)))
    assert "".join(written.split()) == "".join(text.split())


def test_a_word_cap_counts_every_id() -> None:
    tokenizer = train_tokenizer("words", ["a a a b b c"], vocab_size=4)
    assert tokenizer.pieces(range(4)) == ["a", "b", "<|unknown|>", "<|endoftext|>"]
    assert tokenizer.encode("a c b") == [0, 2, 1]


@pytest.mark.parametrize("split", ["gpt2", "qwen2"])
def test_bpe_has_every_byte_and_the_size_that_was_asked_for(corpus: list[str], split: str) -> None:
    tokenizer = train_tokenizer("bpe", corpus, vocab_size=300, split=split)
    assert tokenizer.vocab_size == 300
    assert tokenizer.end_id == 299
    assert tokenizer.start_id is None
    assert len({tokenizer.encode(chr(n))[0] for n in range(128)}) == 128


def test_the_smallest_bpe_has_bytes_alone() -> None:
    tokenizer = train_tokenizer("bpe", ["abc abc"], vocab_size=257)
    assert len(tokenizer.encode("abc é")) == 6


def test_the_two_splits_read_numbers_differently() -> None:
    texts = ["1999 1999 1999 1999"]
    gpt2, qwen2 = (train_tokenizer("bpe", texts, vocab_size=270, split=split) for split in ("gpt2", "qwen2"))
    assert len(gpt2.encode("1999")) == 1
    assert len(qwen2.encode("1999")) == 4


def test_one_long_text_trains_the_same_tokenizer_as_its_lines(corpus: list[str]) -> None:
    lines = ["the cat sat\n" * 3, "on that mat, 1 2 3\n"] * 4000
    whole, parts = (train_tokenizer("bpe", texts, vocab_size=280) for texts in (["".join(lines)], lines))
    assert whole.fingerprint == parts.fingerprint


@pytest.mark.parametrize("kind", ["characters", "words", "bytes", "bpe"])
def test_the_same_texts_give_the_same_tokenizer(corpus: list[str], kind: str) -> None:
    assert len({train_tokenizer(kind, iter(corpus)).fingerprint for _ in range(3)}) == 1


def test_another_process_trains_the_same_tokenizer(corpus: list[str]) -> None:
    here = [train_tokenizer(kind, corpus).fingerprint for kind in ("words", "bpe")]
    code = (
        "import sys; from foretell.text import train_tokenizer\n"
        f"print(*(train_tokenizer(kind, {corpus!a}).fingerprint for kind in ('words', 'bpe')))"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == here


def test_kinds_are_told_from_their_own_structure(trained: dict[str, Tokenizer]) -> None:
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
def test_what_cannot_be_trained_is_refused_in_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
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
def test_a_vocabulary_that_cannot_work_is_refused(words: list[str], special: list[str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        vocabulary_tokenizer(words, special=special)


def test_special_names_that_are_not_words_come_after_them() -> None:
    tokenizer = vocabulary_tokenizer(["a", "b"], special=["<EOS>"])
    assert (tokenizer.special_tokens, tokenizer.end_id) == ({"<EOS>": 2}, 2)
