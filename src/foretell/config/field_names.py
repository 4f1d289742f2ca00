"""The names that nanoGPT and Hugging Face use for a field, accepted in input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel

# another project's name for a field -> ours
ALIASES = {
    "n_layer": "num_layers",
    "n_layers": "num_layers",
    "num_hidden_layers": "num_layers",
    "n_head": "num_heads",
    "n_heads": "num_heads",
    "num_attention_heads": "num_heads",
    "n_kv_head": "num_kv_heads",
    "num_key_value_heads": "num_kv_heads",
    "n_embd": "width",
    "d_model": "width",
    "hidden_size": "width",
    "head_dim": "head_width",
    "n_inner": "feedforward_width",
    "intermediate_size": "feedforward_width",
    "block_size": "context_length",
    "n_positions": "context_length",
    "n_ctx": "context_length",
    "max_position_embeddings": "context_length",
    "layer_norm_epsilon": "norm_epsilon",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tie_embeddings",
    "sliding_window": "window",
    "max_iters": "steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "evaluate_every",
    "grad_clip": "clip_norm",
    "accumulation": "gradient_accumulation_steps",  # the first version's names, as in its run.json
    "min_learning_rate": "final_learning_rate_share",
}


def with_own_names(section: type[BaseModel], values: Any) -> Any:
    """The same mapping under our names for its keys."""
    if not isinstance(values, Mapping):
        return values
    named = {_own_name(section, str(key).replace("-", "_")): value for key, value in values.items()}
    return {key: None if value == "none" and _may_be_none(section, key) else value for key, value in named.items()}


def _may_be_none(section: type[BaseModel], key: str) -> bool:
    """True where None is a value of this field. TOML cannot write it, so `none` means it there."""
    return key in section.model_fields and type(None) in get_args(section.model_fields[key].annotation)


def _own_name(section: type[BaseModel], key: str) -> str:
    own = ALIASES.get(key, key)
    return own if key not in section.model_fields and own in section.model_fields else key
