"""The speed of devices: data of GPUs, measured trainings (a prediction uses the nearest), a probe of this machine.

A measured training has the share of its device's peak that it reached: the model's arithmetic, 6N + 12 L (H E) T
operations per token, over time and peak (MFU, Chowdhery et al. 2022, appendix B), unless the source publishes
its operations. The probe runs training steps of a shape and reads memory, in a few seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import make_batch
from foretell.errors import UsageError, did_you_mean
from foretell.model.cost import training_flops_per_token
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.planning.estimate import Range, round_number
from foretell.training.execution import make_objective
from foretell.training.optimizer import optimizer_flops_per_step
from foretell.training.timing import time_steps
from foretell.typesetting.document import DocumentSection, Table
from foretell.weight_shapes import weight_shapes

THIS = "this"
CPU = "cpu"
CPU_PEAK = 435e9  # FLOP/s of the fastest bfloat16 matmul on two Zen 4 cores, measured with the first CPU row
NEAR = 2.0  # largest factor in model size and training arithmetic of a near row
# Ranges of the predicted share of the peak, relative to the row's: for a near row on the same device, and otherwise
NEAR_SHARE, FAR_SHARE = Range(1 / 1.3, 1.3), Range(1 / 2, 1.6)


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
class Calibration:
    """A measured training. device_seconds: the time multiplied by the number of devices."""

    name: str
    device: str
    flops_per_token: float
    tokens: float
    device_seconds: float
    peak_flops: float
    source: str

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens

    @property
    def share(self) -> float:
        """The share of the peak that was reached."""
        return self.flops / (self.device_seconds * self.peak_flops)


@dataclass(frozen=True)
class Basis:
    """The row that a prediction is based on, and the share of the peak that follows from it.

    factor: the distance to the row, as a factor in model size or in training arithmetic.
    """

    row: Calibration
    share: Range
    factor: float
    is_near: bool

    def to_json(self) -> dict[str, Any]:
        measured = {"name": self.row.name, "gpu": self.row.device, "share_of_peak": self.row.share}
        assumed = {"share": asdict(self.share), "factor": self.factor, "is_near": self.is_near}
        return {"kind": "row", **measured, "source": self.row.source, **assumed}

    def describe(self, gpu: str) -> str:
        """The measured training and the assumed share, in words."""
        row, share = self.row, self.share
        far = (
            f" No measured training on {gpu} is within a factor of two in model size and FLOPs (this one: a factor of "
            f"{self.factor:,.1f}), so the range is wide."
        )
        return (
            f"Based on {row.name} on {row.device}: {row.share:.0%} of the peak ({row.source}). "
            f"Assumed: {share.low:.0%} to {share.high:.0%} of the peak of {gpu}.{'' if self.is_near else far}"
        )


@cache
def calibrations() -> tuple[Calibration, ...]:
    flops = training_flops_per_token
    return (
        _on_gpu("llm.c, GPT-2 124M", "a100", flops(preset_config("gpt2")), 10e9, 8 * 95 * 60, LLM_C),
        # 16,704 steps of 524,288 tokens; operations as nanochat counts them
        _on_gpu("nanochat d24", "h100", 4.33e19 / (16_704 * 524_288), 16_704 * 524_288, 8 * 10_949, NANOCHAT),
        _on_gpu("Llama 2 7B", "a100", flops(_llama(32, 32, 4096, 11_008)), 2e12, 184_320 * 3600, LLAMA),
        _on_gpu("Llama 2 13B", "a100", flops(_llama(40, 40, 5120, 13_824)), 2e12, 368_640 * 3600, LLAMA),
        _on_gpu("Llama 2 70B", "a100", flops(_llama(80, 64, 8192, 28_672, 8)), 2e12, 1_720_320 * 3600, LLAMA),
        # 3 steps of 64 rows of 256 tokens at 3,962 tokens/s
        _on_cpu("10.7M, AdamW", flops(_shakespeare()), 3 * 64 * 256, 3_962, "docs/performance.md"),
        # 1,300 steps of 8 rows of 256 tokens at 4,548 tokens/s; Muon's matmuls are a third of the arithmetic
        _on_cpu("4.8M, Muon", _flops_with_muon(8), 1_300 * 8 * 256, 4_548, "docs/speedrun.md"),
    )


LLM_C = "karpathy/llm.c, discussion 481"
NANOCHAT = "karpathy/nanochat, dev/LEADERBOARD.md, run 1"
LLAMA = "Touvron et al. 2023b (Llama 2), table 2"


def _on_gpu(name: str, gpu: str, flops: float, tokens: float, seconds: float, source: str) -> Calibration:
    return Calibration(name, gpu, flops, tokens, seconds, ACCELERATORS[gpu].peak_flops, source)


def _on_cpu(name: str, flops: float, tokens: float, tokens_per_second: float, source: str) -> Calibration:
    return Calibration(name, CPU, flops, tokens, tokens / tokens_per_second, CPU_PEAK, source)


def _flops_with_muon(rows: int) -> float:
    config = preset_config("small", vocab_size=65)
    training = TrainingConfig(steps=1, optimizer="muon", batch_size=rows)
    return step_flops(config, training) / (rows * config.context_length)


def _shakespeare() -> ModelConfig:
    sizes = {"num_layers": 6, "num_heads": 6, "width": 384, "context_length": 256, "vocab_size": 65}
    return make_section(ModelConfig, {**sizes, "bias": False})


def _llama(layers: int, heads: int, width: int, feedforward_width: int, kv_heads: int | None = None) -> ModelConfig:
    """Touvron et al. 2023b: a context of 4,096, 32,000 tokens."""
    values: dict[str, Any] = {"num_layers": layers, "num_heads": heads, "num_kv_heads": kv_heads, "width": width}
    values |= {"feedforward_width": feedforward_width, "context_length": 4096, "vocab_size": 32_000}
    values |= {"position": "rotary", "norm": "rmsnorm", "feedforward": "gated", "activation": "silu"}
    return make_section(ModelConfig, {**values, "bias": False, "tie_embeddings": False})


def nearest(flops_per_token: float, tokens: float, device: str, rows: Sequence[Calibration] | None = None) -> Basis:
    """The row nearest in model size and training arithmetic: rows of CPUs for a CPU, rows of GPUs for a GPU."""
    candidates = [row for row in (calibrations() if rows is None else rows) if (row.device == CPU) == (device == CPU)]
    row = min(candidates, key=lambda row: distance(row, flops_per_token, tokens))
    factor = distance(row, flops_per_token, tokens)
    is_near = factor <= NEAR and row.device == device
    spread = NEAR_SHARE if is_near else FAR_SHARE
    share = spread * row.share
    return Basis(row, Range(share.low, min(1.0, share.high)), factor, is_near)


def distance(row: Calibration, flops_per_token: float, tokens: float) -> float:
    """The factor between a row and a training: in operations per token or in all operations, whichever is larger."""
    ratios = flops_per_token / row.flops_per_token, flops_per_token * tokens / row.flops
    return max(math.exp(abs(math.log(ratio))) for ratio in ratios)


@dataclass(frozen=True)
class Prediction:
    """A measured training, and its device seconds predicted from the other rows."""

    row: Calibration
    basis: Basis
    device_seconds: Range

    @property
    def is_right(self) -> bool:
        return self.row.device_seconds in self.device_seconds

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "device": self.row.device,
            "device_hours": self.row.device_seconds / 3600,
            "predicted": asdict(self.device_seconds / 3600),
            "source": self.row.source,
            "basis": self.basis.to_json(),
            "is_right": self.is_right,
        }


def backtest() -> list[Prediction]:
    """A prediction for every row from the other rows."""
    return [predict(row, [other for other in calibrations() if other is not row]) for row in calibrations()]


def predict(row: Calibration, others: list[Calibration]) -> Prediction:
    basis = nearest(row.flops_per_token, row.tokens, row.device, others)
    at_peak = row.flops / row.peak_flops
    return Prediction(row, basis, Range(at_peak / basis.share.high, at_peak / basis.share.low))


def backtest_document(predictions: list[Prediction]) -> DocumentSection:
    """A table of the device hours, predicted and measured."""
    rows = [
        (
            each.row.name,
            f"{round_number(each.device_seconds.low / 3600)} - {round_number(each.device_seconds.high / 3600)}",
            round_number(each.row.device_seconds / 3600),
            each.basis.row.name,
        )
        for each in predictions
    ]
    return DocumentSection("", [Table(("device hours of", "predicted", "measured", "from"), rows)])


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


@dataclass(frozen=True)
class Probe:
    """A measurement: FLOP/s of training with this number of layers and rows."""

    rate: Range
    layers: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": "probe", **asdict(self)}

    def describe(self, gpu: str) -> str:
        rate = f"{self.rate.low / 1e9:,.0f} to {self.rate.high / 1e9:,.0f} GFLOP/s"
        return f"Based on a probe of this machine: {self.layers} layers, {self.rows} rows, {rate}."


def probe(config: ModelConfig, training: TrainingConfig, device: torch.device, dtype: torch.dtype) -> Probe:
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
    rate_range = Range(done / max(seconds) * MARGINS.low, done / min(seconds) * MARGINS.high)
    return Probe(rate_range, smaller.num_layers, steps.batch_size)


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
