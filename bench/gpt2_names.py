"""A decoder's weights under the names that GPT-2's code, nanoGPT and transformers use, so that all run one model."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from foretell.convert.gpt2 import GPT2
from foretell.convert.layout import iter_theirs
from foretell.convert.transforms import Transpose
from foretell.model.decoder import Decoder


def gpt2_weights(decoder: Decoder, *, inputs_first: bool) -> dict[str, Tensor]:
    """The state dict that a peer loads, with the tied head as well.

    inputs_first: matrices inside blocks are (in, out), as in transformers' Conv1D, and not (out, in), as in nanoGPT.
    """
    left_out = () if inputs_first else (Transpose(),)
    rows = (replace(row, transforms=tuple(one for one in row.transforms if one not in left_out)) for row in GPT2.rows)
    weights = dict(iter_theirs(replace(GPT2, rows=tuple(rows)), decoder.config, decoder.state_dict()))
    return {**weights, "lm_head.weight": weights["transformer.wte.weight"]}
