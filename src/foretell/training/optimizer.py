"""The optimizer of a configuration, its weights and their decay by path, and the learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config import TrainingConfig
from foretell.errors import ConfigError
from foretell.paths import matches, suggest
from foretell.training.muon import Muon, orthogonalize_flops
from foretell.training.step import SkippingOptimizer, unchanged_where

MUON = "**.trunk.**"  # matrices of trunks are Muon's; embeddings and head look up or compare rows and stay with AdamW

Weights = Mapping[str, Tensor]  # by path
Shapes = Mapping[str, tuple[int, ...]]  # by path


class AdamW(SkippingOptimizer, torch.optim.AdamW):
    """torch's fused AdamW (Loshchilov and Hutter 2019), which skips a step under the name that GradScaler uses."""

    @property
    def found_inf(self) -> Tensor | None:
        return self.skip


class SGD(SkippingOptimizer):
    """SGD with momentum (Polyak 1964) and decoupled weight decay (Loshchilov and Hutter 2019, algorithm 1).

    torch's SGD adds the decay to the gradient, and so to the momentum. The momentum is stored even when it is off, so
    that every parameter has a moment in a checkpoint.
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, momentum: float):
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                with unchanged_where(self.skip, [parameter, state["momentum"]]):
                    velocity = state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(velocity, alpha=-group["lr"])


class Composite(SkippingOptimizer):
    """Several optimizers as one; each updates its own weights. Groups are one list, and state is one mapping."""

    def __init__(self, parts: list[SkippingOptimizer]):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            part.state = self.state

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies; torch's own omits attributes that it does not know."""
        return {**super().__getstate__(), "parts": self.parts}

    def step(self, closure: Any = None) -> Any:
        """One step of each part."""
        for part in self.parts:
            part.skip = self.skip
            part.step()


def make_optimizer(model: nn.Module, config: TrainingConfig, dtype: torch.dtype = torch.float32) -> SkippingOptimizer:
    """The optimizer of the weights of `model` that require a gradient; its own matrix products run in `dtype`.

    Matrices and embeddings decay towards zero; biases and norm scales, which have one dimension, do not, unless
    `weight_decay_by_path` matches them. A glob that matches no weight is a `ConfigError`. On a GPU, non-finite steps
    are skipped.
    """
    weights = dict(model.named_parameters())
    check_globs("weight_decay_by_path", config.weight_decay_by_path, weights)
    trained = {path: weight for path, weight in weights.items() if weight.requires_grad}
    optimizer = OPTIMIZERS[config.optimizer](trained, config, dtype)
    device = next(iter(weights.values())).device
    if device.type == "cuda":
        optimizer.skip = torch.zeros((), device=device)
    return optimizer


def make_adamw(weights: Weights, config: TrainingConfig, dtype: torch.dtype) -> SkippingOptimizer:
    betas = (config.beta1, config.beta2)
    groups = decay_groups(weights, config)
    return AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)


def make_sgd(weights: Weights, config: TrainingConfig, dtype: torch.dtype) -> SkippingOptimizer:
    return SGD(decay_groups(weights, config), config.learning_rate, config.momentum)


def make_muon(weights: Weights, config: TrainingConfig, dtype: torch.dtype) -> SkippingOptimizer:
    """Muon for the matrices of the trunk, AdamW for all other weights, at the same learning rate."""
    matrices = {path: weight for path, weight in weights.items() if is_muons(path, weight.shape)}
    others = {path: weight for path, weight in weights.items() if path not in matrices}
    parts: list[SkippingOptimizer] = []
    if matrices:
        parts.append(Muon(decay_groups(matrices, config), config.learning_rate, config.momentum, dtype))
    if others:
        parts.append(make_adamw(others, config, dtype))
    return Composite(parts)


OPTIMIZERS: dict[str, Callable[[Weights, TrainingConfig, torch.dtype], SkippingOptimizer]] = {
    "adamw": make_adamw,
    "muon": make_muon,
    "sgd": make_sgd,
}


def is_muons(path: str, shape: tuple[int, ...]) -> bool:
    """True for the weights that Muon updates."""
    return len(shape) == 2 and matches(MUON, path)


def decay_groups(weights: Weights, config: TrainingConfig) -> list[dict[str, Any]]:
    """The weights in groups of one weight decay each."""
    groups: dict[float, list[Tensor]] = {}
    for path, weight in weights.items():
        groups.setdefault(weight_decay_of(path, weight, config), []).append(weight)
    return [{"params": members, "weight_decay": decay} for decay, members in groups.items()]


def weight_decay_of(path: str, weight: Tensor, config: TrainingConfig) -> float:
    """The decay of the last glob that matches; without one, `weight_decay` for matrices and 0 for vectors."""
    matching = [decay for glob, decay in config.weight_decay_by_path.items() if matches(glob, path)]
    return matching[-1] if matching else config.weight_decay if weight.dim() >= 2 else 0.0


# --- frozen weights ---------------------------------------------------------------------------------------------------


def freeze(model: nn.Module, config: TrainingConfig) -> None:
    """Turn off the gradient of the weights that `config.frozen` matches; call it before `make_optimizer`.

    A glob that matches no weight is a `ConfigError`, and so is freezing all of them.
    """
    weights = dict(model.named_parameters())
    check_globs("frozen", config.frozen, weights)
    for path, weight in weights.items():
        if is_frozen(path, config):
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ConfigError(f"training.frozen = {list(config.frozen)} leaves no weight to train; leave some out")


def is_frozen(path: str, config: TrainingConfig) -> bool:
    """True for a weight that is not trained."""
    return any(matches(glob, path) for glob in config.frozen)


def check_globs(field: str, globs: Iterable[str], paths: Iterable[str], kind: str = "weight") -> None:
    """Refuse a glob that matches no path, since it would change nothing."""
    known = list(paths)
    for glob in globs:
        if not any(matches(glob, path) for path in known):
            raise ConfigError(f"training.{field}: no {kind} is named '{glob}'{suggest(glob, known)}")


def moments_per_element(path: str, shape: tuple[int, ...], config: TrainingConfig) -> int:
    """The number of float32 values that the optimizer holds per element of a weight: 0 for a frozen one."""
    if is_frozen(path, config):
        return 0
    if config.optimizer == "sgd" or (config.optimizer == "muon" and is_muons(path, shape)):
        return 1
    return 2


def optimizer_flops_per_step(shapes: Shapes, config: TrainingConfig) -> int:
    """Floating-point operations of the optimizer's matrix products per step: only Muon has any."""
    if config.optimizer != "muon":
        return 0
    return sum(
        orthogonalize_flops(*shape)
        for path, shape in shapes.items()
        if is_muons(path, shape) and not is_frozen(path, config)
    )


# --- learning rates ---------------------------------------------------------------------------------------------------


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def learning_rate_at(step: int, config: TrainingConfig) -> float:
    """Linear warm-up to the learning rate, then the configured schedule; `step` counts from 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)  # 0 to 1
    floor = config.final_learning_rate_share
    return config.learning_rate * (floor + (1 - floor) * SCHEDULES[config.schedule](min(progress, 1.0), config))


# How far the rate is above its final value, as a share, by progress after the warm-up (0 to 1)
SCHEDULES: dict[str, Callable[[float, TrainingConfig], float]] = {
    "cosine": lambda progress, config: 0.5 * (1 + math.cos(math.pi * progress)),  # Loshchilov and Hutter 2017
    "linear": lambda progress, config: 1 - progress,
    "stable_decay": lambda progress, config: min(1.0, (1 - progress) / config.decay_fraction),  # Hu et al. 2024
    "constant": lambda progress, config: 1.0,
}
