"""With the same weights, decoders shaped like published ones give transformers' logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from foretell.config import ModelConfig, make_section
from foretell.model.decoder import Decoder

AssertSame = Callable[[Tensor, Tensor], None]

SIZES: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "width": 16, "context_length": 24, "vocab_size": 29}
MODERN: dict[str, Any] = {
    **SIZES,
    "num_kv_heads": 2,
    "feedforward_width": 40,
    "position": "rotary",
    "norm": "rmsnorm",
    "norm_epsilon": 1e-6,
    "feedforward": "gated",
    "activation": "silu",
    "bias": False,
}
LLAMA3: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 16}

GPT_NAMES = {
    "transformer.wte": "embed.token",
    "transformer.wpe": "embed.position",
    "transformer.tokens_embed": "embed.token",
    "transformer.positions_embed": "embed.position",
    "transformer.ln_f": "trunk.norm",
    "transformer.h.": "trunk.blocks.",
    "attn.c_proj": "attention.output",
    "mlp.c_fc": "feedforward.up",
    "mlp.c_proj": "feedforward.down",
    "ln_1": "attention_norm",
    "ln_2": "feedforward_norm",
}
LLAMA_NAMES = {
    "model.embed_tokens": "embed.token",
    "model.norm": "trunk.norm",
    "model.layers.": "trunk.blocks.",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feedforward_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "feedforward.gate",
    "mlp.up_proj": "feedforward.up",
    "mlp.down_proj": "feedforward.down",
    "lm_head": "head",
}


def renamed(name: str, names: dict[str, str]) -> str:
    for theirs, ours in sorted(names.items(), key=lambda pair: -len(pair[0])):
        name = name.replace(theirs, ours)
    return name


def gpt_weights(theirs: PreTrainedModel) -> dict[str, Tensor]:
    """GPT-1 and GPT-2 keep matrices transposed, and query, key and value in one."""
    weights: dict[str, Tensor] = {}
    for name, value in theirs.named_parameters():
        path = renamed(name, GPT_NAMES)
        value = value.T if value.dim() == 2 and not path.startswith("embed") else value
        if "attn.c_attn" in path:
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                weights[path.replace("attn.c_attn", f"attention.{part}")] = piece
        else:
            weights[path] = value
    return weights


def llama_weights(theirs: PreTrainedModel) -> dict[str, Tensor]:
    return {renamed(name, LLAMA_NAMES): value for name, value in theirs.named_parameters()}


def gpt2() -> tuple[PreTrainedModel, ModelConfig]:
    theirs = GPT2Config(n_layer=2, n_head=4, n_embd=16, n_positions=24, vocab_size=29)
    return GPT2LMHeadModel(theirs), make_section(ModelConfig, SIZES)


def gpt1() -> tuple[PreTrainedModel, ModelConfig]:
    theirs = OpenAIGPTConfig(n_layer=2, n_head=4, n_embd=16, n_positions=24, vocab_size=29)
    return OpenAIGPTLMHeadModel(theirs), make_section(ModelConfig, {**SIZES, "norm_placement": "post"})


def modern(kind: type, **rest: Any):
    return kind(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_size=16,
        intermediate_size=40,
        max_position_embeddings=24,
        vocab_size=29,
        rms_norm_eps=1e-6,
        **rest,
    )


def llama() -> tuple[PreTrainedModel, ModelConfig]:
    rope = {"rope_type": "llama3", "rope_theta": 500.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LLAMA3}
    theirs = LlamaForCausalLM(modern(LlamaConfig, rope_parameters=rope, tie_word_embeddings=False))
    scaling = {"type": "llama3", "factor": 4, "original_context_length": 16}
    ours = {"rope_theta": 500, "rope_scaling": scaling, "tie_embeddings": False}
    return theirs, make_section(ModelConfig, {**MODERN, **ours})


def qwen3() -> tuple[PreTrainedModel, ModelConfig]:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    theirs = Qwen3ForCausalLM(modern(Qwen3Config, head_dim=6, rope_parameters=rope, tie_word_embeddings=True))
    return theirs, make_section(ModelConfig, {**MODERN, "head_width": 6, "rope_theta": 1e6, "qk_norm": True})


FAMILIES = {
    "gpt1": (gpt1, gpt_weights),
    "gpt2": (gpt2, gpt_weights),
    "llama": (llama, llama_weights),
    "qwen3": (qwen3, llama_weights),
}


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> tuple[PreTrainedModel, Decoder]:
    """Transformers' model with strong random weights, and ours with the same."""
    make, translate = FAMILIES[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs, config = make()
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    ours = Decoder(config)
    ours.load_state_dict(translate(theirs))
    return theirs.eval(), ours.eval()


@torch.no_grad()
def test_logits_are_those_of_transformers(pair: tuple[PreTrainedModel, Decoder], assert_same: AssertSame) -> None:
    theirs, ours = pair
    ids = torch.randint(29, (3, 24), generator=torch.Generator().manual_seed(1))
    assert_same(ours(ids), theirs(ids).logits)


def test_parameters_are_as_many_as_transformers_has(pair: tuple[PreTrainedModel, Decoder]) -> None:
    theirs, ours = pair
    assert sum(one.numel() for one in ours.parameters()) == theirs.num_parameters()
