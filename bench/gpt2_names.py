"""A decoder's weights under the names that GPT-2's code, nanoGPT and transformers use, so that all run one model."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.model.decoder import Decoder

# their module -> ours; the three projections of attention lie one after another in theirs
MODEL = {
    "transformer.wte": ["embed.token"],
    "transformer.wpe": ["embed.position"],
    "transformer.ln_f": ["trunk.norm"],
    "lm_head": ["embed.token"],  # tied
}
BLOCK = {
    "ln_1": ["attention_norm"],
    "attn.c_attn": ["attention.query", "attention.key", "attention.value"],
    "attn.c_proj": ["attention.output"],
    "ln_2": ["feedforward_norm"],
    "mlp.c_fc": ["feedforward.up"],
    "mlp.c_proj": ["feedforward.down"],
}


def gpt2_weights(decoder: Decoder, *, inputs_first: bool) -> dict[str, Tensor]:
    """The state dict that a peer loads.

    inputs_first: matrices inside blocks are (in, out), as in transformers' Conv1D, and not (out, in), as in nanoGPT.
    """
    names = dict(MODEL)
    for layer in range(decoder.config.num_layers):
        for theirs, ours in BLOCK.items():
            names[f"transformer.h.{layer}.{theirs}"] = [f"trunk.blocks.{layer}.{path}" for path in ours]
    state = decoder.state_dict()
    weights: dict[str, Tensor] = {}
    for theirs, ours in names.items():
        for kind in ("weight", "bias"):
            parts = [state[f"{path}.{kind}"] for path in ours if f"{path}.{kind}" in state]
            if parts:
                is_turned = inputs_first and kind == "weight" and (".attn." in theirs or ".mlp." in theirs)
                weights[f"{theirs}.{kind}"] = torch.cat(parts).T if is_turned else torch.cat(parts)
    return weights
