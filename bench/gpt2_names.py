"""A decoder's weights under the names of GPT-2's code, nanoGPT and transformers, so that all run the same model."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from foretell.convert.family import Transpose
from foretell.convert.gpt import GPT2
from foretell.convert.weights import iter_theirs
from foretell.model.decoder import Decoder


def gpt2_weights(decoder: Decoder, *, inputs_first: bool) -> dict[str, Tensor]:
    """The state dict that a peer loads, with a copy of the tied head.

    inputs_first: matrices inside blocks are (in, out), as in transformers' Conv1D, and not (out, in), as in nanoGPT.
    """
    left_out = () if inputs_first else (Transpose(),)
    rows = (replace(row, transforms=tuple(t for t in row.transforms if t not in left_out)) for row in GPT2.rows)
    weights = dict(iter_theirs(replace(GPT2, rows=tuple(rows)), decoder.config, decoder.state_dict()))
    return {**weights, "lm_head.weight": weights["transformer.wte.weight"]}
