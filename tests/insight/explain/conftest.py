"""Fixtures of the explain tests: a decoder of every configuration with a tokenizer of characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.language_model import LanguageModel
from foretell.text import Tokenizer, train_tokenizer

ALPHABET = "abcdefghij!"

MakeModel = Callable[..., LanguageModel]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer("characters", [ALPHABET])


@pytest.fixture(scope="session")
def make_model(make_decoder, tokenizer: Tokenizer) -> MakeModel:
    """`make_model("gpt2")`, or a configuration; with changes, and in a dtype."""

    def make(config: ModelConfig | str, dtype: torch.dtype = torch.float32, **changes: Any) -> LanguageModel:
        changes = {"vocab_size": tokenizer.vocab_size, **changes}
        return LanguageModel(make_decoder(config, dtype, **changes), tokenizer)

    return make


@pytest.fixture
def gpt2(make_model: MakeModel) -> LanguageModel:
    return make_model("gpt2")
