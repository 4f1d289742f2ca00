"""Where a token stands: learned or sinusoidal vectors added to the embedding, or a rotation of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from foretell.config import ModelConfig, RopeScaling

Rotation = tuple[Tensor, Tensor]  # cosines and sines of the angles, (B or 1, 1, T, E)


class SinusoidalPosition(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same (Vaswani et al. 2017, section 3.5)."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        pairs = torch.arange(0, self.width, 2, device=positions.device)
        angles = positions[..., None].double() * 10_000.0 ** (-pairs.double() / self.width)  # (B, T, D/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (B, T, D)


class NoRotation(nn.Module):
    """Queries and keys stay as they are: positions came with the embedding, or not at all."""

    def forward(self, positions: Tensor, dtype: torch.dtype) -> None:
        return None


class RotaryPosition(nn.Module):
    """Angles that turn pair i of a head by position * theta^(-2i/E) (Su et al. 2021, RoFormer, section 3.2).

    Pair i is made of elements i and i + E/2, as in Llama's and Qwen's Hugging Face checkpoints.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_width, self.theta = config.head_width, config.rope_theta
        self.scale = SCALINGS[config.rope_scaling.type if config.rope_scaling else None]
        self.scaling = config.rope_scaling

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        precise = torch.promote_types(dtype, torch.float32)  # bfloat16 can't count beyond 256
        pairs = torch.arange(0, self.head_width, 2, device=positions.device, dtype=precise)
        frequencies = self.scale(self.theta ** (-pairs / self.head_width), self.scaling)
        angles = positions[:, None, :, None].to(precise) * frequencies  # (B, 1, T, E/2)
        angles = torch.cat((angles, angles), dim=-1)  # (B, 1, T, E)
        return angles.cos(), angles.sin()


def keep_heads(heads: Tensor, rotation: None) -> Tensor:
    """Heads as they are, where positions came with the embedding."""
    return heads


def rotate_heads(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn every pair of every head (B, H, T, E) by its position's angle."""
    cosine, sine = (part.to(heads.dtype) for part in rotation)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def keep_frequencies(frequencies: Tensor, scaling: None) -> Tensor:
    """The frequencies as trained."""
    return frequencies


def interpolate(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Every position moved closer by the same factor (Chen et al. 2023, position interpolation)."""
    return frequencies / scaling.factor


def interpolate_low_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: slow waves are stretched by the factor, fast ones kept, those between blended (Dubey et al. 2024)."""
    waves = scaling.original_context_length * frequencies / (2 * math.pi)  # full turns within the original context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((waves - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


SCALINGS: dict[str | None, Callable] = {
    None: keep_frequencies,
    "linear": interpolate,
    "llama3": interpolate_low_frequencies,
}
ROTATIONS: dict[bool, tuple[Callable, Callable]] = {
    True: (RotaryPosition, rotate_heads),
    False: (lambda config: NoRotation(), keep_heads),
}
