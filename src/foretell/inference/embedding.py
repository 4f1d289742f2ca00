"""One vector for a text: the model's last hidden layer, at its last token or averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from foretell.language_model import LanguageModel, encode_some

Pooling = Literal["last", "mean"]
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda hidden: hidden[-1],  # the only position that has seen the whole text
    "mean": lambda hidden: hidden.mean(0),
}


@torch.inference_mode()
def embed(model: LanguageModel, text: str, pool: Pooling = "last") -> list[float]:
    """The vector (D,) of a text, from the stream after the last norm, (T, D)."""
    ids = torch.tensor([encode_some(model, text)], device=model.device)
    return POOLINGS[pool](model.decoder.hidden(ids)[0].float()).tolist()
