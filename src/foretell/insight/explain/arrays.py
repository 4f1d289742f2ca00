"""Recorded tensors as NumPy arrays that hold them exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating[Any]]


def to_array(value: Tensor) -> Array:
    """Float64 on the CPU, which holds every smaller floating-point number exactly."""
    return value.detach().cpu().double().numpy()
