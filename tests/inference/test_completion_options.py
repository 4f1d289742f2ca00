"""Tokens and words are given as text, and several continuations of one prompt."""

from __future__ import annotations

import pytest

from foretell.config import SamplingConfig
from foretell.errors import ConfigError, TokenizerError, UsageError
from foretell.inference.completion import generate, make_sampling
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.text import train_tokenizer


@pytest.fixture(scope="module")
def primer() -> LanguageModel:
    return load("primer", device="cpu", dtype="float32")


def test_a_biased_token_is_given_as_text_id_or_special_name(primer):
    tokenizer = primer.tokenizer
    the, end = tokenizer.encode(" the")[0], tokenizer.end_id
    for token in (" the", the, f"#{the}"):
        assert make_sampling({"logit_bias": {token: -5}}, tokenizer).logit_bias == {the: -5.0}
    assert make_sampling({"logit_bias": {tokenizer.piece(end): 2}}, tokenizer).logit_bias == {end: 2.0}


def test_a_banned_word_is_banned_alone_and_after_a_space(primer):
    tokenizer = primer.tokenizer
    banned = make_sampling({"ban": ["sequence", " of"]}, tokenizer).ban
    assert banned == tuple(tuple(tokenizer.encode(text)) for text in ("sequence", " sequence", " of"))
    characters = train_tokenizer("characters", ["the sequence"])
    assert make_sampling({"ban": ["seq"]}, characters).ban == (tuple(characters.encode("seq")),)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"logit_bias": {"two words": 1}}, UsageError, "a logit bias is for one token, and 'two words' is"),
        ({"logit_bias": {"": 1}}, UsageError, "'' is 0"),
        ({"logit_bias": {5000: 1}}, TokenizerError, "5000 is not a token id"),
        ({"logit_bias": {"#5000": 1}}, TokenizerError, "5000 is not a token id"),
        ({"logit_bias": {" the": 1e9}}, ConfigError, "logit_bias"),
        ({"ban": "word"}, UsageError, "ban takes a list of words"),
        ({"ban": [""]}, UsageError, "a banned word is empty"),
        ({"ban": [[]]}, ConfigError, "ban"),
        ({"min_tokens": -1}, ConfigError, "min_tokens"),
    ],
)
def test_wrong_options_are_one_line(primer, options, error, message):
    with pytest.raises(error, match=message) as failure:
        make_sampling(options, primer.tokenizer)
    assert "\n" not in str(failure.value)


def test_the_options_change_the_text(primer):
    plain = generate(primer, "The value of", 20, temperature=0).text
    assert "method" in plain
    assert "method" not in generate(primer, "The value of", 20, temperature=0, ban=["method"]).text
    assert generate(primer, "The value of", 1, temperature=0, logit_bias={" it": 90}).text == " it"


def test_a_text_cannot_end_before_min_tokens(primer):
    likely = {primer.tokenizer.end_id: 90.0}
    assert generate(primer, "The", 9, logit_bias=likely).token_ids == []
    completion = generate(primer, "The", 9, logit_bias=likely, min_tokens=4, receipts=True)
    assert (len(completion.token_ids), completion.finish_reason) == (4, "end")
    for receipt in completion.receipts or []:
        receipt.check()


def test_n_continuations_are_the_samples_of_one_prompt(primer):
    several = generate(primer, "The value of", 8, n=3, seed=2)
    assert len({completion.text for completion in several}) == 3
    assert several == generate(primer, ["The value of"] * 3, 8, seed=2)
    assert several[0] == generate(primer, "The value of", 8, seed=2)
    both = generate(primer, ["The value of", "A class"], 8, n=3, seed=2)
    assert both[:3] == several
    assert [completion.prompt for completion in both[3:]] == ["A class"] * 3
    assert generate(primer, "The", 2, n=1) == [generate(primer, "The", 2)]


def test_fewer_than_one_continuation_is_refused(primer):
    with pytest.raises(UsageError, match="n must be a whole number, 1 or more, not 0"):
        generate(primer, "The", n=0)


def test_options_left_out_are_the_defaults(primer):
    assert make_sampling({}, primer.tokenizer) == SamplingConfig()
