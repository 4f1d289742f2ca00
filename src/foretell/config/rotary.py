"""The angles of rotary positions."""

from __future__ import annotations

import math

from foretell.config.model import ModelConfig, RopeScaling


def frequency(config: ModelConfig, pair: int, is_local: bool = False) -> float:
    """The angle, in radians per position, by which a pair rotates: theta^(-2i/R), then scaled; 0 beyond R elements.

    is_local: in a layer with a window, which may have a base that is not scaled.
    """
    if 2 * pair >= config.rotary_width:
        return 0.0
    exponent = -2 * pair / config.rotary_width
    if is_local and config.local_rope_theta is not None:
        return config.local_rope_theta**exponent
    trained = config.rope_theta**exponent
    if config.rope_scaling is None:
        return trained
    if config.rope_scaling.type == "linear":  # Chen et al. 2023: position interpolation
        return trained / config.rope_scaling.factor
    return llama3_frequency(trained, config.rope_scaling)


def llama3_frequency(trained: float, scaling: RopeScaling) -> float:
    """The scaled frequency: unchanged for short wavelengths, divided by the factor for long ones, interpolated between.

    Llama 3.1's released code.
    """
    wavelength = 2 * math.pi / trained  # positions per full rotation
    slowed, context = trained / scaling.factor, scaling.original_context_length
    if wavelength < context / scaling.high_frequency_factor:
        return trained
    if wavelength > context / scaling.low_frequency_factor:
        return slowed
    between = scaling.high_frequency_factor - scaling.low_frequency_factor
    share = (context / wavelength - scaling.low_frequency_factor) / between
    return (1 - share) * slowed + share * trained
