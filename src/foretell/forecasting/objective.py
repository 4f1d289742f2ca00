"""The loss of a forecaster: cross entropy in which a bin near the target is less wrong than one far away."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foretell.model.decoder import Decoder
from foretell.training.objective import Objective, TokenLosses

REACH = 4  # standard deviations


class OrdinalObjective(Objective):
    """Cross entropy with the target spread over near bins as a normal distribution, `smoothing` bins wide.

    A codec's bins are ordered, which the vocabulary of a text is not. In evaluation mode the loss is the plain one.
    """

    def __init__(self, decoder: Decoder, bins: int, smoothing: float):
        super().__init__(decoder)
        self.losses = OrdinalLosses(decoder, bins, smoothing)


class OrdinalLosses(TokenLosses):
    """The losses of an `OrdinalObjective`."""

    offsets: Tensor
    shares: Tensor

    def __init__(self, decoder: Decoder, bins: int, smoothing: float):
        super().__init__(decoder)
        self.bins = bins
        reach = math.ceil(REACH * smoothing)
        offsets = torch.arange(-reach, reach + 1)
        density = torch.exp(-0.5 * (offsets / smoothing) ** 2) if reach else torch.ones(1)
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("shares", density / density.sum(), persistent=False)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The losses (N,) of targets (N,) from hidden states (N, D)."""
        if not self.training:
            return super().forward(hidden, targets)
        logits = self.logits(hidden)  # (N, V)
        near = (targets[:, None] + self.offsets).clamp(0, self.bins - 1)
        expected = (logits.gather(1, near) * self.shares.to(logits)).sum(-1)  # (N,)
        return logits.logsumexp(-1) - expected
