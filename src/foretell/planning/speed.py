"""The speed of devices: data of GPUs with the share of the peak that a training reached, and a probe of this machine.

The share is the model's arithmetic, 6N + 12 L (H E) T operations per token, over time and peak (MFU, Chowdhery et al.
2022, appendix B). The probe runs training steps of a shape and reads memory, in a few seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.data.batch import make_batch
from foretell.errors import UsageError, did_you_mean
from foretell.model.cost import training_flops_per_token
from foretell.model.init import make_decoder
from foretell.planning.estimate import Range
from foretell.training.execution import make_objective
from foretell.training.optimizer import optimizer_flops_per_step
from foretell.training.timing import time_steps

THIS = "this"
MEASURED_SHARE = 0.43  # of the peak of an H200, in a compiled training of GPT-2 124M (docs/performance.md)
ASSUMED_SHARE = Range(1 / 2, 1.6) * MEASURED_SHARE  # for other shapes and GPUs; published trainings reached 43% to 60%


@dataclass(frozen=True)
class Accelerator:
    """A device that trains. peak_flops: dense, in bfloat16; memory in bytes; bandwidth in bytes per second."""

    name: str
    memory: float
    bandwidth: float
    peak_flops: float
    source: str


# Dense products: rates with sparsity from data sheets are halved
ACCELERATORS = {
    name: Accelerator(name, gigabytes * 1e9, terabytes_per_second * 1e12, teraflops * 1e12, source)
    for name, teraflops, gigabytes, terabytes_per_second, source in (
        ("a100", 312, 80, 2.039, "NVIDIA A100 80GB SXM, data sheet"),
        ("a100-40gb", 312, 40, 1.555, "NVIDIA A100 40GB SXM, data sheet"),
        ("h100", 989, 80, 3.35, "NVIDIA H100 SXM, data sheet"),
        ("h200", 989, 141, 4.8, "NVIDIA H200 SXM, data sheet"),
        ("l4", 121, 24, 0.3, "NVIDIA L4, data sheet"),
        ("rtx4090", 165.2, 24, 1.008, "NVIDIA Ada architecture white paper, products summed in float32"),
    )
}


def find_accelerator(name: str) -> Accelerator:
    """The GPU of this name; an unknown one is a `UsageError`."""
    if name not in tuple(ACCELERATORS):  # it need not be hashable
        known = ", ".join((THIS, *ACCELERATORS))
        raise UsageError(f"gpu '{name}' is not known{did_you_mean(name, ACCELERATORS)}; known: {known}")
    return ACCELERATORS[name]


@dataclass(frozen=True)
class Speed:
    """The rate of a training on one device, in FLOP/s, and the measurement that it is based on, in words."""

    rate: Range
    measurement: str


def speed_of(gpu: Accelerator) -> Speed:
    """The rate of a GPU that is not in this machine: a share of its peak."""
    measurement = (
        f"foretell's training of GPT-2 124M on an H200, at {MEASURED_SHARE:.0%} of its peak; assumed: "
        f"{ASSUMED_SHARE.low:.0%} to {ASSUMED_SHARE.high:.0%} of the peak of {gpu.name}"
    )
    return Speed(ASSUMED_SHARE * gpu.peak_flops, measurement)


PROBE_SECONDS = 2.0
STEP_SECONDS = 0.5  # approximate time of one step of the reduced shape
FIRST_FLOPS = 2e9  # operations of the first step, which decides the size of the others
ROUNDS = 3  # trials to find that size
READ_BYTES = 2**28
MEASURING = 0.2  # seconds
SIDES = {"cuda": 8192}  # side of the multiplied matrices, by device
SIDE = 1024  # on other devices
# Factors on the slowest and the fastest step: a probe is short and measures fewer layers than the model has
MARGINS = Range(1 / 1.3, 1.2)


def step_seconds(
    config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype, duration: float
) -> list[float]:
    """The seconds of training steps on random tokens, for `duration` seconds and at least one."""
    objective = make_objective(make_decoder(config, seed=0), device, dtype)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (training.batch_size, config.context_length + 1))
    batch = make_batch(tokens)
    return time_steps(objective, objective.decoder, lambda step: batch, training, dtype, duration)


def probe(config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype) -> Speed:
    """This machine's rate of training this shape, from steps of about STEP_SECONDS with fewer rows and layers."""
    flops = FIRST_FLOPS
    for _ in range(ROUNDS):
        smaller, steps = cut_down(config, training, flops)
        done = step_flops(smaller, steps)
        rate = done / min(step_seconds(smaller, steps, device, dtype, 0.0))
        flops = rate * STEP_SECONDS
        if done > flops / 2:
            break
    smaller, steps = cut_down(config, training, flops)
    seconds, done = step_seconds(smaller, steps, device, dtype, PROBE_SECONDS), step_flops(smaller, steps)
    measured = Range(done / max(seconds) * MARGINS.low, done / min(seconds) * MARGINS.high)
    rate = f"{measured.low / 1e9:,.0f} to {measured.high / 1e9:,.0f} GFLOP/s"
    return Speed(measured, f"a probe of this machine: {smaller.num_layers} layers, {steps.batch_size} rows, {rate}")


def step_flops(config: ModelConfig, training: TrainingConfig) -> float:
    """Operations of a step, with the optimizer."""
    tokens = training.batch_size * config.context_length
    return training_flops_per_token(config) * tokens + optimizer_flops_per_step(weight_shapes(config), training)


def cut_down(config: ModelConfig, training: TrainingConfig, flops: float) -> tuple[ModelConfig, TrainingConfig]:
    """Fewer layers, and fewer rows at once, so that a step has about `flops` operations; at least one of each.

    Layers are cut first, because the number of rows decides which share of the time goes to the weights.
    """
    config = config.replaced(window=config.windows[0])
    one_layer = config.replaced(num_layers=1)
    per_row = training_flops_per_token(one_layer) * config.context_length
    kept = int(min(training.batch_size, max(1, flops // per_row)))
    added = (training_flops_per_token(config.replaced(num_layers=2)) * config.context_length - per_row) * kept
    layers = 1 + int(max(0.0, flops - per_row * kept) // added)
    steps = training.model_copy(update={"batch_size": kept, "gradient_accumulation_steps": 1})
    return config.replaced(num_layers=min(config.num_layers, layers)), steps


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of reading memory: the best of three sums over READ_BYTES."""
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
