"""Words of a text as groups of its tokens."""

from __future__ import annotations

import pytest

from foretell.text import Tokenizer, train_tokenizer
from foretell.text.words import Word, pieces_of, word_starts, words_of


def split(text: str) -> list[str]:
    """The text between the starts of words."""
    starts = word_starts(text)
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The play was dull.", ["The", " play", " was", " dull."]),
        ('  "No," she said\n\nat last. ', ['  "No,"', " she", " said", "\n\nat", " last. "]),
        ("don't well-known x=1", ["don't", " well-known", " x=1"]),
        ("東京の天気。GPTはいい 3つ", ["東", "京", "の", "天", "気。", "GPT", "は", "い", "い", " 3", "つ"]),
        ("สวัสดี ครับ", ["ส", "วั", "ส", "ดี", " ค", "รั", "บ"]),
        ("naïve e\u0301te\u0301", ["naïve", " e\u0301te\u0301"]),
        ("한국어 문장", ["한국어", " 문장"]),
        ("   ", ["   "]),
    ],
)
def test_a_word_has_the_space_before_it_and_the_punctuation_after_it(text: str, words: list[str]) -> None:
    assert split(text) == words


@pytest.mark.parametrize("kind", ["characters", "words-capped", "bytes", "bpe-gpt2", "bpe-qwen2"])
def test_words_join_to_the_text_and_hold_all_tokens(trained: dict[str, Tokenizer], kind: str, corpus) -> None:
    tokenizer = trained[kind]
    for text in corpus:
        words = words_of(tokenizer, text)
        assert "".join(word.text for word in words) == text
        tokens = [token for word in words for token in word.tokens]
        assert tokens == list(range(len(tokenizer.encode(text))))


def test_a_token_is_never_divided_and_a_character_neither(trained: dict[str, Tokenizer]) -> None:
    text = "the 天気 cat"
    words = words_of(trained["bytes"], text)
    assert [(word.text, len(word.tokens)) for word in words] == [("the", 3), (" 天", 4), ("気", 3), (" cat", 4)]
    pairs = train_tokenizer("bpe", ["天気 天気 天気 天気"], vocab_size=270)
    assert [word.text for word in words_of(pairs, "天気 天気")] == ["天気", " 天気"]


def test_a_token_over_two_words_joins_them(data, gpt2: Tokenizer) -> None:
    assert [word.text for word in words_of(gpt2, "unbelievable, really")] == ["unbelievable,", " really"]
    content = gpt2.to_json()
    content["added_tokens"].append(
        {**content["added_tokens"][0], "id": gpt2.vocab_size, "content": "of the", "special": False}
    )
    assert [word.text for word in words_of(Tokenizer(content), "out of the box")] == ["out", " of the", " box"]


def test_pieces_are_the_tokens(trained: dict[str, Tokenizer]) -> None:
    pieces = pieces_of(trained["bytes"], "éa")
    assert pieces == [Word("<0xC3>", (0,)), Word("<0xA9>", (1,)), Word("a", (2,))]
