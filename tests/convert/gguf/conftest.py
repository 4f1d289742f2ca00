"""Fixtures: models of every supported GGUF architecture, with odd shapes and tokenizers of both splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.text import Tokenizer, train_tokenizer
from tests.toy import LLAMA, with_noise

TEXT = "The quick brown fox, 1234 of them, doesn't jump over the lazy dog.\n\tif x == 0: return None\n" * 30
UNUSED = 5  # rows without a token
SHAPE: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "width": 32, "context_length": 16, "feedforward_width": 52}
ROTARY: dict[str, Any] = {**LLAMA, "num_kv_heads": 2, "tie_embeddings": False}
QWEN3: dict[str, Any] = {**ROTARY, "qk_norm": True}
BIASES = {"attention": True, "attention_output": True, "feedforward": True, "norm": False}
QWEN2: dict[str, Any] = {**ROTARY, "bias": {**BIASES, "attention_output": False, "feedforward": False}}
LINEAR = {"type": "linear", "factor": 2.5}
LLAMA3 = {"type": "llama3", "factor": 4.0, "original_context_length": 16, "low_frequency_factor": 1.0}
GEMMA3: dict[str, Any] = {
    **ROTARY,
    "norm": "rmsnorm_offset",
    "norm_placement": "sandwich",
    "qk_norm": True,
    "activation": "gelu_tanh",
    "num_layers": 3,
    "head_width": 12,
    "rope_theta": 1e6,
    "local_rope_theta": 10_000.0,
    "scale_embeddings": True,
}
LLAMA31 = {"type": "llama3", "factor": 8.0}  # the other values are the defaults
# name -> (architecture, shape)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2 with a head of its own": ("gpt2", {"tie_embeddings": False, "norm_epsilon": 1e-3, "num_heads": 1}),
    "llama": ("llama", ROTARY),
    "llama, tied, own head width": ("llama", {**ROTARY, "tie_embeddings": True, "head_width": 12, "num_kv_heads": 1}),
    "llama with biases": ("llama", {**ROTARY, "bias": BIASES, "num_kv_heads": 4}),
    "llama, linear rope": ("llama", {**ROTARY, "rope_scaling": LINEAR, "rope_theta": 300.0}),
    "llama 3": ("llama", {**ROTARY, "rope_scaling": LLAMA3, "rope_theta": 500.0}),
    "llama 3, as released": ("llama", {**ROTARY, "rope_scaling": LLAMA31, "rope_theta": 5e5, "head_width": 64}),
    "olmo2": ("olmo2", {**QWEN3, "norm_placement": "update", "qk_norm_scope": "all_heads", "num_kv_heads": 4}),
    "gemma3": ("gemma3", {**GEMMA3, "window": (3, 3, None)}),
    "gemma3, linear rope": ("gemma3", {**GEMMA3, "rope_scaling": LINEAR, "local_rope_theta": 50.0, "window": (5,) * 3}),
    "qwen2": ("qwen2", {**QWEN2, "norm_epsilon": 1e-3}),
    "qwen2, tied, linear rope": ("qwen2", {**QWEN2, "tie_embeddings": True, "rope_scaling": LINEAR, "head_width": 8}),
    "qwen3": ("qwen3", {**QWEN3, "norm_epsilon": 1e-3}),
    "qwen3, tied, linear rope": ("qwen3", {**QWEN3, "tie_embeddings": True, "rope_scaling": LINEAR, "head_width": 24}),
}

MakeModel = Callable[..., LanguageModel]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """A test that takes this runs once per case."""
    return request.param


@pytest.fixture(scope="session")
def tokenizers_by_split() -> dict[str, Tokenizer]:
    """Byte-level BPE with both splits, and bytes alone."""
    made = {split: train_tokenizer("bpe", [TEXT], vocab_size=320, split=split) for split in ("gpt2", "qwen2")}
    return {**made, "bytes": train_tokenizer("bytes", ["a"])}


@pytest.fixture(scope="session")
def make_model(tokenizers_by_split: dict[str, Tokenizer]) -> MakeModel:
    """`make_model("llama")`: a case with strong random weights; `tokenizer` and fields of the shape can be changed."""

    def make(case: str, tokenizer: Tokenizer | None = None, **changes: Any) -> LanguageModel:
        architecture, shape = CASES[case]
        chosen = tokenizer or tokenizers_by_split["gpt2" if architecture == "gpt2" else "qwen2"]
        sizes = {**SHAPE, "vocab_size": chosen.vocab_size + UNUSED, **shape, **changes}
        decoder = make_decoder(make_section(ModelConfig, sizes), seed=1)
        return LanguageModel(with_noise(decoder, 0.2), chosen)

    return make
