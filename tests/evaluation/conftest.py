"""Small models with random weights, with and without a start token."""

from __future__ import annotations

import pytest

from foretell.language_model import LanguageModel
from foretell.text import Tokenizer, train_tokenizer
from foretell.text.tokenizer_json import with_start
from tests.toy import make_toy

CONTEXT = 16


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    return make_toy(context_length=CONTEXT)


@pytest.fixture
def words() -> LanguageModel:
    tokenizer = train_tokenizer("words", ["the cat sat on the mat"], vocab_size=6)
    return make_toy(tokenizer, context_length=CONTEXT)


@pytest.fixture
def long_model() -> LanguageModel:
    return make_toy(context_length=512)


@pytest.fixture(scope="session")
def starting(model: LanguageModel) -> LanguageModel:
    """The same weights; its tokenizer puts a start token before every text."""
    document = model.tokenizer.to_json()
    return make_toy(Tokenizer(with_start(document, "<|endoftext|>")), context_length=CONTEXT)
