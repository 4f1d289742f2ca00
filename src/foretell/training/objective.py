"""The objective of language modelling: the cross entropy of the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from foretell.data.batch import Batch
from foretell.model.cache import FreshKVView, KVView
from foretell.model.decoder import Decoder
from foretell.model.surgery import is_compiled
from foretell.system.device import memory_of

# On a CPU: 16 MiB in float32, most of which stays in the cache for the softmax, and enough rows for fast products
LOGITS_AT_ONCE, ROWS_AT_ONCE = 2**22, 256
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


def logits_on_cpu(vocab_size: int) -> int:
    """The number of logits in a chunk."""
    return max(LOGITS_AT_ONCE, ROWS_AT_ONCE * vocab_size)


def logits_on_gpu(memory: int) -> int:
    """The number of logits in a chunk, for a memory in bytes."""
    return min(memory // GPU_BYTES_PER_LOGIT, MOST_LOGITS)


class TokenLosses(nn.Module):
    """-log P(target) at some positions: head and cross entropy as one module, so that they can be compiled."""

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
    """Cross entropy of the next token. The head runs in chunks, so B * T * V logits are never in memory at once.

    With `label_smoothing` s, the target distribution in training is 1 - s for the target plus s / V for every token
    (Szegedy et al. 2016, section 7). The evaluation loss is not smoothed, so that runs can be compared. logits_at_once:
    None for the device's default.
    """

    has_one_shape = True  # all batches have the same shape, so torch's compiler compiles once

    def __init__(self, decoder: Decoder, logits_at_once: int | None = None, label_smoothing: float = 0.0):
        super().__init__()
        self.decoder = decoder
        self.losses = TokenLosses(decoder, label_smoothing)
        self.logits_at_once = logits_at_once

    def forward(self, batch: Batch) -> Loss:
        total = self.weighted_loss(self.hidden(batch), batch.targets, batch.loss_weights)
        name = "smoothed_cross_entropy" if self.losses.smoothing else "cross_entropy"
        return Loss(total, batch.loss_weights.sum(), {name: total.detach()})

    def hidden(self, batch: Batch) -> Tensor:
        """The hidden states (B, T, D) that the head reads."""
        return self.decoder.hidden(batch.ids, self.make_view(batch))

    def make_view(self, batch: Batch) -> KVView:
        """The KV view of a batch: its positions and documents."""
        return FreshKVView(batch.ids, batch.positions, batch.document_ids)

    def token_losses(self, batch: Batch) -> Tensor:
        """Unweighted -log P(target) at every position, (B, T) in float32 or better; smoothed in training."""
        rows = self.hidden(batch).flatten(0, 1)  # (B*T, D)
        losses = [self.losses(*chunk) for chunk in self.chunks(rows, batch.targets.flatten())]
        return torch.cat(losses).view_as(batch.targets)  # (B, T)

    def weighted_loss(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the losses of targets (B, T) with weights (B, T), from hidden states (B, T, D)."""
        rows, targets, weights = hidden.flatten(0, 1), targets.flatten(), weights.flatten()
        if hidden.device.type == "cpu" and not is_compiled(self.losses):
            is_counted = weights != 0  # not on a GPU, where the host would wait for the number of rows
            rows, targets, weights = rows[is_counted], targets[is_counted], weights[is_counted]
        chunks = self.chunks(rows, targets, weights)
        if len(chunks) > 1 and torch.is_grad_enabled():
            return self._loss_with_gradients(rows, chunks)
        return torch.stack([self._chunk_loss(*chunk) for chunk in chunks]).sum()

    def _loss_with_gradients(self, rows: Tensor, chunks: list[tuple[Tensor, ...]]) -> Tensor:
        """The loss of the chunks of rows. The gradients are computed per chunk, so no logits are kept."""
        used = [parameter for parameter in self.decoder.parameters() if parameter.requires_grad]
        losses, row_gradients, weight_gradients = list[Tensor](), list[Tensor](), list[Tensor]()
        for chunk, *rest in chunks:
            loss = self._chunk_loss(chunk := chunk.detach().requires_grad_(), *rest)
            of_chunk, *of_weights = torch.autograd.grad(loss, [chunk, *used], allow_unused=True)
            losses.append(loss.detach())
            row_gradients.append(of_chunk)
            if len(losses) == 1:  # clone, because two parameters may share the tensor
                used = [parameter for parameter, gradient in zip(used, of_weights, strict=True) if gradient is not None]
                weight_gradients = [gradient.clone() for gradient in of_weights if gradient is not None]
            else:
                for total, gradient in zip(weight_gradients, of_weights, strict=True):
                    total.add_(gradient)
        gradients = [torch.cat(row_gradients), *weight_gradients]
        return WithGradients.apply(torch.stack(losses).sum(), gradients, rows, *used)

    def chunks(self, rows: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
        """Split rows (N, D) and further tensors (N,) into equal chunks whose logits are within the limit."""
        vocab_size, device = self.decoder.config.vocab_size, rows.device
        default = logits_on_gpu(memory_of(device)) if device.type == "cuda" else logits_on_cpu(vocab_size)
        count = max(1, math.ceil(len(rows) * vocab_size / (self.logits_at_once or default)))
        return list(zip(*(each.chunk(count) for each in (rows, *others)), strict=True))

    def _chunk_loss(self, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (self.losses(rows, targets) * weights).sum()


class WithGradients(torch.autograd.Function):
    """A number with precomputed gradients for some tensors."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, gradients: list[Tensor], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return number.clone()

    @staticmethod
    @once_differentiable  # a second derivative would treat the gradients as constants
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(gradient * grad_outputs[0] for gradient in ctx.saved_tensors)
