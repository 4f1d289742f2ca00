"""A long text encoded in pieces has the same ids as the whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from foretell.text import Tokenizer, train_lower_case_words, train_tokenizer
from foretell.text.streaming import AFTER_WORD, ANYWHERE, PIECE_SIZE, iter_pieces, safe_cut
from foretell.text.tokenizer_training import SPLITS

# All that the patterns distinguish: letters, digits, marks, contractions, each kind of white space, joined emoji.
AWKWARD = st.lists(
    st.sampled_from(
        ["a", "the", "'s", "'", "1", "23", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u2028", "\x1c", ".", ",",
         "。", "、", "é", "e\u0301", "²", "Ⅷ", "_", "👩‍👩‍👧", "<|endoftext|>", "-", "東京", "\u0301", "\u200b", "ǅ"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("name", ["bytes", "bpe-gpt2", "bpe-qwen2", "words-capped"])
@pytest.mark.parametrize("size", [1, 7])
@settings(max_examples=100, deadline=None)
@given(text=AWKWARD)
def test_ids_of_pieces_equal_those_of_the_whole(trained: dict[str, Tokenizer], name: str, size: int, text: str) -> None:
    tokenizer = trained[name]
    cut = safe_cut(tokenizer.to_json())
    assert cut is not None
    parts = list(iter_pieces(text, cut, size))
    assert "".join(parts) == text
    assert [token for ids in tokenizer.encode_batch(parts) for token in ids] == tokenizer.encode(text)


def test_unsafe_cut_changes_ids(trained: dict[str, Tokenizer]) -> None:
    """The test above can fail: byte-level BPE cut anywhere gives other ids."""
    tokenizer = trained["bpe-gpt2"]
    parts = list(iter_pieces("the then there", ANYWHERE, 1))
    assert [token for ids in tokenizer.encode_batch(parts) for token in ids] != tokenizer.encode("the then there")


@pytest.mark.parametrize("name", ["characters", "words", "bytes", "bpe-gpt2", "bpe-qwen2"])
def test_encode_long_equals_encode_for_several_pieces(
    trained: dict[str, Tokenizer], name: str, corpus: list[str]
) -> None:
    text = "".join(corpus) * 800  # three pieces and more
    assert len(list(iter_pieces(text, safe_cut(trained[name].to_json())))) > 2
    assert trained[name].encode_long(text).tolist() == trained[name].encode(text)


def test_long_texts_of_a_batch_are_encoded_in_pieces(trained: dict[str, Tokenizer], monkeypatch) -> None:
    lengths: list[int] = []

    def groups(texts: Iterable[str], *_: object) -> Iterator[list[str]]:
        for text in texts:
            lengths.append(len(text))
            yield [text]

    monkeypatch.setattr("foretell.text.tokenizer.in_groups", groups)
    texts = ["the cat", "the cat " * 30_000, "", "a dog"]
    encoded = trained["bpe-gpt2"].encode_batch(texts)
    assert [ids.tolist() for ids in encoded] == [trained["bpe-gpt2"].encode(text) for text in texts]
    assert max(lengths) < 1.1 * PIECE_SIZE < len(texts[1])


@given(text=st.text(alphabet="ab ,\n中", max_size=50), size=st.integers(1, 10))
def test_pieces_are_not_empty_and_add_up_to_the_text(text: str, size: int) -> None:
    for cut in (ANYWHERE, AFTER_WORD, None):
        parts = list(iter_pieces(text, cut, size))
        assert "".join(parts) == text
        assert all(parts)
    assert all(len(part) == size for part in list(iter_pieces(text, ANYWHERE, size))[:-1])


def content_with(**sections: object) -> dict:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    return json.loads(backend.to_str()) | sections


def test_unknown_pre_tokenizer_forbids_cutting() -> None:
    prefixed = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    assert safe_cut(content_with(pre_tokenizer=SPLITS["gpt2"])) is AFTER_WORD
    for split in (None, prefixed, {"type": "Metaspace"}, {"type": "Digits", "individual_digits": True}):
        assert safe_cut(content_with(pre_tokenizer=split)) is None


def test_other_normalizer_than_nfc_or_lower_case_forbids_cutting() -> None:
    split = SPLITS["qwen2"]
    assert safe_cut(content_with(pre_tokenizer=split, normalizer={"type": "Lowercase"})) is AFTER_WORD
    assert safe_cut(content_with(pre_tokenizer=split, normalizer={"type": "NFC"})) is AFTER_WORD
    assert safe_cut(content_with(pre_tokenizer=split, normalizer={"type": "NFKC"})) is None


@pytest.mark.parametrize(
    ("token", "allowed"),
    [({"content": "<think>"}, True), ({"content": "a b"}, False), ({"content": "a", "lstrip": True}, False)],
)
def test_added_token_that_could_reach_across_a_cut_forbids_cutting(token: dict, allowed: bool) -> None:
    flags = {"id": 3, "special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
    content = content_with(pre_tokenizer=SPLITS["gpt2"], added_tokens=[flags | token])
    assert (safe_cut(content) is not None) is allowed


def test_encode_long_equals_encode_in_lower_case() -> None:
    tokenizer = train_lower_case_words(["the Cafe İ is Öpen"], vocab_size=6)
    text = "The \u0301cafe\u0301 İ, IS\u0300 1.\u0300 Öpen " * 5000
    assert len(list(iter_pieces(text, AFTER_WORD))) > 1
    assert tokenizer.encode_long(text).tolist() == tokenizer.encode(text)


def test_encode_long_equals_encode_with_nfc() -> None:
    content = train_tokenizer("bpe", ["café the e\u0301 a\u0300 "], vocab_size=262, split="qwen2").to_json()
    tokenizer = Tokenizer({**content, "normalizer": {"type": "NFC"}})
    text = "the \u0301cafe\u0301 e\u0301, a\u0300 1.\u0300 " * 9000
    assert len(list(iter_pieces(text, AFTER_WORD))) > 1
    assert tokenizer.encode_long(text).tolist() == tokenizer.encode(text)
