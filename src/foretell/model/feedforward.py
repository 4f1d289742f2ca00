"""Position-wise feed-forward layers."""

from __future__ import annotations

from torch import Tensor, nn

from foretell.activations import ACTIVATIONS
from foretell.config import ModelConfig
from foretell.model.description import Declared, Description


class MLP(nn.Module):
    """down(activation(up(x))): Vaswani et al. 2017, section 3.3."""

    description = Description(
        values={
            "up": Declared("B T F"),
            "activation": Declared("B T F", ("up",)),
            "down": Declared("B T D", ("activation",)),
        },
        returns="down",
    )

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.activation = ACTIVATIONS[config.activation].make()
        self.down = nn.Linear(config.feedforward_width, config.width, bias=config.bias.feedforward)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))  # (B, T, D) -> (B, T, F) -> (B, T, D)


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)): Shazeer 2020, GLU variants; SwiGLU with SiLU."""

    description = Description(
        values={
            "gate": Declared("B T F"),
            "up": Declared("B T F"),
            "activation": Declared("B T F", ("gate",)),
            "down": Declared("B T D", ("activation", "up"), "gated linear", refines="linear"),
        },
        returns="down",
        saved=("activation", "up"),
    )

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = nn.Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.up = nn.Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.activation = ACTIVATIONS[config.activation].make()
        self.down = nn.Linear(config.feedforward_width, config.width, bias=config.bias.feedforward)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))  # (B, T, D) -> (B, T, F) -> (B, T, D)


FEEDFORWARDS: dict[str, type[nn.Module]] = {"mlp": MLP, "gated": GatedMLP}
