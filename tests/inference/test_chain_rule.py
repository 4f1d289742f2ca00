"""With a start token, `score` gives the first token a probability too, and the chain rule holds to the last digit."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from foretell.errors import TokenizerError
from foretell.inference.query import score
from foretell.language_model import LanguageModel
from foretell.text import vocabulary_tokenizer
from tests.toy import make_toy

LENGTH = 3


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A model of three words and a start token, whose every sequence of ids can be written as text."""
    tokenizer = vocabulary_tokenizer(["how", "is", "it"], special=["<EOS>"]).with_start("<EOS>")
    return make_toy(tokenizer, seed=5).reading_special()


def test_the_probabilities_of_all_texts_of_a_length_add_up_to_one(model: LanguageModel) -> None:
    """A text that begins with the start token gets no second one, so its score is that of the words after it."""
    words = model.tokenizer.pieces(range(4))
    texts = {first: [" ".join([first, *rest]) for rest in product(words, repeat=LENGTH - 1)] for first in words}
    sums = {first: sum(math.exp(score(model, text).logprob) for text in texts[first]) for first in words}
    assert len(score(model, texts["how"][0]).tokens) == LENGTH
    with torch.no_grad():
        start = float(model.decoder(torch.tensor([[3]]))[0, 0].double().softmax(-1)[3])  # P(<EOS>) after <EOS>
    assert sums.pop("<EOS>") == pytest.approx(1, abs=1e-9)
    assert sum(sums.values()) + start == pytest.approx(1, abs=1e-9)


def test_a_score_is_the_product_of_the_conditional_probabilities(model: LanguageModel) -> None:
    result = score(model, "how is it")
    logprobs = [token.logprob for token in result.tokens]
    assert None not in logprobs
    assert result.logprob == pytest.approx(sum(value for value in logprobs if value is not None))
    with torch.no_grad():
        after_start = model.decoder(torch.tensor([[3]]))[0, 0].double().log_softmax(-1)
    assert logprobs[0] == pytest.approx(float(after_start[0]))  # P(x1)
    first, second = score(model, "how").logprob, score(model, "how is").logprob
    assert first == pytest.approx(logprobs[0])
    assert second - first == pytest.approx(logprobs[1])


def test_any_model_can_read_a_text_after_its_end_token() -> None:
    plain = make_toy(seed=5)
    assert score(plain, "ab").tokens[0].logprob is None
    started = plain.with_start("<|endoftext|>")
    assert started.encode("ab") == [256, 97, 98]
    assert score(started, "ab").tokens[0].logprob is not None
    assert started.tokenizer.end_ids == plain.tokenizer.end_ids == (256,)
    with pytest.raises(TokenizerError, match=r"'<s>' is not a special token .* it has <\|endoftext\|>"):
        plain.with_start("<s>")
