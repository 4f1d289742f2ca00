"""Text never becomes a special token unless the caller allows it; no setting of a file changes a text."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from foretell.errors import TokenizerError
from foretell.text import Tokenizer, train_tokenizer, vocabulary_tokenizer
from foretell.text.tokenizer_json import BYTE_TO_CHARACTER, NOT_IN_UTF8

END = "<|endoftext|>"


def wrapped(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(json.loads(backend.to_str()))


@pytest.mark.parametrize("name", ["bytes", "bpe-gpt2", "bpe-qwen2"])
@settings(max_examples=60, deadline=None)
@given(before=st.text(max_size=10), after=st.text(max_size=10))
def test_end_token_inside_a_text_stays_text(trained: dict[str, Tokenizer], name: str, before: str, after: str) -> None:
    tokenizer, text = trained[name], before + END + after
    assert tokenizer.end_id not in tokenizer.encode(text)
    assert tokenizer.end_id not in tokenizer.encode_long(text)
    assert tokenizer.end_id not in tokenizer.encode_batch([text])[0]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    allowed = tokenizer.encode(text, allow_special=True)
    assert allowed == [*tokenizer.encode(before), tokenizer.end_id, *tokenizer.encode(after)]


def test_end_token_of_a_word_vocabulary_needs_permission() -> None:
    words = ["how", "is", "living", "in", "amsterdam", "exciting", "<EOS>"]
    tokenizer = vocabulary_tokenizer(words, special=["<EOS>"])
    assert tokenizer.end_id == 6
    assert tokenizer.encode("how is living in amsterdam <EOS>", allow_special=True) == [0, 1, 2, 3, 4, 6]
    with pytest.raises(TokenizerError, match="the word '<' is not in the vocabulary"):
        tokenizer.encode("how is living in amsterdam <EOS>")


def test_special_word_without_punctuation_is_refused() -> None:
    """WordLevel finds 'STOP' in its own vocabulary even if the library is told to read special tokens as text."""
    tokenizer = vocabulary_tokenizer(["go", "STOP"], special=["STOP"])
    for encode in (tokenizer.encode, tokenizer.encode_long):
        with pytest.raises(TokenizerError, match="'STOP', which is a special token"):
            encode("go STOP go")
    assert tokenizer.encode("go STOP", allow_special=True) == [0, 1]


def test_end_token_in_a_unigram_vocabulary_is_refused() -> None:
    backend = tokenizers.Tokenizer(
        models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((c, -3.0) for c in "ab</s>")], 0, False)
    )
    backend.add_special_tokens(["<unk>", "</s>"])
    tokenizer = wrapped(backend)
    assert (tokenizer.kind, tokenizer.end_id) == ("unigram", 1)
    with pytest.raises(TokenizerError, match="'</s>', which is a special token"):
        tokenizer.encode("a</s>b")


@pytest.mark.parametrize("text", ["<|END|>", "<|end|>", "＜|end|＞"])
def test_normalizer_cannot_make_a_special_token(text: str) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate("<|end>u")}, unk_token="u"))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.add_special_tokens([AddedToken("<|end|>", special=True, normalized=True)])
    tokenizer = wrapped(backend)
    assert tokenizer.special_tokens["<|end|>"] not in tokenizer.encode(text)


def test_control_token_is_special_even_if_not_flagged() -> None:
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate("<|im_star>")}, []))
    backend.add_tokens([AddedToken("<|im_start|>", special=False)])
    tokenizer = wrapped(backend)
    assert "<|im_start|>" in tokenizer.special_tokens
    assert tokenizer.special_tokens["<|im_start|>"] not in tokenizer.encode("<|im_start|>")


def test_ordinary_added_token_is_recognised_in_text() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, " ": 1}, []))
    backend.add_tokens(["    "])
    tokenizer = wrapped(backend)
    assert tokenizer.encode("a    a") == [0, 2, 0]


def test_encode_ignores_the_template() -> None:
    tokenizer = wrapped(llama_like())
    assert tokenizer.start_id == tokenizer.special_tokens["<s>"]
    assert tokenizer.end_id == tokenizer.special_tokens["</s>"]
    for ids in (tokenizer.encode("ab"), tokenizer.encode("ab", allow_special=True), tokenizer.encode_batch(["ab"])[0]):
        assert len(ids) == 2


def llama_like() -> tokenizers.Tokenizer:
    from tokenizers.processors import TemplateProcessing

    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "<s>": 2, "</s>": 3}, []))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 2)])
    return backend


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("truncation", {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}),
        ("padding", {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "a"}),
    ],
)  # fmt: skip
def test_truncation_and_padding_of_a_file_are_ignored(section: str, value: dict[str, Any]) -> None:
    content = json.loads(llama_like().to_str()) | {section: value}
    assert Tokenizer(content).encode("aabb") == [0, 0, 1, 1]
    assert Tokenizer(content).encode_batch(["aabb", "a"])[1].tolist() == [0]


def test_dropout_of_a_file_is_ignored() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    tokenizer = wrapped(backend)
    assert {tuple(tokenizer.encode("abab")) for _ in range(40)} == {(2, 2)}


def test_characters_that_bpe_would_drop_are_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    assert backend.encode("abxab").ids == [2, 2]  # the library drops x silently
    with pytest.raises(TokenizerError, match=r"the character 'x' \(U\+0078\) in 'abx'"):
        wrapped(backend).encode("abxab")


def test_bytes_missing_from_a_byte_level_vocabulary_are_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "Ġ": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert wrapped(backend).encode("a a") == [0, 1, 0]
    message = r"the character 'ñ' \(U\+00F1\) in ' añ' has the byte 0xC3, which is not in the vocabulary of 2 tokens"
    with pytest.raises(TokenizerError, match=message):
        wrapped(backend).encode("a añb")


def test_a_missing_byte_is_reported_with_the_character_that_was_typed() -> None:
    vocabulary = {character: token for token, character in enumerate(BYTE_TO_CHARACTER.values()) if character != "ð"}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(TokenizerError, match=r"'🙂' \(U\+1F642\) in '🙂' has the byte 0xF0.* vocabulary of 255 tokens"):
        wrapped(backend).encode("a🙂")


def test_bytes_that_utf8_cannot_contain_may_be_missing() -> None:
    """StarCoder's vocabulary lacks them; every text can be written all the same."""
    possible = [character for byte, character in BYTE_TO_CHARACTER.items() if byte not in NOT_IN_UTF8]
    assert len(possible) == 243
    backend = tokenizers.Tokenizer(models.BPE({character: token for token, character in enumerate(possible)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = wrapped(backend)
    text = "añ🙂\U0010ffff\u07ff"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_names_that_a_tokenizer_reads_become_tokens_and_other_names_stay_text() -> None:
    plain = train_tokenizer("bpe", ["the cat <a>"] * 9, vocab_size=262, special=["<a>", "<b>"])
    a, b = (plain.special_tokens[name] for name in ("<a>", "<b>"))
    reading = plain.reading(["<a>"])
    text = "the<a> cat<b><a>"
    expected = [*plain.encode("the"), a, *plain.encode(" cat<b>"), a]
    assert b not in expected
    assert reading.encode(text) == expected
    assert reading.encode_batch([text])[0].tolist() == reading.encode_long(text).tolist() == expected
    assert [
        token for part in reading.cut_stream(["the<", "a> cat<b>", "<a>"]) for token in reading.encode(part)
    ] == expected
    assert reading.decode(expected) == text
    assert (reading.fingerprint, a in plain.encode(text)) == (plain.fingerprint, False)


@pytest.mark.parametrize("kind", ["characters", "words", "bytes", "bpe"])
def test_a_made_tokenizer_has_the_special_tokens_asked_for(kind: str) -> None:
    texts = ["how is it <EOS> fine <EOS>"]
    tokenizer = train_tokenizer(kind, texts, special=["<EOS>"], start="<BOS>")
    assert list(tokenizer.special_tokens) == ["<BOS>", "<EOS>"]  # no further end token
    start, end = tokenizer.special_tokens.values()
    assert (tokenizer.start_ids, tokenizer.end_ids) == ((start,), (end,))
    assert tokenizer.vocab_size == end + 1
    ids = tokenizer.reading(["<EOS>"]).encode_input("it <EOS> is")
    assert (ids[0], ids.count(end)) == (start, 1)
    assert not any(piece in "<EOS>" for piece in tokenizer.pieces(range(end - 1)) if kind in ("characters", "words"))


@pytest.mark.parametrize(
    ("kind", "special", "message"),
    [
        ("bytes", ["a"], "'a' is also an ordinary token"),
        ("bpe", ["b"], "'b' is also an ordinary token"),
        ("words", [" "], "name of a special token is empty"),
        ("bpe", ["<a>", "<b>", "<c>", "<d>", "<e>", "<f>", "<g>"], "258 is too small .* 264 or more"),
    ],
)
def test_special_tokens_that_cannot_be_made_are_refused(kind: str, special: list[str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        train_tokenizer(kind, ["other other a b"], special=special, vocab_size=258 if kind == "bpe" else None)


def test_an_unknown_name_to_read_is_refused_with_a_suggestion() -> None:
    with pytest.raises(TokenizerError, match=r"'<EOSS>' is not a special token .*did you mean '<EOS>'"):
        vocabulary_tokenizer(["a"], special=["<EOS>"]).reading(["<EOSS>"])


def test_each_name_that_is_read_as_text_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_tokenizer("bytes", ["any text"], special=["<|im_start|>"])
    tokenizer.note_spelled(["a <|im_start|> b", f"{END} <|im_start|>"], "; advice")
    tokenizer.note_spelled([END])
    assert caplog.messages == ["'<|endoftext|>', '<|im_start|>' in the text is read as ordinary text; advice"]
    tokenizer.reading(["<|im_start|>"]).note_spelled(["<|im_start|>"])
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("kind", ["bytes", "bpe", "characters", "words"])
def test_a_text_that_begins_with_the_start_token_gets_no_second_one(kind: str) -> None:
    tokenizer = train_tokenizer(kind, ["a cat"], start="<BOS>").reading(["<BOS>"])
    text = tokenizer.encode("a cat")
    assert tokenizer.encode_input("a cat") == [tokenizer.start_id, *text]
    (start, *rest) = tokenizer.encode_input("<BOS>a cat")
    assert (start, rest) == (tokenizer.start_id, text)


@pytest.mark.parametrize(("known", "form"), [("u\u0308ber", "NFD"), ("\u00fcber", "NFC")])
@pytest.mark.parametrize("kind", ["characters", "words"])
def test_a_text_in_another_unicode_form_names_the_form_of_the_vocabulary(kind: str, known: str, form: str) -> None:
    tokenizer = train_tokenizer(kind, [known])
    other = unicodedata.normalize("NFC" if form == "NFD" else "NFD", known)
    with pytest.raises(TokenizerError, match=rf"Unicode form {form}: unicodedata.normalize\('{form}', text\)"):
        tokenizer.encode(other)
    with pytest.raises(TokenizerError) as raised:
        tokenizer.encode(f"{other} ñ")
    assert ("Unicode form" in str(raised.value)) == (kind == "words")  # the first word has another form, ñ has none
