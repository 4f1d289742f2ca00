"""What training takes of the machine: memory, and the share of its matrix rate that does a model's arithmetic."""

from __future__ import annotations

import resource
import sys
import time

import torch

from foretell.config import ModelConfig
from foretell.model.cost import training_flops_per_token

MEASURED_AFTER = 10.0  # seconds of training, so that a short run never waits for a number that it does not need
MEASURING = 0.2  # seconds
SIDES = {"cuda": 8192}  # of the matrices that are multiplied, where it is not the one below
SIDE = 1024
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in a unit of ru_maxrss


class Meter:
    """Memory, and how well a device is used; its matrix rate is measured once, when it is first asked for."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype):
        self.config, self.device, self.dtype = config, device, dtype
        self._rate: float | None = None

    def mfu(self, tokens_per_second: float | None, seconds: float) -> float | None:
        """The arithmetic of training, 6N + 12 L (H E) T a token, as a share of what the device could multiply.

        None for the first MEASURED_AFTER `seconds` of training.
        """
        if tokens_per_second is None or seconds < MEASURED_AFTER:
            return None
        self._rate = self._rate or matrix_rate(self.device, self.dtype)
        return round(tokens_per_second * training_flops_per_token(self.config) / self._rate, 4)

    def peak_memory_bytes(self) -> int:
        """The most that was needed so far: of a GPU's memory where one is used, else of the process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second in products of large square matrices, the best of MEASURING seconds."""
    side = SIDES.get(device.type, SIDE)
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    started, best = time.perf_counter(), float("inf")
    while time.perf_counter() - started < MEASURING or best == float("inf"):
        begun = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # reading a number waits until it is there
        best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best
