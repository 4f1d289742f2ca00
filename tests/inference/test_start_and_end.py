"""Models whose tokenizer puts a start token before a text, has several end tokens, or writes spaces between words."""

from __future__ import annotations

import pytest
import torch

from foretell.errors import UsageError
from foretell.generation.sampling import Sampler
from foretell.inference.completion import Completion, generate
from foretell.inference.query import embed, next_tokens, score
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer, vocabulary_tokenizer
from foretell.text.tokenizer_json import with_ends, with_start
from tests.toy import make_toy

WORDS = ["the", "cat", "sat", "on", "a", "mat"]
SPECIAL = ["<s>", "</s>", "<turn>"]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    document = vocabulary_tokenizer(WORDS, special=SPECIAL).to_json()
    return make_toy(Tokenizer(with_ends(with_start(document, "<s>"), ["</s>", "<turn>"])))


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    """The same model with a tokenizer that has no start token."""
    return make_toy(vocabulary_tokenizer(WORDS, special=SPECIAL))


def test_the_tokenizer_is_what_these_tests_need(model):
    tokenizer = model.tokenizer
    assert (tokenizer.start_ids, tokenizer.end_ids) == ((6,), (7, 8))
    assert tokenizer.encode_input("the cat") == [6, 0, 1]


def test_with_a_start_token_the_first_token_has_a_probability_too(model):
    result = score(model, "the cat")
    with torch.no_grad():
        logprobs = model.decoder(torch.tensor([[6, 0, 1]]))[0].double().log_softmax(-1)
    assert [token.id for token in result.tokens] == [0, 1]
    assert [token.logprob for token in result.tokens] == pytest.approx([float(logprobs[0, 0]), float(logprobs[1, 1])])
    assert result.logprob == pytest.approx(sum(token.logprob or 0 for token in result.tokens))


def test_without_a_start_token_the_first_token_has_no_probability(plain):
    assert score(plain, "the cat").tokens[0].logprob is None


def test_next_tokens_and_the_embedding_include_the_start_token(model, plain):
    with torch.no_grad():
        largest = model.decoder(torch.tensor([[6, 0]]))[0, -1].double().log_softmax(-1).max()
    assert next_tokens(model, "the")[0].tokens[0].logprob == pytest.approx(float(largest))
    assert embed(model, "the") != embed(plain, "the")


@pytest.mark.parametrize("ask", [score, embed])
def test_an_empty_text_has_next_tokens_after_the_start_token_but_no_score_and_no_vector(model, plain, ask):
    assert next_tokens(model, "")[0].context == "<s>"
    with pytest.raises(UsageError, match="empty"):
        ask(model, "")
    with pytest.raises(UsageError, match="empty"):
        next_tokens(plain, "")


@pytest.fixture
def forced(model, monkeypatch):
    """Continue a prompt with a sampler that always returns the same token."""

    def call(token: int) -> Completion:
        monkeypatch.setattr(Sampler, "__call__", lambda sampler, logits, prefixes, samples: [token] * len(samples))
        return generate(model, "the cat", 3)

    return call


@pytest.mark.parametrize("end", [7, 8])
def test_any_of_the_end_tokens_ends_a_text_and_is_left_out_of_it(forced, end):
    completion = forced(end)
    assert (completion.finish_reason, completion.text, completion.token_ids) == ("end", "", [])


def test_an_ordinary_token_does_not_end_the_text_and_comes_with_its_space(forced):
    assert forced(2) == Completion("the cat", " sat sat sat", [2, 2, 2], "length")


def test_a_stop_string_keeps_the_tokens_that_its_text_needs(model):
    whole = generate(model, "the cat", 8, temperature=0)
    assert whole.text.startswith(" ")
    first = whole.text.split(" ")[2]
    stopped = generate(model, "the cat", 8, temperature=0, stop=[f" {first}"])
    assert stopped.finish_reason == "stop"
    assert "the cat" + stopped.text == model.tokenizer.decode([*model.tokenizer.encode("the cat"), *stopped.token_ids])
