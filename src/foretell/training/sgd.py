"""Gradient descent with momentum (Polyak 1964) and decoupled weight decay (Loshchilov and Hutter 2019, algorithm 1)."""

from __future__ import annotations

from typing import Any

import torch


class SGD(torch.optim.Optimizer):
    """The momentum is kept also where it is 0, so that every parameter has a moment in a checkpoint.

    torch's own adds the decay to the gradient, where the momentum would remember it.
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
                velocity = state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(velocity, alpha=-group["lr"])
