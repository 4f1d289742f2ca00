"""Streamed text adds up to decoded text, for any ids and every family of decoder."""

from __future__ import annotations

import json
from functools import cache

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from foretell.errors import TokenizerError
from foretell.text import Tokenizer, train_tokenizer
from foretell.text.stream import ByteStream, WholeStream, WindowStream

BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0xFF, 0x20)]
PIECES = ["<unk>", "<s>", "</s>", "▁", "▁▁", "▁a", "b", "▁the", "'", "é", "▁é▁", " b", *BYTES]


def sentencepiece(decoder: decoders.Decoder) -> Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoder
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(json.loads(backend.to_str()))


def llama(strip: bool) -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentencepiece(decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps))


def suffixed() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({"a</w>": 0, "b": 1, "</w>": 2, "a": 3}, [], end_of_word_suffix="</w>"))
    backend.decoder = decoders.BPEDecoder("</w>")
    return Tokenizer(json.loads(backend.to_str()))


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "do", "not", "##s", ".", "don", "'", "t", "[SEP]"]
    model = models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[SEP]"])
    return Tokenizer(json.loads(backend.to_str()))


def byte_level_with_added_tokens() -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(json.dumps(train_tokenizer("bytes", ["a"]).document()))
    backend.add_special_tokens(["<|pad|>"])
    backend.add_tokens([AddedToken("zwei Wörter"), AddedToken("größe")])
    return Tokenizer(json.loads(backend.to_str()))


STREAMS = {
    "bytes": (byte_level_with_added_tokens, ByteStream),
    "bpe": (lambda: train_tokenizer("bpe", ["the cat € é the € é 👩‍👩‍👧"], vocab_size=275), ByteStream),
    "characters": (lambda: train_tokenizer("characters", ["ab é\n"]), WindowStream),
    "words": (lambda: train_tokenizer("words", ["the cat sat, on"]), WindowStream),
    "llama": (lambda: llama(strip=True), WindowStream),
    "gemma": (lambda: llama(strip=False), WindowStream),
    "metaspace": (lambda: sentencepiece(decoders.Metaspace()), WindowStream),
    "gpt1": (suffixed, WindowStream),
    "wordpiece": (wordpiece, WholeStream),
}


@cache
def made(name: str) -> Tokenizer:
    return STREAMS[name][0]()


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("skip_special", [False, True])
@settings(max_examples=80, deadline=None)
@given(numbers=st.data())
def test_streamed_text_is_decoded_text_for_any_ids(name: str, skip_special: bool, numbers: st.DataObject) -> None:
    tokenizer = made(name)
    ids = numbers.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    stream = tokenizer.stream(skip_special)
    assert type(stream) is STREAMS[name][1]
    for _ in range(2):  # a finished stream is as new
        streamed = "".join([*map(stream.push, ids), stream.finish()])
        assert streamed == tokenizer.decode(ids, skip_special)


@settings(max_examples=80, deadline=None)
@given(text=st.text(), junk=st.lists(st.integers(0, 256), max_size=6))
def test_bytes_around_valid_text_decode_as_the_library_does(text: str, junk: list[int]) -> None:
    tokenizer = made("bytes")
    ids = [*junk, *tokenizer.encode(text), *junk]
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)


def test_half_a_character_is_held_back() -> None:
    stream = made("bytes").stream()
    assert [stream.push(byte) for byte in "a€".encode()] == ["a", "", "", "€"]
    assert stream.push(0xE2) == ""
    assert stream.finish() == "\ufffd"


def test_a_special_token_ends_an_unfinished_character() -> None:
    stream = made("bytes").stream()
    assert [stream.push(token) for token in (0xE2, 256)] == ["", "\ufffd<|endoftext|>"]


def test_words_appear_as_they_come() -> None:
    tokenizer = made("words")
    stream = tokenizer.stream()
    assert [stream.push(token) for token in tokenizer.encode("the cat sat on")] == ["the", " cat", " sat", " on"]


def test_a_long_stream_is_decoded_a_few_tokens_at_a_time() -> None:
    tokenizer = made("llama")
    stream = tokenizer.stream()
    assert isinstance(stream, WindowStream)
    for token in tokenizer.encode("▁the" * 500):
        stream.push(token)
        assert len(stream._ids) <= 5


def test_tokens_without_text_do_not_make_the_next_one_the_first() -> None:
    """The decoder strips a space from the text's beginning; a window of empty tokens would look like one."""
    tokenizer = sentencepiece(
        decoders.Sequence([decoders.Replace("▁", ""), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    )
    ids = [PIECES.index(piece) for piece in ["b", *["▁"] * 6, " b"]]
    stream = tokenizer.stream()
    assert isinstance(stream, WindowStream)
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids) == "b b"


def test_an_id_that_is_no_token_is_refused_in_a_stream() -> None:
    for name in STREAMS:
        with pytest.raises(TokenizerError, match="is not a token id"):
            made(name).stream().push(made(name).vocab_size)
