"""What the head makes of a stream that is not at its end."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.model.decoder import Decoder


@torch.no_grad()
def logits_after(decoder: Decoder, stream: Tensor) -> Tensor:
    """What the last norm and the head make of a stream (..., D) as it is after some layer: the logit lens.

    nostalgebraist 2020, "interpreting GPT: the logit lens". After the last layer these are the model's own logits.
    Where norms come after each sublayer, there is no last norm, and the head reads the stream as it is.
    """
    return decoder.head(decoder.trunk.norm(stream))
