"""A long text in pieces has the ids of the whole."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from foretell.text import Tokenizer, train_tokenizer
from foretell.text.pieces import AFTER_WORD, ANYWHERE, iter_pieces, safe_cut
from foretell.text.train import SPLITS

# Everything the patterns look at: letters, digits, marks, contractions, each kind of white space, joined emoji.
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
def test_pieces_encoded_apart_give_the_ids_of_the_whole(
    trained: dict[str, Tokenizer], name: str, size: int, text: str
) -> None:
    tokenizer = trained[name]
    cut = safe_cut(tokenizer.document())
    assert cut is not None
    parts = list(iter_pieces(text, cut, size))
    assert "".join(parts) == text
    assert [token for ids in tokenizer.encode_batch(parts) for token in ids] == tokenizer.encode(text)


def test_a_wrong_cut_would_be_noticed(trained: dict[str, Tokenizer]) -> None:
    """The check above can fail: cut anywhere, and byte-level BPE gives other ids."""
    tokenizer = trained["bpe-gpt2"]
    parts = list(iter_pieces("the then there", ANYWHERE, 1))
    assert [token for ids in tokenizer.encode_batch(parts) for token in ids] != tokenizer.encode("the then there")


@pytest.mark.parametrize("name", ["characters", "words", "bytes", "bpe-gpt2", "bpe-qwen2"])
def test_a_text_of_many_pieces_has_the_ids_of_encode(
    trained: dict[str, Tokenizer], name: str, corpus: list[str]
) -> None:
    text = "".join(corpus) * 800  # three pieces and more
    assert len(list(iter_pieces(text, safe_cut(trained[name].document())))) > 2
    assert trained[name].encode_long(text).tolist() == trained[name].encode(text)


@given(text=st.text(alphabet="ab ,\n中", max_size=50), size=st.integers(1, 10))
def test_pieces_are_never_empty_and_add_up(text: str, size: int) -> None:
    for cut in (ANYWHERE, AFTER_WORD, None):
        parts = list(iter_pieces(text, cut, size))
        assert "".join(parts) == text
        assert all(parts)
    assert all(len(part) == size for part in list(iter_pieces(text, ANYWHERE, size))[:-1])


def document_with(**sections: object) -> dict:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    return json.loads(backend.to_str()) | sections


def test_a_tokenizer_that_splits_in_an_unknown_way_is_not_cut() -> None:
    prefixed = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    assert safe_cut(document_with(pre_tokenizer=SPLITS["gpt2"])) is AFTER_WORD
    for split in (None, prefixed, {"type": "Metaspace"}, {"type": "Digits", "individual_digits": True}):
        assert safe_cut(document_with(pre_tokenizer=split)) is None


def test_a_normalizer_other_than_nfc_forbids_cutting() -> None:
    split = SPLITS["qwen2"]
    assert safe_cut(document_with(pre_tokenizer=split, normalizer={"type": "NFC"})) is AFTER_WORD
    assert safe_cut(document_with(pre_tokenizer=split, normalizer={"type": "NFKC"})) is None


@pytest.mark.parametrize(
    ("token", "allowed"),
    [({"content": "<think>"}, True), ({"content": "a b"}, False), ({"content": "a", "lstrip": True}, False)],
)
def test_an_added_token_that_could_reach_over_a_cut_forbids_it(token: dict, allowed: bool) -> None:
    flags = {"id": 3, "special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
    document = document_with(pre_tokenizer=SPLITS["gpt2"], added_tokens=[flags | token])
    assert (safe_cut(document) is not None) is allowed


def test_a_tokenizer_with_nfc_gives_the_same_ids_in_pieces() -> None:
    document = train_tokenizer("bpe", ["café the e\u0301 a\u0300 "], vocab_size=262, split="qwen2").document()
    tokenizer = Tokenizer({**document, "normalizer": {"type": "NFC"}})
    text = "the \u0301cafe\u0301 e\u0301, a\u0300 1.\u0300 " * 9000
    assert len(list(iter_pieces(text, AFTER_WORD))) > 1
    assert tokenizer.encode_long(text).tolist() == tokenizer.encode(text)
