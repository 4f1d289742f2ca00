"""Fixtures of the insight tests: a decoder of every kind of configuration, with large weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.decoder import Decoder
from tests.toy import GEMMA3, LLAMA, TINY, with_large_weights

BARE: dict[str, Any] = {"norm": "none", "feedforward": "none"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt1": {"norm_placement": "post"},
    "gpt2": {},
    "gpt3": {"window": (None, 2)},
    "llama": {**LLAMA, "num_heads": 4, "num_kv_heads": 2, "tie_embeddings": False},
    "mistral": {**LLAMA, "num_heads": 4, "num_kv_heads": 2, "window": 3},
    "qwen3": {**LLAMA, "qk_norm": True, "head_width": 6},
    "olmo2": {**LLAMA, "num_kv_heads": 1, "norm_placement": "update", "qk_norm": True, "qk_norm_scope": "all_heads"},
    "gemma3": GEMMA3,
    "smallest": {**BARE, "num_heads": 1, "attention_output": False, "attention_residual": False},
    "toy that answers": {**BARE, "num_heads": 1, "position": "sinusoidal"},
    "no positions, one key head": {"position": "none", "num_heads": 4, "num_kv_heads": 1, "qk_norm": True},
    "explicit core": {"num_heads": 4, "num_kv_heads": 2, "dropout": {"attention": 0.5}, "window": 2},
    "parallel": {"residual": "parallel", "position": "rotary", "rotary_share": 0.5},
    "parallel, shared norm": {"residual": "parallel_shared_norm", "norm": "rmsnorm", "feedforward": "gated"},
    "attention alone, norm after": {"feedforward": "none", "norm_placement": "post", "dropout": 0.3},
}

MakeDecoder = Callable[..., Decoder]


@pytest.fixture(params=CONFIGURATIONS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Every configuration of the list; a test with this fixture runs once for each."""
    return make_section(ModelConfig, {**TINY, **CONFIGURATIONS[request.param]})


@pytest.fixture(scope="session")
def make_decoder() -> MakeDecoder:
    """`make_decoder(config)`, or `make_decoder("gpt2", width=16)`: one of the list with changes."""

    def make(config: ModelConfig | str, dtype: torch.dtype = torch.float32, **changes: Any) -> Decoder:
        base = config.model_dump() if isinstance(config, ModelConfig) else {**TINY, **CONFIGURATIONS[config]}
        return with_large_weights(Decoder(make_section(ModelConfig, {**base, **changes})).to(dtype))

    return make


@pytest.fixture
def decoder(config: ModelConfig, make_decoder: MakeDecoder) -> Decoder:
    return make_decoder(config)


@pytest.fixture
def gpt2(make_decoder: MakeDecoder) -> Decoder:
    return make_decoder("gpt2")


@pytest.fixture
def ids() -> Tensor:
    """Three rows of the full context length, (3, 12)."""
    return torch.randint(TINY["vocab_size"], (3, TINY["context_length"]), generator=torch.Generator().manual_seed(1))
