"""Fixtures of the translation tests: tiny models with large weights, and a vocabulary of a few words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretell.config.section import make_section
from foretell.text.tokenizer_training import train_tokenizer
from foretell.translation.config import MODERN_PAIR, VASWANI, EncoderDecoderConfig
from foretell.translation.encoder_decoder import EncoderDecoder
from foretell.translation.pairs import Pair, Vocabulary, make_vocabulary
from foretell.translation.translator import Translator
from tests.toy import with_large_weights

SHAPES: dict[str, dict[str, Any]] = {
    "vaswani": VASWANI,
    "modern": MODERN_PAIR,
    "two vocabularies": {**VASWANI, "source_vocab_size": 11, "encoder_layers": 1},
    "learned positions": {"tie_embeddings": False, "num_kv_heads": 1, "bias": {"head": True}},
}
PAIRS = [Pair("the cat sat", "le chat assis"), Pair("a dog ran far", "un chien court"), Pair("the dog", "le chien")]

MakeConfig = Callable[..., EncoderDecoderConfig]
MakeModel = Callable[..., EncoderDecoder]


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    """The name of every shape in turn."""
    return request.param


@pytest.fixture(scope="session")
def tiny_config() -> MakeConfig:
    def make(shape: str, **changes: Any) -> EncoderDecoderConfig:
        sizes = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 24, "vocab_size": 13}
        return make_section(EncoderDecoderConfig, {**SHAPES[shape], **sizes, **changes})

    return make


@pytest.fixture(scope="session")
def make_model(tiny_config: MakeConfig) -> MakeModel:
    """`make_model("vaswani", width=16)`: models with large weights."""

    def make(shape: str, dtype: torch.dtype = torch.float64, **changes: Any) -> EncoderDecoder:
        model = EncoderDecoder(tiny_config(shape, **changes)).to(dtype)
        return with_large_weights(model, 0.4).requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """Words of PAIRS, one vocabulary for both languages."""
    tokenizer = train_tokenizer("words", [f"{pair.source} {pair.target}" for pair in PAIRS])
    return make_vocabulary(tokenizer, tokenizer)


@pytest.fixture(params=["vaswani", "modern"])
def translator(request: pytest.FixtureRequest, make_model: MakeModel, vocabulary: Vocabulary) -> Translator:
    """Models with random weights, which translate into random words."""
    return Translator(make_model(request.param, vocab_size=vocabulary.target.vocab_size), vocabulary)
