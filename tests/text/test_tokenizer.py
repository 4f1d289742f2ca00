"""Encoding, decoding, and the attributes of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import OutputError, TokenizerError, UsageError
from foretell.text import Tokenizer, load_tokenizer, train_tokenizer, vocabulary_tokenizer

ANY_TEXT_KINDS = ["bytes", "bpe-gpt2", "bpe-qwen2"]
ALL_KINDS = ["characters", "words", "words-capped", *ANY_TEXT_KINDS]


@pytest.mark.parametrize("name", ANY_TEXT_KINDS)
@settings(max_examples=80, deadline=None)
@given(text=st.text())
def test_round_trip_of_any_unicode_text(trained: dict[str, Tokenizer], name: str, text: str) -> None:
    assert trained[name].decode(trained[name].encode(text)) == text


def test_round_trip_of_the_training_text_in_characters(trained: dict[str, Tokenizer], corpus: list[str]) -> None:
    for text in corpus:
        assert trained["characters"].decode(trained["characters"].encode(text)) == text


def test_words_decode_with_single_spaces(trained: dict[str, Tokenizer]) -> None:
    ids = trained["words"].encode("the cat,\n the  mat!")
    assert trained["words"].decode(ids) == "the cat , the mat !"


@given(text=st.text())
def test_ids_of_a_byte_tokenizer_are_the_bytes(trained: dict[str, Tokenizer], text: str) -> None:
    assert bytes(trained["bytes"].encode(text)) == text.encode()


@settings(deadline=None)
@given(texts=st.lists(st.text(), max_size=5))
def test_encode_batch_equals_encode_of_each_text(trained: dict[str, Tokenizer], texts: list[str]) -> None:
    for name in ANY_TEXT_KINDS:
        batch = trained[name].encode_batch(texts)
        assert [ids.tolist() for ids in batch] == [trained[name].encode(text) for text in texts]
        assert all(ids.dtype == np.int32 for ids in batch)


def test_empty_text_and_empty_ids(trained: dict[str, Tokenizer]) -> None:
    for name in ALL_KINDS:
        assert trained[name].encode("") == []
        assert trained[name].encode_long("").tolist() == []
        assert trained[name].decode([]) == ""
    assert trained["bytes"].encode_batch([]) == []


@pytest.mark.parametrize("name", ALL_KINDS)
def test_lone_surrogate_is_refused(trained: dict[str, Tokenizer], name: str) -> None:
    for encode in (trained[name].encode, trained[name].encode_long, lambda text: trained[name].encode_batch([text])):
        with pytest.raises(TokenizerError, match=r"lone surrogate \(U\+D800\) at character 3"):
            encode("the\ud800")
        with pytest.raises(TokenizerError, match="the locale's encoding does not have: export LC_ALL=C.UTF-8"):
            encode("caf\udcc3\udca9")


def test_character_outside_the_vocabulary_is_named_with_its_code_point(trained: dict[str, Tokenizer]) -> None:
    for encode in (trained["characters"].encode, trained["characters"].encode_long):
        with pytest.raises(TokenizerError, match=r"the character 'ø' \(U\+00F8\) in 'the ø' is not in") as caught:
            encode("the øre")
        assert "\n" not in str(caught.value)


def test_word_outside_the_vocabulary_is_named_with_the_nearest_word(trained: dict[str, Tokenizer]) -> None:
    with pytest.raises(TokenizerError, match=r"the word 'therr' is not in .* did you mean 'there'\?"):
        trained["words"].encode("the cat therr")
    with pytest.raises(TokenizerError, match="the word 'therr'"):
        trained["words"].encode_batch(["the cat", "therr"])


def test_limited_word_vocabulary_uses_the_unknown_token(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["words-capped"]
    assert tokenizer.vocab_size == 12
    assert tokenizer.pieces(tokenizer.encode("the zebra")) == ["the", "<|unknown|>"]


def test_a_word_outside_the_vocabulary_is_not_a_token(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["words-capped"]
    assert tokenizer.id_of("the") == tokenizer.encode("the")[0]
    assert tokenizer.id_of("<|unknown|>") == tokenizer.unknown_id
    with pytest.raises(UsageError, match="'zebra' is not in the vocabulary of this model"):
        tokenizer.id_of("zebra")
    with pytest.raises(UsageError, match=r"'the the' is 2 tokens of this model: 'the', 'the'"):
        tokenizer.id_of("the the")


@pytest.mark.parametrize(("text", "is_logged"), [("the zebra", False), ("the zebra zebra", True), ("", False)])
def test_data_of_mostly_unknown_words_are_logged(
    trained: dict[str, Tokenizer], caplog: pytest.LogCaptureFixture, text: str, is_logged: bool
) -> None:
    for name in ("words-capped", "bytes"):
        trained[name].note_unknown(trained[name].encode(text))
    line = "vocabulary  67% of the tokens are <|unknown|>: words that it does not have"
    assert caplog.messages == ([line] if is_logged else [])


@pytest.mark.parametrize("name", ALL_KINDS)
@pytest.mark.parametrize("read", [Tokenizer.decode, Tokenizer.pieces, lambda tokenizer, ids: tokenizer.text_of(ids[1])])
def test_unknown_id_is_refused(
    trained: dict[str, Tokenizer], name: str, read: Callable[[Tokenizer, list[int]], object]
) -> None:
    for bad in (-1, trained[name].vocab_size, 2**40):
        with pytest.raises(TokenizerError, match=f"{bad} is not a token id"):
            read(trained[name], [0, bad])


def test_decode_accepts_numpy_arrays(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["bpe-gpt2"]
    assert tokenizer.decode(tokenizer.encode_long("the cat")) == "the cat"


def test_readable_text_of_a_token(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["bytes"]
    assert tokenizer.text_of(0x20) == " "
    assert tokenizer.text_of(0x0A) == "\n"
    assert tokenizer.text_of(0xE2) == "<0xE2>"
    assert tokenizer.text_of(256) == "<|endoftext|>"
    assert tokenizer.pieces([0x20, 0xE2, 256]) == ["Ġ", "â", "<|endoftext|>"]
    assert trained["words"].text_of(trained["words"].encode("cat")[0]) == "cat"


def test_skip_special_leaves_out_special_tokens(trained: dict[str, Tokenizer]) -> None:
    for name in ("bytes", "bpe-gpt2", "characters"):
        tokenizer = trained[name]
        assert tokenizer.end_id is not None
        ids = [*tokenizer.encode("the"), tokenizer.end_id, *tokenizer.encode("cat")]
        assert tokenizer.decode(ids) == "the<|endoftext|>cat"
        assert tokenizer.decode(ids, skip_special=True) == "thecat"


@pytest.mark.parametrize("name", ALL_KINDS)
def test_saving_and_loading_preserves_the_tokenizer(trained: dict[str, Tokenizer], name: str, tmp_path) -> None:
    saved = trained[name]
    saved.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path)
    for attribute in ("kind", "vocab_size", "start_id", "end_id", "special_tokens", "fingerprint"):
        assert getattr(loaded, attribute) == getattr(saved, attribute), attribute
    assert loaded.encode("the cat, the mat") == saved.encode("the cat, the mat")
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_saving_to_a_missing_folder_is_one_line(trained: dict[str, Tokenizer], tmp_path) -> None:
    with pytest.raises(OutputError, match="there is no folder"):
        trained["bytes"].save(tmp_path / "missing" / "tokenizer.json")


def test_fingerprint_identifies_a_tokenizer(corpus: list[str]) -> None:
    same = [train_tokenizer("characters", corpus).fingerprint for _ in range(2)]
    assert same[0] == same[1]
    assert len(same[0]) == 16
    assert int(same[0], 16) >= 0
    assert train_tokenizer("characters", ["abc"]).fingerprint != same[0]


def test_threads_with_and_without_special_tokens() -> None:
    tokenizer = train_tokenizer("bpe", ["the cat"], vocab_size=260)
    text = "the <|endoftext|> cat"
    expected = [tokenizer.encode(text, allow_special=True), tokenizer.encode(text)]
    assert expected[0] != expected[1]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda n: tokenizer.encode(text, allow_special=n % 2 == 0), range(400)))
    assert all(ids == expected[n % 2] for n, ids in enumerate(got))


def test_special_tokens_stay_forbidden_after_an_error(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["bpe-gpt2"]
    with pytest.raises(TokenizerError):
        tokenizer.encode("\ud800", allow_special=True)
    assert tokenizer.end_id not in tokenizer.encode("<|endoftext|>")


def test_ids_of_a_vocabulary_are_the_indices_of_its_list() -> None:
    tokenizer = vocabulary_tokenizer(["financial", "data", "analytics", "is", "awesome", "!"])
    assert tokenizer.encode("financial data analytics is awesome!") == [0, 1, 2, 3, 4, 5]
    assert (tokenizer.vocab_size, tokenizer.start_id, tokenizer.end_id, tokenizer.kind) == (6, None, None, "words")
