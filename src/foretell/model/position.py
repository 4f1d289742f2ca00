"""Positions: learned or sinusoidal vectors added to the embedding, or a rotation of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.config.model import ModelConfig, RopeScaling
from foretell.model.description import Description

Rotation = tuple[Tensor, Tensor]  # cosines and sines of the angles, (B or 1, 1, T, E)
Rotate = Callable[[Tensor, Any], Tensor]  # (heads, their `Rotation` or None) -> heads
Scale = Callable[[Tensor, Any], Tensor]  # (frequencies, `RopeScaling` or None) -> frequencies


def widest_dtype(device: torch.device) -> torch.dtype:
    """The dtype of powers, sines and cosines.

    In float32 their last bits depend on the processor. In float64 these differences vanish when the results are rounded
    to float32.
    """
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


class SinusoidalPosition(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (Vaswani et al. 2017, section 3.5)."""

    description = Description(formula="sinusoid", inputs=("positions",))
    operation = "position"

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        wide = widest_dtype(positions.device)
        pairs = torch.arange(0, self.width, 2, device=positions.device, dtype=wide)
        angles = positions[..., None].to(wide) * 10_000.0 ** (-pairs / self.width)  # (B, T, D/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (B, T, D)


class NoRotation(nn.Module):
    """No rotation: positions are part of the embedding, or there are none."""

    description = Description(is_container=True)
    operation = "angles"

    def forward(self, positions: Tensor, dtype: torch.dtype) -> None:
        return None


class RotaryPosition(nn.Module):
    """Angles that rotate pair i of a head by position * theta^(-2i/R) (Su et al. 2021, RoFormer, section 3.2).

    Pair i consists of elements i and i + E/2, as in Llama's and Qwen's Hugging Face checkpoints. The first R/2 pairs
    are rotated, which are all pairs unless `rotary_share` is below 1 (GPT-J, GPT-NeoX); the angle of the others is 0.
    """

    description = Description(
        formula="rotation angle", inputs=("positions",), parts={"cosine": "B 1 T E", "sine": "B 1 T E"}
    )
    operation = "angles"

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.rotary_width, self.theta = config.rotary_width, config.rope_theta
        self.unrotated_pairs = (config.head_width - config.rotary_width) // 2
        self.scale = SCALINGS[config.rope_scaling.type if config.rope_scaling else None]
        self.scaling = config.rope_scaling

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return self.angles(positions, dtype, self.theta, self.scale)

    def angles(self, positions: Tensor, dtype: torch.dtype, theta: float, scale: Scale) -> Rotation:
        precise = torch.promote_types(dtype, torch.float32)  # bfloat16 has no exact integers above 256
        wide = widest_dtype(positions.device)
        pairs = torch.arange(0, self.rotary_width, 2, device=positions.device, dtype=wide)
        frequencies = scale(theta ** (-pairs / self.rotary_width), self.scaling).to(precise)
        frequencies = F.pad(frequencies, (0, self.unrotated_pairs))
        angles = (positions[:, None, :, None].to(precise) * frequencies).to(wide)  # (B, 1, T, E/2)
        cosine, sine = (torch.cat((part, part), dim=-1).to(precise) for part in (angles.cos(), angles.sin()))
        return cosine, sine  # (B, 1, T, E)


class RotaryPositionByLayer(RotaryPosition):
    """Two rotations: of all layers without a window, and of those with one, whose base is not scaled (Gemma 3)."""

    description = RotaryPosition.description.changed(
        parts=dict.fromkeys(("cosine", "sine", "local_cosine", "local_sine"), "B 1 T E")
    )
    operation = "angles"

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        assert config.local_rope_theta is not None
        self.local_theta = config.local_rope_theta

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        local = self.angles(positions, dtype, self.local_theta, keep_frequencies)
        return *super().forward(positions, dtype), *local


def keep_heads(heads: Tensor, rotation: None) -> Tensor:
    """The same heads, for models without rotary positions."""
    return heads


def rotate_heads(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate every pair of every head (B, H, T, E) by the angle of its position."""
    cosine, sine = (part.to(heads.dtype) for part in rotation)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def rotate_globally(heads: Tensor, rotation: tuple[Tensor, ...]) -> Tensor:
    """`rotate_heads` in a layer without a window of a model with two rotations."""
    return rotate_heads(heads, (rotation[0], rotation[1]))


def rotate_locally(heads: Tensor, rotation: tuple[Tensor, ...]) -> Tensor:
    """`rotate_heads` in a layer with a window of a model with two rotations."""
    return rotate_heads(heads, (rotation[2], rotation[3]))


def choose_rotation(config: ModelConfig, layer: int) -> Rotate:
    if config.position != "rotary":
        return keep_heads
    if config.local_rope_theta is None:
        return rotate_heads
    return rotate_locally if config.is_local(layer) else rotate_globally


def make_rotation(config: ModelConfig) -> nn.Module:
    if config.position != "rotary":
        return NoRotation()
    return (RotaryPosition if config.local_rope_theta is None else RotaryPositionByLayer)(config)


def interpolate_low_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: divide low frequencies by the factor, keep high ones, blend those between (Dubey et al. 2024)."""
    waves = scaling.original_context_length * frequencies / (2 * math.pi)  # full turns within the original context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def keep_frequencies(frequencies: Tensor, scaling: None) -> Tensor:
    """The same frequencies, within the original context."""
    return frequencies


def divide_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Position interpolation (Chen et al. 2023)."""
    return frequencies / scaling.factor


SCALINGS: dict[str | None, Scale] = {  # no lambdas, which a model could not be pickled with
    None: keep_frequencies,
    "linear": divide_frequencies,
    "llama3": interpolate_low_frequencies,
}
