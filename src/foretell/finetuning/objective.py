"""The loss of a task: cross entropy or squared error, plus lambda times language modelling on the same pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.finetuning.batches import TaskBatch
from foretell.finetuning.head import TASK_HEAD, TaskHead
from foretell.model.decoder import Decoder
from foretell.model.dropout import Dropout, make_dropout
from foretell.training.objective import Loss, Objective


def squared_errors(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """(B,) from outputs (B, 1) and numbers (B,)."""
    return (outputs[:, 0] - targets).square()


def cross_entropies(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """(B,) from logits (B, C) and indices (B,)."""
    return F.cross_entropy(outputs, targets.long(), reduction="none", label_smoothing=label_smoothing)


def answer_entropies(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """(B,) from scores (B, K) of which some are minus infinity; not smoothed, since those have no probability."""
    return F.cross_entropy(outputs, targets.long(), reduction="none")


class TaskObjective(nn.Module):
    """L_task + lambda L_lm (Radford et al. 2018, equation 5), both as means over examples.

    The language modelling loss of an example is the mean over its tokens, and over its sequences. In evaluation mode
    the loss is that of the task alone, unweighted and not smoothed, so that runs can be compared.
    """

    def __init__(
        self, decoder: Decoder, head: TaskHead, lm_weight: float, head_dropout: float, label_smoothing: float = 0.0
    ):
        super().__init__()
        self.decoder, self.linear, self.head = decoder, head.linear, head
        self.lm_weight, self.label_smoothing = lm_weight, label_smoothing
        self.dropout = make_dropout(head_dropout)
        if isinstance(self.dropout, Dropout):
            self.dropout.bind(decoder.dropout_rng, TASK_HEAD)
        self.losses_of: Callable[[Tensor, Tensor, float], Tensor] = (
            squared_errors
            if head.settings.is_number
            else answer_entropies
            if head.settings.task == "choice"
            else cross_entropies
        )
        self.language_modelling = Objective(decoder)

    def forward(self, batch: TaskBatch) -> Loss:
        outputs, hidden = self.outputs(batch)
        smoothing = self.label_smoothing if self.training else 0.0
        losses = self.losses_of(outputs.float(), batch.targets, smoothing)  # (B,)
        task = (losses * batch.weights).sum() if self.training else losses.sum()
        parts = {"task": task.detach()}
        total = task
        if self.training and self.lm_weight > 0:
            text = self.text_losses(batch, hidden).sum()
            parts["language_modelling"] = text.detach()
            total = task + self.lm_weight * text
        return Loss(total, torch.full((), batch.count, device=total.device), parts)

    def outputs(self, batch: TaskBatch) -> tuple[Tensor, Tensor]:
        """The outputs (B, C) and the hidden states (B*K, T, D) that they come from."""
        rng = self.decoder.dropout_rng
        rng.sequences = batch.ids.shape[1]  # a row of the batch is K rows of the decoder, each with a mask
        hidden = self.decoder.hidden(batch.ids.flatten(0, 1))  # (B*K, T, D)
        rng.sequences = 1
        return self.head.outputs_from(hidden, batch.lengths, nn.Sequential(self.dropout, self.linear)), hidden

    def text_losses(self, batch: TaskBatch, hidden: Tensor) -> Tensor:
        """The language modelling loss of each example, (B,)."""
        ids, lengths = batch.ids.flatten(0, 1), batch.lengths.flatten()  # (B*K, T), (B*K,)
        T = ids.shape[1]
        losses = self.language_modelling.losses_from(hidden[:, :-1], ids[:, 1:])  # (B*K, T-1)
        is_target = torch.arange(1, T, device=ids.device) < lengths[:, None]
        means = (losses * is_target).sum(1) / (lengths - 1).clamp(min=1)  # (B*K,)
        present = (batch.lengths > 0).sum(1)
        return means.view_as(batch.lengths).sum(1) / present  # (B,)
