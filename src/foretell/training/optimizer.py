"""AdamW (Loshchilov and Hutter 2019), with weight decay on matrices only."""

from __future__ import annotations

import torch
from torch import nn

from foretell.config import TrainingConfig


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Matrices and embeddings decay towards zero; biases and norm scales, which have one dimension, do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in parameters if one.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The learning rate of all groups, for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
