"""Streams add up to decoded text for any ids and every kind of decoder; stop strings are those of the whole text."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from foretell.errors import TokenizerError, UsageError
from foretell.text import StopStrings, Tokenizer, train_tokenizer
from foretell.text.streaming import ByteStream, WholeStream, WindowStream

BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0xFF, 0x20)]
PIECES = ["<unk>", "<s>", "</s>", "▁", "▁▁", "▁a", "b", "▁the", "'", "é", "▁é▁", " b", *BYTES]


def sentencepiece(decoder: decoders.Decoder) -> Tokenizer:
    vocabulary = {piece: token_id for token_id, piece in enumerate(PIECES)}
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
    model = models.WordPiece({word: token_id for token_id, word in enumerate(words)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[SEP]"])
    return Tokenizer(json.loads(backend.to_str()))


def byte_level_with_added_tokens() -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(json.dumps(train_tokenizer("bytes", ["a"]).to_json()))
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
@given(data=st.data())
def test_streamed_text_equals_decoded_text_for_any_ids(name: str, skip_special: bool, data: st.DataObject) -> None:
    tokenizer = made(name)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    stream = tokenizer.stream(skip_special)
    assert type(stream) is STREAMS[name][1]
    for _ in range(2):  # a finished stream can be used again
        streamed = "".join([*map(stream.push, ids), stream.finish()])
        assert streamed == tokenizer.decode(ids, skip_special)


@settings(max_examples=80, deadline=None)
@given(text=st.text(), junk=st.lists(st.integers(0, 256), max_size=6))
def test_invalid_bytes_around_valid_text_decode_as_in_the_library(text: str, junk: list[int]) -> None:
    tokenizer = made("bytes")
    ids = [*junk, *tokenizer.encode(text), *junk]
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids)


def test_incomplete_character_is_held_back() -> None:
    stream = made("bytes").stream()
    assert [stream.push(byte) for byte in "a€".encode()] == ["a", "", "", "€"]
    assert stream.push(0xE2) == ""
    assert stream.finish() == "\ufffd"


def test_special_token_ends_an_incomplete_character() -> None:
    stream = made("bytes").stream()
    assert [stream.push(token) for token in (0xE2, 256)] == ["", "\ufffd<|endoftext|>"]


def test_words_are_streamed_one_by_one() -> None:
    tokenizer = made("words")
    stream = tokenizer.stream()
    assert [stream.push(token) for token in tokenizer.encode("the cat sat on")] == ["the", " cat", " sat", " on"]


def test_window_stream_keeps_few_tokens() -> None:
    tokenizer = made("llama")
    stream = tokenizer.stream()
    assert isinstance(stream, WindowStream)
    for token in tokenizer.encode("▁the" * 500):
        stream.push(token)
        assert len(stream._ids) <= 5


def test_token_after_empty_tokens_is_not_decoded_as_the_first() -> None:
    """The decoder strips a space from the text's beginning; a window of empty tokens would look like one."""
    tokenizer = sentencepiece(
        decoders.Sequence([decoders.Replace("▁", ""), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    )
    ids = [PIECES.index(piece) for piece in ["b", *["▁"] * 6, " b"]]
    stream = tokenizer.stream()
    assert isinstance(stream, WindowStream)
    assert "".join([*map(stream.push, ids), stream.finish()]) == tokenizer.decode(ids) == "b b"


def test_streams_refuse_unknown_ids() -> None:
    for name in STREAMS:
        with pytest.raises(TokenizerError, match="is not a token id"):
            made(name).stream().push(made(name).vocab_size)


# --- stop strings ----------------------------------------------------------------------------------------------------


def cut(text: str, positions: list[int]) -> list[str]:
    edges = [0, *sorted(position % (len(text) + 1) for position in positions), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@settings(max_examples=250, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=25),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
    positions=st.lists(st.integers(0, 100), max_size=8),
)
def test_result_is_the_text_before_the_earliest_stop(text: str, stops: list[str], positions: list[int]) -> None:
    stream = StopStrings(stops)
    passed = "".join([*map(stream.push, cut(text, positions)), stream.finish()])
    matches = [text.find(stop) for stop in stops if stop in text]
    assert passed == text[: min(matches, default=len(text))]
    assert stream.stopped is bool(matches)


def test_text_that_cannot_begin_a_stop_passes_at_once() -> None:
    stream = StopStrings(["\nUser:"])
    assert stream.push("Hello") == "Hello"
    assert stream.push(" there\nUs") == " there"
    assert stream.push("ually") == "\nUsually"
    assert (stream.push("!\nUser: more"), stream.stopped) == ("!", True)
    assert (stream.push("even more"), stream.finish()) == ("", "")


def test_unfinished_stop_that_begins_earlier_is_waited_for() -> None:
    stream = StopStrings(["abcd", "c"])
    assert (stream.push("xabc"), stream.stopped) == ("x", False)
    assert (stream.push("d"), stream.stopped) == ("", True)


def test_stop_inside_an_unfinished_one_is_used_at_the_end() -> None:
    stream = StopStrings(["abcd", "c"])
    assert stream.push("abc") == ""
    assert (stream.finish(), stream.stopped) == ("ab", True)


@pytest.mark.parametrize("stops", [[""], ["a", ""], "abc"])
def test_empty_stop_string_is_refused(stops: list[str]) -> None:
    with pytest.raises(UsageError, match="is empty|a list of strings"):
        StopStrings(stops)
