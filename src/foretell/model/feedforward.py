"""What a block does to each position alone: widen, bend, narrow."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.linear import Linear


class SquaredRelu(nn.Module):
    """max(0, x)^2 (So et al. 2021, Primer)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


ACTIVATIONS = {
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),  # GPT-2's; Hendrycks and Gimpel 2016
    "gelu_erf": nn.GELU,
    "relu": nn.ReLU,
    "relu2": SquaredRelu,
    "silu": nn.SiLU,
}


class MLP(nn.Module):
    """down(activation(up(x))): Vaswani et al. 2017, section 3.3."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.activation = ACTIVATIONS[config.activation]()
        self.down = Linear(config.feedforward_width, config.width, bias=config.bias.feedforward)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))  # (B, T, D) -> (B, T, F) -> (B, T, D)


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)): Shazeer 2020, GLU variants; SwiGLU with SiLU."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.up = Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.activation = ACTIVATIONS[config.activation]()
        self.down = Linear(config.feedforward_width, config.width, bias=config.bias.feedforward)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))  # (B, T, D) -> (B, T, F) -> (B, T, D)


FEEDFORWARDS: dict[str, type[nn.Module]] = {"mlp": MLP, "gated": GatedMLP}
