"""The objective of language modelling: the cross entropy of the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretell.data.batch import Batch
from foretell.device import memory_of
from foretell.model.cache import FreshKVView, KVView
from foretell.model.decoder import Decoder
from foretell.model.kernels.dispatch import Use, choose_kernels

LOGITS_AT_ONCE = 2**24  # elements on a CPU: 64 MiB in float32
# On a GPU: one logit per 64 bytes of memory, and fewer than 2^31. Uncompiled, a logit takes up to 14 bytes (bfloat16,
# float32, and the gradients of both), so the logits of a chunk take about a fifth of the memory
GPU_BYTES_PER_LOGIT = 64
MOST_LOGITS = 2**31 - 1


@dataclass
class Loss:
    """A sum over targets in nats, the number of targets, and named parts of the sum."""

    sum: Tensor
    count: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(self.sum.detach()) / max(float(self.count), 1.0)


def make_objective(
    decoder: Decoder, device: torch.device, dtype: torch.dtype, label_smoothing: float = 0.0
) -> Objective:
    """The objective for training on a device with matrix products in `dtype`; chooses the kernels that suit them."""
    choose_kernels(decoder.to(device), Use(device, dtype, decoder.config.context_length, is_training=True))
    return Objective(decoder, label_smoothing=label_smoothing).train()


def logits_at_once_on(device: torch.device) -> int:
    return LOGITS_AT_ONCE if device.type != "cuda" else min(memory_of(device) // GPU_BYTES_PER_LOGIT, MOST_LOGITS)


class TokenLosses(nn.Module):
    """-log P(target) of some positions: head and cross entropy, as one module that can be compiled."""

    def __init__(self, decoder: Decoder, label_smoothing: float = 0.0):
        super().__init__()
        self.decoder = (decoder,)  # in a tuple, so that the module tree does not contain it twice
        self.label_smoothing = label_smoothing

    @property
    def smoothing(self) -> float:
        """The label smoothing in the current mode: 0 in evaluation."""
        return self.label_smoothing if self.training else 0.0

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The losses (N,) of targets (N,) from hidden states (N, D)."""
        return F.cross_entropy(self.logits(hidden), targets, reduction="none", label_smoothing=self.smoothing)

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, V) in float32 or better."""
        logits = self.decoder[0].head(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Objective(nn.Module):
    """Cross entropy of the next token. The head runs in chunks, so that B * T * V logits are never in memory at once.

    With `label_smoothing` s, training aims at 1 - s for the target and s / V more for every token (Szegedy et al. 2016,
    section 7). In evaluation mode the loss is not smoothed, so that runs can be compared. logits_at_once: None for the
    default of the device.
    """

    has_one_shape = True  # all batches have one shape; torch's compiler would compile every other shape

    def __init__(self, decoder: Decoder, logits_at_once: int | None = None, label_smoothing: float = 0.0):
        super().__init__()
        self.decoder = decoder
        self.losses = TokenLosses(decoder, label_smoothing)
        self.logits_at_once = logits_at_once

    def forward(self, batch: Batch) -> Loss:
        total = (self.token_losses(batch) * batch.loss_weights).sum()
        name = "smoothed_cross_entropy" if self.losses.smoothing else "cross_entropy"
        return Loss(total, batch.loss_weights.sum(), {name: total.detach()})

    def token_losses(self, batch: Batch) -> Tensor:
        """-log P(target), smoothed in training, at every position, (B, T) in float32 or better; not weighted."""
        return self.losses_from(self.decoder.hidden(batch.ids, self.make_view(batch)), batch.targets)

    def make_view(self, batch: Batch) -> KVView:
        """The KV view of a batch: its positions and documents."""
        return FreshKVView(batch.ids, batch.positions, batch.document_ids)

    def losses_from(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The losses (B, T) of targets (B, T) from the hidden states (B, T, D) of a pass."""
        rows = hidden.flatten(0, 1)  # (B*T, D)
        at_once = self.logits_at_once or logits_at_once_on(hidden.device)
        chunks = max(1, math.ceil(len(rows) * self.decoder.config.vocab_size / at_once))
        pairs = zip(rows.chunk(chunks), targets.flatten().chunk(chunks), strict=True)
        if chunks == 1:
            losses = [self.losses(*pair) for pair in pairs]
        else:  # a chunk's logits are freed after use and recomputed for the gradient
            losses = [checkpoint(self.losses, *pair, use_reentrant=False) for pair in pairs]
        return torch.cat(losses).view_as(targets)  # (B, T)
