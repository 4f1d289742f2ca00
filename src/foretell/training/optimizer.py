"""The optimizer of a configuration, and its parameter groups by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config.training import TrainingConfig
from foretell.distributed.placement import apply_to_whole, own_part
from foretell.errors import ConfigError, check_type
from foretell.paths import matches, suggest
from foretell.training.step import SkippingOptimizer, unchanged_where

MUON = "**.trunk.**"  # matrices trained with Muon; embeddings and head, used row by row, stay with AdamW

Weights = Mapping[str, Tensor]  # by path
Shapes = Mapping[str, tuple[int, ...]]  # by path


class AdamW(SkippingOptimizer, torch.optim.AdamW):
    """torch's fused AdamW (Loshchilov and Hutter 2019), which skips steps by `found_inf`, as for GradScaler."""

    @property
    def found_inf(self) -> Tensor | None:
        return self.skip


class SGD(SkippingOptimizer):
    """SGD with momentum (Polyak 1964) and decoupled weight decay (Loshchilov and Hutter 2019, algorithm 1).

    torch's SGD adds the decay to the gradient, and thus to the momentum. The momentum is stored even if it is off, so
    that every parameter has a moment in a checkpoint.
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, momentum: float):
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = momentum_of(self, parameter)
                with unchanged_where(self.skip, [parameter, momentum]):
                    velocity = momentum.mul_(group["momentum"]).add_(parameter.grad)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(velocity, alpha=-group["lr"])


# The gradient of a matrix has a few large singular values and many small ones, so a plain step moves mainly in a few
# directions. Muon sets all singular values to about 1 with a polynomial of the matrix, which needs matrix products
# only.
#
# An orthogonal R x C matrix has entries of root mean square 1 / sqrt(max(R, C)). The update is scaled by 0.2
# sqrt(max(R, C)), so its entries are as large as AdamW's (Liu et al. 2025, section 2.2). Then one learning rate and
# one weight decay suit both optimizers. Jordan's factor, sqrt(max(1, R/C)), needs a separate learning rate.
# The sequence of odd polynomials a s + b s^3 + c s^5 that maps singular values in [0.015, 1] closest to 1: each is the
# minimax polynomial on the image of the one before, with a margin of 2% for rounding (the method of Amsel et al. 2025,
# "The Polar Express"). Jordan et al. take five steps of one polynomial: docs/training.md compares both.
COEFFICIENTS = ((7.8977, -22.8490, 16.8329), (3.3562, -2.4239, 0.4724), (2.3716, -1.6827, 0.3964))
MARGIN = 1.02  # factor of the bound of the singular values, for bfloat16: above 1 the first polynomial is steep
SMALLEST_NORM = 1e-7  # a matrix with a smaller norm gets a smaller update
UPDATE_SIZE = 0.2  # root mean square of AdamW's updates, as observed by Liu et al. 2025
# Elements of the matrices stacked for one product. On a CPU, larger matrices gain nothing from batching. On a GPU, all
# of GPT-2's matrices of one shape are one stack, of at most 256 MiB in float32
ELEMENTS_AT_ONCE = {"cpu": 2**20}
ELEMENTS_AT_ONCE_ON_GPU = 2**26


class Muon(SkippingOptimizer):
    """Muon (Jordan et al. 2024) for matrices (R, C): momentum with orthogonalized updates and decoupled weight decay.

    `dtype` is the precision of the products; use the training's. A processor without bfloat16 instructions emulates
    them and takes 20 times as long as in float32 (docs/training.md).
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, momentum: float, dtype: torch.dtype):
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum, "weight_decay": 0.0, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for matrices in iter_stacks([weight for weight in group["params"] if weight.grad is not None]):
                self.update(matrices, group)

    def update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        """One step for matrices of the same shape."""
        gradients = [own_part(matrix.grad) for matrix in matrices if matrix.grad is not None]
        means = [own_part(momentum_of(self, matrix)) for matrix in matrices]
        parts = [own_part(matrix) for matrix in matrices]  # (R, C), or some of the rows if it is sharded
        size = UPDATE_SIZE * max(matrices[0].shape) ** 0.5
        with unchanged_where(self.skip, [*parts, *means]):
            directions = advance(means, gradients, group["momentum"])
            steps = apply_to_whole(matrices[0], list(directions), lambda whole: orthogonalize(whole, group["dtype"]))
            torch._foreach_mul_(parts, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parts, steps, alpha=-group["lr"] * size)


def momentum_of(optimizer: torch.optim.Optimizer, weight: Tensor) -> Tensor:
    """The momentum of a weight: a running sum or mean of its gradients, initially zero."""
    state = optimizer.state[weight]
    if "momentum" not in state:
        state["momentum"] = torch.zeros_like(weight)
    return state["momentum"]


def iter_stacks(matrices: list[Tensor]) -> Iterator[list[Tensor]]:
    """Stack matrices of the same shape, as far as the device gains from it."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for shape, members in by_shape.items():
        limit = ELEMENTS_AT_ONCE.get(members[0].device.type, ELEMENTS_AT_ONCE_ON_GPU)
        count = max(1, limit // shape.numel())
        for first in range(0, len(members), count):
            yield members[first : first + count]


def advance(means: list[Tensor], gradients: list[Tensor], momentum: float) -> tuple[Tensor, ...]:
    """Update the momenta and return the Nesterov directions: the momenta after another step with these gradients."""
    torch._foreach_lerp_(means, gradients, 1 - momentum)
    return torch._foreach_lerp(gradients, means, momentum)


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Map matrices (N, R, C) with singular value decompositions U S V' to about U V'.

    Singular values of at least 0.015 of the bound end between 0.83 and 1.17. A Newton-Schulz iteration: an odd
    polynomial of a matrix applies the polynomial to its singular values.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    x = (x.mT if is_tall else x).to(dtype).contiguous()  # makes X X' as small as possible
    gram = torch.bmm(x, x.mT)
    # The norm of X X', the root of the sum of s^4, is at least the largest s^2, and close to it if few values are large
    least = x.shape[-2] ** -0.25  # if all singular values are equal; less only for a norm below SMALLEST_NORM
    bound = MARGIN * gram.norm(dim=(-2, -1), keepdim=True).float().sqrt().clamp(min=least)
    scale = bound.reciprocal().to(dtype)
    x = polynomial(x * scale, gram * scale.square(), *COEFFICIENTS[0])
    for coefficients in COEFFICIENTS[1:]:
        x = polynomial(x, torch.bmm(x, x.mT), *coefficients)
    return x.mT if is_tall else x


def polynomial(x: Tensor, gram: Tensor, a: float, b: float, c: float) -> Tensor:
    """(a + b G + c G^2) X with G = X X', which maps each singular value s to a s + b s^3 + c s^5."""
    return torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)


def orthogonalize_flops(rows: int, columns: int) -> int:
    """Floating-point operations of `orthogonalize` for one (R, C) matrix: three products per polynomial."""
    short, long = sorted((rows, columns))
    return len(COEFFICIENTS) * (4 * short * short * long + 2 * short**3)


class Composite(SkippingOptimizer):
    """Several optimizers as one; each updates its own weights. Groups are one list, state is one mapping."""

    def __init__(self, parts: list[SkippingOptimizer]):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            part.state = self.state

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies; torch's method omits other attributes."""
        return {**super().__getstate__(), "parts": self.parts}

    def step(self, closure: Any = None) -> Any:
        for part in self.parts:
            part.skip = self.skip
            part.step()


def make_optimizer(model: nn.Module, config: TrainingConfig, dtype: torch.dtype = torch.float32) -> SkippingOptimizer:
    """The optimizer for the weights of `model` that require a gradient; `dtype` is for the optimizer's matrix products.

    Matrices and embeddings decay towards zero; biases and norm scales, which have one dimension, do not, unless
    `weight_decay_by_path` matches them. A glob that matches no weight is a `ConfigError`. On a GPU, non-finite steps
    are skipped.
    """
    check_type("the model", model, nn.Module, "a module, such as the decoder")
    check_type("the configuration", config, TrainingConfig, "a TrainingConfig")
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
    optimizer = AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)
    # A hook, since torch runs the hooks of a step twice if a subclass of a used optimizer calls `super().step`
    optimizer.register_step_post_hook(count_changes)
    return optimizer


def count_changes(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Count the changes of torch's fused kernel, which does not, for the prepared forms of a decoder."""
    torch.autograd.graph.increment_version([each for group in optimizer.param_groups for each in group["params"]])


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
    "sgd": lambda weights, config, _: SGD(decay_groups(weights, config), config.learning_rate, config.momentum),
}


def is_muons(path: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and matches(MUON, path)


def decay_groups(weights: Weights, config: TrainingConfig) -> list[dict[str, Any]]:
    groups: dict[float, list[Tensor]] = {}
    for path, weight in weights.items():
        groups.setdefault(weight_decay_of(path, weight, config), []).append(weight)
    return [{"params": members, "weight_decay": decay} for decay, members in groups.items()]


def weight_decay_of(path: str, weight: Tensor, config: TrainingConfig) -> float:
    """The decay of the last matching glob; without one, `weight_decay` for matrices and 0 for vectors."""
    matching = [decay for glob, decay in config.weight_decay_by_path.items() if matches(glob, path)]
    return matching[-1] if matching else config.weight_decay if weight.dim() >= 2 else 0.0


def freeze(model: nn.Module, config: TrainingConfig) -> None:
    """Turn off the gradient of weights that `config.frozen` matches; call this before `make_optimizer`.

    A glob that matches no weight, and freezing all weights, are a `ConfigError`.
    """
    weights = dict(model.named_parameters())
    check_globs("frozen", config.frozen, weights)
    for path, weight in weights.items():
        if is_frozen(path, config):
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ConfigError(f"training.frozen = {list(config.frozen)} leaves no weight to train; remove some globs")


def is_frozen(path: str, config: TrainingConfig) -> bool:
    return any(matches(glob, path) for glob in config.frozen)


def check_globs(field: str, globs: Iterable[str], paths: Iterable[str], kind: str = "weight") -> None:
    """Refuse a glob that matches no path, because it would have no effect."""
    known = list(paths)
    for glob in globs:
        if not any(matches(glob, path) for path in known):
            raise ConfigError(f"training.{field}: no {kind} is named '{glob}'{suggest(glob, known)}")


def moments_per_element(path: str, shape: tuple[int, ...], config: TrainingConfig) -> int:
    """The number of float32 values per element of a weight in the optimizer's state; 0 for a frozen weight."""
    has_one = config.optimizer == "sgd" or (config.optimizer == "muon" and is_muons(path, shape))
    return 0 if is_frozen(path, config) else 1 if has_one else 2


def optimizer_flops_per_step(shapes: Shapes, config: TrainingConfig) -> int:
    """Floating-point operations of the optimizer's matrix products per step; 0 except for Muon."""
    if config.optimizer != "muon":
        return 0
    return sum(
        orthogonalize_flops(*shape)
        for path, shape in shapes.items()
        if is_muons(path, shape) and not is_frozen(path, config)
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
