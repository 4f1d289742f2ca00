"""Fixtures: small random models made by transformers, of every family and with odd shapes.

Freshly initialised weights (standard deviation 0.02) would hide mistakes; these are larger, so every part matters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from foretell.text import Tokenizer, train_tokenizer

VOCABULARY = 37
GPT: dict[str, Any] = {"n_layer": 2, "n_head": 3, "n_embd": 72, "n_positions": 19, "vocab_size": VOCABULARY}
MODERN: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 40,
    "intermediate_size": 52,
    "max_position_embeddings": 19,
    "vocab_size": VOCABULARY,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHARE = {"rope_type": "default", "partial_rotary_factor": 0.4}  # 4 of 10 elements
LINEAR = {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5}
OWN: dict[str, Any] = {"max_position_embeddings": 7, "num_key_value_heads": 4, "attention_bias": True}
GEMMA = {"query_pre_attn_scalar": 7, "sliding_window": 3, "rms_norm_eps": 1e-3, "pad_token_id": None}
GEMMA_ROPE = {
    "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}},
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# name -> (class of transformers, changes)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "gpt2 with one head": ("GPT2", {"n_head": 1, "n_inner": 50, "activation_function": "gelu"}),
    "gpt2 with context 7": ("GPT2", {"n_positions": 7, "n_head": 2, "activation_function": "relu", "n_embd": 10}),
    "gpt2 with a head of its own": ("GPT2", {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "gpt2 that reorders": ("GPT2", {"reorder_and_upcast_attn": True, "activation_function": "silu"}),
    "llama": ("Llama", {}),
    "llama 3": ("Llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}),
    "llama, linear rope": ("Llama", {"rope_parameters": LINEAR, "num_key_value_heads": 1}),
    "llama, own head width": ("Llama", {"head_dim": 24, "rms_norm_eps": 1e-3, "tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "llama with one head": ("Llama", {"num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 24}),
    "llama with context 7": ("Llama", {"max_position_embeddings": 7}),
    "mistral": ("Mistral", {"sliding_window": 3}),
    "mistral without a window": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2 with context 7": ("Qwen2", {"max_position_embeddings": 7, "rope_parameters": LINEAR}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3 with biases": ("Qwen3", {"head_dim": 10, "attention_bias": True, "num_attention_heads": 1}),
    "phi3": ("Phi3", {"pad_token_id": None}),
    "phi3, partly rotated": ("Phi3", {"pad_token_id": None, "rope_parameters": SHARE, "sliding_window": 5}),
    "gpt_neox": ("GPTNeoX", {}),
    "gpt_neox, half rotated": ("GPTNeoX", {"rope_parameters": {**SHARE, "rope_theta": 300.0}}),
    "gpt_neox in sequence": ("GPTNeoX", {"use_parallel_residual": False, "hidden_act": "relu"}),
    "phi": ("Phi", {"rope_parameters": SHARE}),
    "stablelm": ("StableLm", {"rope_parameters": SHARE, "use_qkv_bias": True}),
    "stablelm in parallel": ("StableLm", {"rope_parameters": SHARE, "use_parallel_residual": True}),
    "olmo2": ("Olmo2", {}),
    "olmo2 with context 7": ("Olmo2", {**OWN, "tie_word_embeddings": True, "rope_parameters": LINEAR}),
    "gemma3": ("Gemma3", {**GEMMA, "head_dim": 24, "layer_types": ["sliding_attention", "full_attention"]}),
    "gemma3 in three layers": ("Gemma3", {**GEMMA, **OWN, "head_dim": 6, "num_hidden_layers": 3, **GEMMA_ROPE}),
    "openai-gpt": ("OpenAIGPT", {}),
    "openai-gpt with one head": ("OpenAIGPT", {"n_head": 1, "n_positions": 7, "afn": "silu"}),
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
HEADS = {"GPT2": "GPT2LMHeadModel", "OpenAIGPT": "OpenAIGPTLMHeadModel"}

MakeTheirs = Callable[..., PreTrainedModel]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """A test that takes this runs once per case."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def quiet_transformers() -> Iterator[None]:
    """Silence the messages and progress bars of transformers."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    yield


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """29 characters and the end token: fewer than the models have rows."""
    return train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz .\n"])


@pytest.fixture(scope="session")
def make_theirs() -> MakeTheirs:
    """`make_theirs("llama")`, or with other changes: transformers' model of a case, with strong random weights."""

    def make(case: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
        kind, own = CASES[case]
        sizes = GPT if kind in HEADS else MODERN
        settings = {**sizes, "bos_token_id": None, "eos_token_id": None, **own, **changes}
        if settings.get("num_attention_heads") == 1:
            settings["num_key_value_heads"] = 1
        if kind == "GPTNeoX":
            del settings["num_key_value_heads"]
        config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(**deepcopy(settings))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = getattr(transformers, HEADS.get(kind, f"{kind}ForCausalLM"))(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return model.eval()

    return make


def rename_head(file: Path, case: str) -> None:
    """Give the head of GPT-NeoX the name that it has on the Hub, and in transformers before version 5."""
    if CASES[case][0] == "GPTNeoX":
        tensors = load_file(file)
        save_file({name.replace("lm_head", "embed_out"): tensor for name, tensor in tensors.items()}, file)


@pytest.fixture(scope="session")
def directory_of(make_theirs: MakeTheirs, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory):
    """`directory_of("llama")` is where transformers saved that case, with our tokenizer; don't change it."""
    made: dict[str, Path] = {}

    def directory(case: str) -> Path:
        if case not in made:
            made[case] = tmp_path_factory.mktemp("theirs")
            make_theirs(case).save_pretrained(made[case])
            rename_head(made[case] / "model.safetensors", case)
            tokenizer.save(made[case] / "tokenizer.json")
        return made[case]

    return directory


@pytest.fixture(scope="session")
def their_tokenizer() -> Callable[..., Any]:
    """`their_tokenizer(directory)` is the tokenizer that transformers loads, by AutoTokenizer or the named class."""

    def make(directory: Path, kind: str = "AutoTokenizer") -> Any:
        return getattr(transformers, kind).from_pretrained(directory)

    return make


@pytest.fixture
def copy_of(directory_of, tmp_path: Path):
    """`copy_of("llama", rope_theta=5)` is a copy to modify, with fields of its config.json changed (...: removed)."""

    def copy(case: str, **changes: Any) -> Path:
        target = tmp_path / "copy"
        shutil.copytree(directory_of(case), target)
        values = json.loads((target / "config.json").read_text()) | changes
        kept = {name: value for name, value in values.items() if value is not ...}
        (target / "config.json").write_text(json.dumps(kept))
        return target

    return copy
