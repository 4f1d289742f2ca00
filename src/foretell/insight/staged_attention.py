"""An attention core whose steps can be recorded and replaced, and how close derived values are to the model's own.

Scores, weights and the statistics of norms are derived: computed from recorded inputs by the functions of
`model/attention.py` and `model/norm.py`, in float32 or better. The fused kernel also accumulates its scores in float32
for bfloat16 operands, so these are the closest values to those it used. `weights @ value` equals the core's output
within

    ATTENTION_BOUND * epsilon of the core's dtype * max |value| * max(1, max |scaled|)

A score rounded by epsilon times its size changes its weight by the same share, so large scores widen the bound. Over
the tested configurations with large weights the factor was at most 2.3 in float64, 1.7 in float32 and 0.4 in
bfloat16; for the shape of GPT-2 with new weights the difference is below 6e-7 of the largest output in float32, 4e-3
in bfloat16.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from foretell.model.attention import CORE, attention_scores, hide, per_query_head
from foretell.model.description import Declared
from foretell.model.mask import Mask

ATTENTION_BOUND = 4
STAGES = {
    "scores": Declared("B H T S", ("query", "key"), "attention score"),
    "scaled": Declared("B H T S", ("scores",), "scaled score"),
    "masked": Declared("B H T S", ("scaled",), "masked score"),
    "weights": Declared("B H T S", ("masked",), "attention weight"),
}


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """The weighted sum of the values: (B, H, T, S) and (B, G, S, E) to (B, H, T, E)."""
    return weights @ per_query_head(value, weights).to(weights.dtype)


class StagedAttention(nn.Module):
    """An attention core that exposes each step of softmax(Q K' / sqrt(E)) V as the output of a submodule.

    Hooks can then record or replace every step. It keeps the weight dropout of the core it replaces.
    """

    description = CORE.changed(
        values={**STAGES, "dropout": Declared("B H T S", ("weights",), "attention weight")},
        saved=(*CORE.saved, *STAGES),
    )

    def __init__(self, replaced: nn.Module):
        super().__init__()
        self.scores, self.scaled, self.masked, self.weights = (nn.Identity() for _ in STAGES)
        self.dropout = dict(replaced.named_children()).get("dropout", nn.Identity())

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            scores = self.scores(attention_scores(query, key))  # (B, H, T, S)
            scaled = self.scaled(scores / math.sqrt(query.shape[-1]))
            weights = self.weights(self.masked(hide(scaled, mask)).softmax(dim=-1))
            return mix(self.dropout(weights), value).to(value.dtype)  # (B, H, T, E)
