"""Small models with random weights, with and without a start token."""

from __future__ import annotations

import pytest

from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text import Tokenizer, train_tokenizer
from foretell.text.tokenizer_json import with_start

CONTEXT = 16


def language_model(tokenizer: Tokenizer, context_length: int = CONTEXT) -> LanguageModel:
    config = preset_config("toy", vocab_size=tokenizer.vocab_size, context_length=context_length, init="torch")
    return LanguageModel(make_decoder(config, seed=3).eval(), tokenizer)


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    return language_model(train_tokenizer("bytes", ["any text"]))


@pytest.fixture
def words() -> LanguageModel:
    return language_model(train_tokenizer("words", ["the cat sat on the mat"], vocab_size=6))


@pytest.fixture
def long_model() -> LanguageModel:
    return language_model(train_tokenizer("bytes", ["any text"]), 512)


@pytest.fixture(scope="session")
def starting() -> LanguageModel:
    """The same weights; its tokenizer puts a start token before every text."""
    document = train_tokenizer("bytes", ["any text"]).to_json()
    return language_model(Tokenizer(with_start(document, "<|endoftext|>")))
