"""Speed of this machine, measured in a few seconds: training steps of a shape, and reading memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from foretell.config import ModelConfig, TrainingConfig
from foretell.data.batch import make_batch
from foretell.model.cost import training_flops_per_token
from foretell.model.init import make_decoder, weight_shapes
from foretell.planning.estimate import Range
from foretell.training.objective import make_objective
from foretell.training.optimizer import make_optimizer, optimizer_flops_per_step
from foretell.training.step import SkippingOptimizer, TrainingBatch, training_step

PROBE_SECONDS = 2.0
STEP_SECONDS = 0.5  # about, of one step of a shape that is cut down
FIRST_FLOPS = 2e9  # of the first step, from which the size of the others follows
ROUNDS = 3  # of finding that size
READ_BYTES = 2**28
MEASURING = 0.2  # seconds
SIDES = {"cuda": 8192}  # side of the multiplied matrices, by device
SIDE = 1024  # on other devices
# Factors on the slowest and the fastest step: a probe is short and measures fewer layers than the model has
MARGINS = Range(1 / 1.3, 1.2)


def measure_speed(
    config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype, processes: int = 1
) -> float:
    """Training tokens per second of this shape on this machine, measured for PROBE_SECONDS on random tokens.

    With several processes, this one is measured with its rows of a batch, and the others are assumed to be as fast.
    """
    rows = max(training.gradient_accumulation_steps, training.batch_size // processes)
    training = training.model_copy(update={"batch_size": rows})
    seconds = step_seconds(config, training, device, dtype, PROBE_SECONDS)
    return processes * rows * config.context_length * len(seconds) / sum(seconds)


def step_seconds(
    config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype, duration: float
) -> list[float]:
    """The seconds of training steps on random tokens, for `duration` seconds and at least one."""
    objective = make_objective(make_decoder(config, seed=0), device, dtype)
    # Globs may name layers that only the size chosen later has; weight decay takes no time
    training = training.model_copy(update={"weight_decay_by_path": {}, "frozen": ()})
    optimizer = make_optimizer(objective.decoder, training, dtype)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (training.batch_size, config.context_length + 1))
    batch = make_batch(tokens)
    return time_steps(objective, optimizer, lambda step: batch, training, dtype, duration)


def time_steps(
    objective: nn.Module,
    optimizer: SkippingOptimizer,
    batch: Callable[[int], TrainingBatch],
    training: TrainingConfig,
    dtype: torch.dtype,
    duration: float,
    fewest: int = 1,
) -> list[float]:
    """The seconds of training steps, for `duration` seconds and at least `fewest` steps."""
    _ = training_step(objective, optimizer, batch(0), 0, training, dtype).loss  # the first one warms up
    seconds: list[float] = []
    while sum(seconds) < duration or len(seconds) < fewest:
        started, step = time.perf_counter(), len(seconds) + 1
        _ = training_step(objective, optimizer, batch(step), step, training, dtype).loss  # reading waits for a GPU
        seconds.append(time.perf_counter() - started)
    return seconds


@dataclass(frozen=True)
class Probe:
    """Measurements: FLOP/s of training with the measured shape, and bytes per second of reading."""

    rate: Range
    layers: int
    rows: int
    bandwidth: float

    def to_json(self) -> dict[str, Any]:
        return {"kind": "probe", **asdict(self)}

    def describe(self, gpu: str) -> str:
        """The measurement in words."""
        rate = f"{self.rate.low / 1e9:,.0f} to {self.rate.high / 1e9:,.0f} GFLOP/s"
        return f"Based on a probe of this machine: {self.layers} layers, {self.rows} rows, {rate}."


def probe(config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype) -> Probe:
    """The rate of training this shape here, from steps of about STEP_SECONDS with fewer rows and layers."""
    flops = FIRST_FLOPS
    for _ in range(ROUNDS):
        smaller, rows = cut_down(config, training.batch_size, flops)
        steps = training.model_copy(update={"batch_size": rows, "gradient_accumulation_steps": 1})
        done = step_flops(smaller, steps)
        rate = done / min(step_seconds(smaller, steps, device, dtype, 0.0))
        flops = rate * STEP_SECONDS
        if done > flops / 2:
            break
    smaller, rows = cut_down(config, training.batch_size, flops)
    steps = training.model_copy(update={"batch_size": rows, "gradient_accumulation_steps": 1})
    seconds, done = step_seconds(smaller, steps, device, dtype, PROBE_SECONDS), step_flops(smaller, steps)
    rate_range = Range(done / max(seconds) * MARGINS.low, done / min(seconds) * MARGINS.high)
    return Probe(rate_range, smaller.num_layers, rows, read_bandwidth(device))


def step_flops(config: ModelConfig, training: TrainingConfig) -> float:
    """Operations of a step, with the optimizer."""
    tokens = training.batch_size * config.context_length
    return training_flops_per_token(config) * tokens + optimizer_flops_per_step(weight_shapes(config), training)


def cut_down(config: ModelConfig, rows: int, flops: float) -> tuple[ModelConfig, int]:
    """The shape with fewer layers and rows, so that a step has about `flops` operations; at least one row.

    Layers are cut first, since the number of rows decides which share of the time goes to the weights.
    """
    config = config.replaced(window=config.windows[0])
    one_layer = config.replaced(num_layers=1)
    per_row = training_flops_per_token(one_layer) * config.context_length
    kept = int(min(rows, max(1, flops // per_row)))
    added = (training_flops_per_token(config.replaced(num_layers=2)) * config.context_length - per_row) * kept
    layers = 1 + int(max(0.0, flops - per_row * kept) // added)
    return config.replaced(num_layers=min(config.num_layers, layers)), kept


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of reading memory: the best sum of READ_BYTES out of three."""
    values = torch.ones(READ_BYTES // 4, device=device)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        float(values.sum())
        best = min(best, time.perf_counter() - started)
    return READ_BYTES / best


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of matmuls of large square matrices, the best of MEASURING seconds."""
    side = SIDES.get(device.type, SIDE)
    rng = torch.Generator(device).manual_seed(0)  # equal elements multiply faster on a GPU than real ones
    matrix = torch.randn(side, side, device=device, generator=rng).to(dtype)
    started, best = time.perf_counter(), float("inf")
    while time.perf_counter() - started < MEASURING or best == float("inf"):
        begun = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # reading a value waits for the device
        best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best
