"""One model of bench/scale.py: measured in its own process, and what the formulas say of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from measure import Spread

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters, weight_shapes
from foretell.data.batch import Batch, make_batch
from foretell.model.cost import training_flops_per_token
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset
from foretell.planning.estimate import DeviceMemory, Range, total, training_memory
from foretell.training.execution import make_objective
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step

ROWS = 4  # of a batch
HEAD_WIDTH = 64
CPU = torch.device("cpu")
TRAINING = make_section(TrainingConfig, {"steps": 10**6, "batch_size": ROWS, "warmup_steps": 0})

Point = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How long a point is measured: passes over all points, and at least so many seconds of steps in each."""

    rounds: int
    seconds: float


def model(sizes: dict[str, int]) -> ModelConfig:
    """A shape like the sizes that `foretell train` offers, with heads of HEAD_WIDTH."""
    heads = {"num_heads": sizes["width"] // HEAD_WIDTH}
    return make_section(ModelConfig, {**preset("small"), "tie_embeddings": True, **heads, **sizes})


def random_batch(config: ModelConfig, seed: int = 0) -> Batch:
    """ROWS rows of a whole context of random tokens."""
    return make_batch(np.random.default_rng(seed).integers(0, config.vocab_size, (ROWS, config.context_length + 1)))


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(config: ModelConfig, seconds: float) -> dict[str, list[float]]:
    """Seconds of training steps, and of reading the same batch."""
    torch.set_num_threads(1)
    objective = make_objective(make_decoder(config, seed=1), CPU, torch.float32)
    optimizer, batch = make_optimizer(objective.decoder, TRAINING), random_batch(config)
    steps = repeat(lambda: training_step(objective, optimizer, batch, 0, TRAINING).loss, seconds)
    decoder = objective.decoder.eval()
    return {"step": steps, "reading": repeat(lambda: read(decoder, batch), seconds / 2)}


@torch.inference_mode()
def read(decoder: Decoder, batch: Batch) -> float:
    """A forward pass with the logits of the last position, as for a prompt."""
    return float(decoder.head(decoder.hidden(batch.ids)[:, -1]).sum())


def repeat(work: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call, for `seconds` and at least once, after one that does not count."""
    work()
    taken: list[float] = []
    while sum(taken) < seconds or not taken:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken


# --- figures ---------------------------------------------------------------------------------------------------------


def make_point(value: int, config: ModelConfig, results: Sequence[dict[str, Any]]) -> Point:
    """What was measured of a model in all rounds, and what the formulas say; `value` is the size that changes."""
    step_flops, reading_flops = flops_of(config)
    bounds = planned_memory(config)
    return {
        "value": value,
        "parameters": count_parameters(config),
        "step": asdict(Spread.of(seconds for result in results for seconds in result["step"])),
        "reading": asdict(Spread.of(seconds for result in results for seconds in result["reading"])),
        "memory": min(result["memory"] for result in results),
        "step_flops": step_flops,
        "reading_flops": reading_flops,
        "planned_memory": [bounds.low, bounds.high],
    }


def flops_of(config: ModelConfig) -> tuple[int, int]:
    """Operations of a training step (6N + 12LDT per token) and of reading the batch, with one row of logits each."""
    tokens, head = ROWS * config.context_length, config.vocab_size * config.width
    per_token = training_flops_per_token(config)
    return per_token * tokens, (per_token - 6 * head) // 3 * tokens + 2 * head * ROWS


def planned_memory(config: ModelConfig) -> Range:
    """Bytes of a step as `foretell plan` counts them."""
    memory = DeviceMemory("cpu", 2**40, dtype=torch.float32)
    return total(training_memory(config, weight_shapes(config), TRAINING, memory))


def measured(point: Point, quantity: str) -> float:
    """A figure of a point: bytes of memory, or the fastest seconds of a step or of reading."""
    return point["memory"] if quantity == "memory" else point[quantity]["low"]


def formulas(point: Point, quantity: str) -> list[float]:
    """What is compared with it: the two bounds of memory, or the operations."""
    return point["planned_memory"] if quantity == "memory" else [point[f"{quantity}_flops"]]
