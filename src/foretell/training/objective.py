"""What training minimises: the negative log-probability of every target, from the model's own forward."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretell.data.batch import Batch
from foretell.model.cache import FreshKVView
from foretell.model.decoder import Decoder
from foretell.model.kernels.dispatch import Use, choose_kernels

LOGITS_AT_ONCE = 2**24  # elements: 64 MiB in float32


@dataclass
class Loss:
    """A sum over targets in nats, how many there were, and named parts of the sum."""

    sum: Tensor
    count: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(self.sum.detach()) / max(float(self.count), 1.0)


def make_objective(
    decoder: Decoder, device: torch.device, dtype: torch.dtype, label_smoothing: float = 0.0
) -> Objective:
    """The objective of a training on a device with matrix products in `dtype`, and the kernels that suit them."""
    choose_kernels(decoder.to(device), Use(device, dtype, decoder.config.context_length, is_training=True))
    return Objective(decoder, label_smoothing=label_smoothing).train()


class Objective(nn.Module):
    """Cross entropy of the next token. The head runs in chunks: B * T * V logits never stand in memory at once.

    With `label_smoothing` s, training aims at 1 - s for the target and s / V more for every token (Szegedy et al. 2016,
    section 7). In evaluation mode the loss is always the plain one, so that it says the same of every run.
    """

    def __init__(self, decoder: Decoder, logits_at_once: int = LOGITS_AT_ONCE, label_smoothing: float = 0.0):
        super().__init__()
        self.decoder = decoder
        self.logits_at_once = logits_at_once
        self.label_smoothing = label_smoothing

    @property
    def smoothing(self) -> float:
        """How much the targets of this mode are smoothed."""
        return self.label_smoothing if self.training else 0.0

    def forward(self, batch: Batch) -> Loss:
        total = (self.token_losses(batch) * batch.loss_weights).sum()
        name = "smoothed_cross_entropy" if self.smoothing else "cross_entropy"
        return Loss(total, batch.loss_weights.sum(), {name: total.detach()})

    def token_losses(self, batch: Batch) -> Tensor:
        """-log P(target), smoothed in training, at every position, (B, T) in float32 or better, whatever its weight."""
        kv = FreshKVView(batch.ids, batch.positions, batch.document_ids)
        hidden = self.decoder.hidden(batch.ids, kv).flatten(0, 1)  # (B*T, D)
        chunks = math.ceil(len(hidden) * self.decoder.config.vocab_size / self.logits_at_once)
        pairs = zip(hidden.chunk(chunks), batch.targets.flatten().chunk(chunks), strict=True)
        if chunks == 1:
            losses = [self.chunk_losses(*pair) for pair in pairs]
        else:  # a chunk's logits are dropped after use and made again for the gradient
            losses = [checkpoint(self.chunk_losses, *pair, use_reentrant=False) for pair in pairs]
        return torch.cat(losses).view_as(batch.targets)  # (B, T)

    def chunk_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """(N, D) and (N,) to the losses of the targets, (N,)."""
        logits = self.decoder.head(hidden)
        precise = torch.promote_types(logits.dtype, torch.float32)
        return F.cross_entropy(logits.to(precise), targets, reduction="none", label_smoothing=self.smoothing)
