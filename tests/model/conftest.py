"""Fixtures of the model tests: tiny configurations that cover every choice, and decoders with large weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.model.decoder import Decoder
from foretell.model.dispatch import Use, choose_kernels
from tests.toy import GEMMA3, LLAMA, TINY, with_large_weights

ALL_HEADS = {"qk_norm": True, "qk_norm_scope": "all_heads"}
LLAMA3_SCALING = {"type": "llama3", "factor": 8, "original_context_length": 16}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt1": {"norm_placement": "post"},
    "gpt2": {},
    "gpt3": {"window": (None, 2)},
    "llama": {**LLAMA, "num_heads": 4, "num_kv_heads": 2, "tie_embeddings": False, "rope_scaling": LLAMA3_SCALING},
    "mistral": {**LLAMA, "num_heads": 4, "num_kv_heads": 2, "window": 3},
    "qwen3": {**LLAMA, "qk_norm": True, "head_width": 6, "rope_theta": 1e6},
    "olmo2": {**LLAMA, "num_heads": 4, "num_kv_heads": 2, "norm_placement": "update", **ALL_HEADS},
    "gemma3": GEMMA3,
    "smallest": {
        "num_heads": 1,
        "norm": "none",
        "feedforward": "none",
        "attention_output": False,
        "attention_residual": False,
        "tie_embeddings": False,
        "bias": {"attention": False, "head": True},
    },
    "toy-that-answers": {"num_heads": 1, "norm": "none", "feedforward": "none", "position": "sinusoidal"},
    "sinusoidal, norm after": {"position": "sinusoidal", "norm": "rmsnorm", "norm_placement": "post"},
    "no positions": {"position": "none", "activation": "relu"},
    "no norm": {"norm": "none", "activation": "relu2", "init": "torch"},
    "attention alone, norm after": {"feedforward": "none", "norm_placement": "post", "window": 1},
    "linear rotation": {
        "position": "rotary",
        "rope_scaling": {"type": "linear", "factor": 4},
        "activation": "gelu_erf",
    },
    "one key head": {"num_heads": 4, "num_kv_heads": 1, "qk_norm": True, "window": (3, None)},
    "explicit core": {"num_heads": 4, "num_kv_heads": 2, "dropout": {"attention": 0.5}, "window": 2},
    "dropout everywhere": {**LLAMA, "dropout": 0.3, "norm_placement": "post"},
    "biases": {**LLAMA, "bias": {"attention": True, "attention_output": False, "norm": False, "head": True}},
    "parallel": {"residual": "parallel", "position": "rotary", "bias": {"head": True}, "tie_embeddings": False},
    "half rotated": {"residual": "parallel", "position": "rotary", "rotary_share": 0.5},
    "parallel, shared norm": {"residual": "parallel_shared_norm", "dropout": {"residual": 0.2}},
    "no residual": {"attention_residual": False, "attention_output": False, "position": "rotary"},
}

# largest allowed difference between two ways to compute a tensor, relative to its largest absolute value
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}

MakeDecoder = Callable[..., Decoder]
AssertSame = Callable[[Tensor, Tensor], None]


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=CONFIGURATIONS)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Every configuration of the list in turn."""
    return make_section(ModelConfig, {**TINY, **CONFIGURATIONS[request.param]})


@pytest.fixture(scope="session")
def configurations() -> list[ModelConfig]:
    return [make_section(ModelConfig, {**TINY, **changes}) for changes in CONFIGURATIONS.values()]


@pytest.fixture(scope="session")
def make_decoder() -> MakeDecoder:
    """A factory of decoders: `make_decoder(config)`, or `make_decoder("gpt2", width=16)` for a changed list entry."""

    def make(config: ModelConfig | str, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> Decoder:
        base = config.model_dump() if isinstance(config, ModelConfig) else {**TINY, **CONFIGURATIONS[config]}
        decoder = with_large_weights(Decoder(make_section(ModelConfig, {**base, **changes})).to(dtype), seed=seed)
        choose_kernels(decoder, Use(torch.device("cpu"), dtype, decoder.config.context_length))
        return decoder.requires_grad_(False)

    return make


@pytest.fixture
def decoder(config: ModelConfig, make_decoder: MakeDecoder) -> Decoder:
    return make_decoder(config)


@pytest.fixture
def ids() -> Tensor:
    """Three rows that fill the context, (3, 12)."""
    return torch.randint(TINY["vocab_size"], (3, TINY["context_length"]), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def assert_same() -> AssertSame:
    """A check that two tensors are equal up to rounding in their dtype."""

    def check(actual: Tensor, expected: Tensor) -> None:
        assert expected.abs().max() > 0, "an expected tensor of zeros would hide mistakes"
        bound = TOLERANCES[expected.dtype] * float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=0, atol=bound)

    return check
