"""Rotary positions: each pair of numbers in a query or key is turned by an angle that grows with the position.

Su et al. 2021, RoFormer, section 3.2. As in Llama's checkpoints, pair i is made of elements i and i + E/2.
"""

from __future__ import annotations

import math

import numpy as np

from foretell.config import ModelConfig, RopeScaling
from foretell.textbook.arrays import Vector


def rotate(config: ModelConfig, position: int, head: Vector) -> Vector:
    """The query or key of one head (E,) as it stands at `position`."""
    angles = np.array([position * frequency(config, pair) for pair in range(config.head_width // 2)])
    cosine, sine = np.cos(angles).astype(head.dtype), np.sin(angles).astype(head.dtype)
    first, second = np.split(head, 2)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine])


def frequency(config: ModelConfig, pair: int) -> float:
    """The angle, in radians, by which a pair turns from one position to the next: theta^(-2i/E), then scaled."""
    trained = config.rope_theta ** (-2 * pair / config.head_width)
    if config.rope_scaling is None:
        return trained
    if config.rope_scaling.type == "linear":  # Chen et al. 2023: positions move closer together
        return trained / config.rope_scaling.factor
    return llama3_frequency(trained, config.rope_scaling)


def llama3_frequency(trained: float, scaling: RopeScaling) -> float:
    """Short waves are kept, long ones slowed by the factor, those between are mixed (Llama 3.1's released code)."""
    wavelength = 2 * math.pi / trained  # positions a turn
    slowed, context = trained / scaling.factor, scaling.original_context_length
    if wavelength < context / scaling.high_frequency_factor:
        return trained
    if wavelength > context / scaling.low_frequency_factor:
        return slowed
    between = scaling.high_frequency_factor - scaling.low_frequency_factor
    share = (context / wavelength - scaling.low_frequency_factor) / between
    return (1 - share) * slowed + share * trained
