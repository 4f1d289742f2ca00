"""`run_with_cache` with the names and shapes of TransformerLens, for notebooks that use them.

    logits, cache = run_with_cache(foretell.load("primer"), "The return value")
    cache["blocks.0.attn.hook_pattern"]  # (B, H, T, S)

The values are TransformerLens' with `from_pretrained_no_processing`: no norm is folded into the weights after it, and
nothing is centred. A start token is read only if the model's tokenizer has one.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

import foretell

OUTSIDE_BLOCKS = {
    "hook_embed": "embed.token",
    "hook_pos_embed": "embed.position",
    "ln_final.hook_normalized": "trunk.norm",
}
IN_BLOCK = {
    "ln1.hook_normalized": "attention_norm",
    "attn.hook_q": "attention.query",
    "attn.hook_k": "attention.key",
    "attn.hook_v": "attention.value",
    "attn.hook_rot_q": "attention.core.query",
    "attn.hook_rot_k": "attention.core.key",
    "attn.hook_attn_scores": "attention.core.masked",
    "attn.hook_pattern": "attention.core.weights",
    "attn.hook_z": "attention.core",
    "hook_attn_out": "attention",
    "hook_resid_mid": "attention_residual",
    "ln2.hook_normalized": "feedforward_norm",
    "mlp.hook_pre": "feedforward.up",
    "mlp.hook_post": "feedforward.activation",
    "hook_mlp_out": "feedforward",
}
GATED = {"mlp.hook_pre": "feedforward.gate", "mlp.hook_pre_linear": "feedforward.up"}
UPDATE_NORMS = {"hook_attn_out": "attention_update_norm", "hook_mlp_out": "feedforward_update_norm"}
PROJECTIONS = ("hook_q", "hook_k", "hook_v")  # (B, T, H*E) in foretell
PER_HEAD = ("hook_rot_q", "hook_rot_k", "hook_z")  # (B, H, T, E) in foretell


def names_of(model: foretell.LanguageModel) -> dict[str, str]:
    """TransformerLens' name -> foretell's, for every value that the model has."""
    paths, names, stream = set(foretell.trace_names(model)), dict(OUTSIDE_BLOCKS), "embed"
    in_block = IN_BLOCK | (GATED if model.config.feedforward == "gated" else {})
    in_block |= UPDATE_NORMS if model.config.norm_placement in ("update", "sandwich") else {}
    for layer in range(model.config.num_layers):
        block = f"trunk.blocks.{layer}"
        names |= {f"blocks.{layer}.{name}": f"{block}.{path}" for name, path in in_block.items()}
        names |= {f"blocks.{layer}.hook_resid_pre": stream, f"blocks.{layer}.hook_resid_post": block}
        stream = block
    return {name: path for name, path in names.items() if path in paths}


@torch.no_grad()
def run_with_cache(model: foretell.LanguageModel, text: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits (B, T, V) of a text, and the values of the pass by TransformerLens' names."""
    names = names_of(model)
    with foretell.Trace(model, list(names.values())) as trace:
        logits = model(model.encode(text))
    cache = {name: trace[path] for name, path in names.items()}
    for name, value in cache.items():
        part, _, hook = name.rpartition(".")
        if hook in PROJECTIONS:
            cache[name] = value.unflatten(-1, (-1, model.config.head_width))  # (B, T, H, E)
        elif hook in PER_HEAD:
            cache[name] = value.transpose(1, 2)  # (B, T, H, E)
        elif hook == "hook_post" and f"{part}.hook_pre_linear" in cache:
            cache[name] = value * cache[f"{part}.hook_pre_linear"]
    return logits, cache


if __name__ == "__main__":
    for name, value in run_with_cache(foretell.load(sys.argv[1]), sys.argv[2])[1].items():
        print(f"{name:34} {'x'.join(map(str, value.shape))}")
