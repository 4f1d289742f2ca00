"""The optimizer of a configuration: which weights it moves how, and which of them decay, by their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config import TrainingConfig
from foretell.errors import ConfigError
from foretell.paths import matches, suggest
from foretell.training.muon import Muon
from foretell.training.sgd import SGD

MUON = "trunk.**"  # matrices here are Muon's; embeddings and head look up or compare rows and stay with AdamW

Weights = Mapping[str, Tensor]  # by path


class Composite(torch.optim.Optimizer):
    """Several optimizers as one. Each moves its own weights; groups and state are one list and one mapping for all."""

    def __init__(self, parts: list[torch.optim.Optimizer]):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            part.state = self.state

    def __getstate__(self) -> dict[str, Any]:
        """For copies: torch's own leaves out what it does not know."""
        return {**super().__getstate__(), "parts": self.parts}

    def step(self, closure: Any = None) -> Any:
        """One step of each."""
        for part in self.parts:
            part.step()


def make_optimizer(
    model: nn.Module, config: TrainingConfig, dtype: torch.dtype = torch.float32
) -> torch.optim.Optimizer:
    """The optimizer of the weights that learn, by their paths in `model`; products of its own run in `dtype`.

    Matrices and embeddings decay towards zero; biases and norm scales, which have one dimension, do not, unless
    `weight_decay_by_path` says otherwise. A glob there that no weight matches is a `ConfigError`.
    """
    weights = {path: weight for path, weight in model.named_parameters() if weight.requires_grad}
    check_globs(config, list(weights))
    return OPTIMIZERS[config.optimizer](weights, config, dtype)


def make_adamw(weights: Weights, config: TrainingConfig, dtype: torch.dtype) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019)."""
    betas = (config.beta1, config.beta2)
    groups = decay_groups(weights, config)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)


def make_sgd(weights: Weights, config: TrainingConfig, dtype: torch.dtype) -> torch.optim.Optimizer:
    """Gradient descent with momentum."""
    return SGD(decay_groups(weights, config), config.learning_rate, config.momentum)


def make_muon(weights: Weights, config: TrainingConfig, dtype: torch.dtype) -> torch.optim.Optimizer:
    """Muon for the matrices of the trunk, AdamW for all else, at the same learning rate."""
    matrices = {path: weight for path, weight in weights.items() if weight.dim() == 2 and matches(MUON, path)}
    others = {path: weight for path, weight in weights.items() if path not in matrices}
    parts: list[torch.optim.Optimizer] = []
    if matrices:
        parts.append(Muon(decay_groups(matrices, config), config.learning_rate, config.momentum, dtype))
    if others:
        parts.append(make_adamw(others, config, dtype))
    return Composite(parts)


OPTIMIZERS: dict[str, Callable[[Weights, TrainingConfig, torch.dtype], torch.optim.Optimizer]] = {
    "adamw": make_adamw,
    "muon": make_muon,
    "sgd": make_sgd,
}


def decay_groups(weights: Weights, config: TrainingConfig) -> list[dict[str, Any]]:
    """The weights in groups of one weight decay each."""
    groups: dict[float, list[Tensor]] = {}
    for path, weight in weights.items():
        groups.setdefault(weight_decay_of(path, weight, config), []).append(weight)
    return [{"params": members, "weight_decay": decay} for decay, members in groups.items()]


def weight_decay_of(path: str, weight: Tensor, config: TrainingConfig) -> float:
    """What the last glob that matches says; without one, `weight_decay` for matrices and 0 for vectors."""
    said = [decay for glob, decay in config.weight_decay_by_path.items() if matches(glob, path)]
    return said[-1] if said else config.weight_decay if weight.dim() >= 2 else 0.0


def check_globs(config: TrainingConfig, paths: list[str]) -> None:
    """Refuse a glob that matches no weight: it would change nothing, without a word."""
    for glob in config.weight_decay_by_path:
        if not any(matches(glob, path) for path in paths):
            raise ConfigError(f"training.weight_decay_by_path: no weight is named '{glob}'{suggest(glob, paths)}")


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The learning rate of all groups, for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
