"""Fixtures of the attribution tests: a tiny decoder of any configuration, with a tokenizer of one letter per id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.text import train_tokenizer

TEXT = "abcadjb"
MakeModel = Callable[..., LanguageModel]


@pytest.fixture(scope="session")
def make_model(make_decoder: Callable[..., Decoder]) -> MakeModel:
    """A model of one of the shared configurations or of a given one, with changes."""
    tokenizer = train_tokenizer("characters", ["abcdefghij"])  # with the end token, the decoder's eleven ids

    def make(config: ModelConfig | str = "gpt2", dtype: torch.dtype = torch.float32, **changes: Any) -> LanguageModel:
        return LanguageModel(make_decoder(config, dtype, **changes), tokenizer)

    return make


@pytest.fixture
def model(config: ModelConfig, make_model: MakeModel) -> LanguageModel:
    """A model of every configuration; a test with this fixture runs once for each."""
    return make_model(config)


@pytest.fixture
def text() -> str:
    """Seven tokens."""
    return TEXT
