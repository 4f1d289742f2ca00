"""Does it fit? What training needs beside what the machine and the disk have, before anything is allocated."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from foretell.config import Config, ModelConfig, TrainingConfig
from foretell.device import memory_of
from foretell.errors import ConfigError
from foretell.model.cost import count_parameters

STATE_BYTES = 16  # a parameter: weight, gradient and the two moments of AdamW, in float32
SAVED_BYTES = 12  # in a checkpoint: weight and moments
# What a block keeps of a token for its gradient in bfloat16, at the very least; bench/memory.py measures all of it
INPUT_KEEPS = 2  # bytes times the width: what a sublayer reads
NORM_KEEPS = 4  # bytes times the width, the stream in float32
HEAD_KEEPS = 4  # bytes times the width of all heads of queries, and of all heads of keys (with values)
HIDDEN_KEEPS = {"none": 0, "mlp": 2, "gated": 8}  # bytes times the hidden width


def check_model_fits(config: ModelConfig, device: torch.device) -> None:
    """Refuse a model whose weights, gradients and moments alone are more than the memory."""
    parameters = count_parameters(config)
    needed, there = parameters * STATE_BYTES, memory_of(device)
    if needed > there:
        raise ConfigError(
            f"{parameters:,} parameters need {size(needed)} for weights, gradients and optimizer, and {device.type} "
            f"memory is {size(there)}; take a smaller --size, --model.width or --model.num-layers"
        )


def check_batch_fits(config: ModelConfig, training: TrainingConfig, device: torch.device) -> None:
    """Refuse a batch for which the memory is surely too small, whatever else it has to hold."""
    rows = training.batch_size // training.accumulation
    needed = count_parameters(config) * STATE_BYTES + rows * config.context_length * kept_per_token(config)
    there = memory_of(device)
    if needed > there:
        raise ConfigError(
            f"{rows:,} rows of {config.context_length:,} tokens at once need more than {size(needed)}, and "
            f"{device.type} memory is {size(there)}; lower --training.batch-size or raise --training.accumulation"
        )


def kept_per_token(config: ModelConfig) -> int:
    """Bytes that the forward pass keeps for the backward one, a token, at least."""
    norm = NORM_KEEPS if config.norm != "none" else 0
    sublayers = 1 if config.feedforward == "none" else 2
    heads = HEAD_KEEPS * config.head_width * (config.num_heads + config.num_kv_heads)
    hidden = HIDDEN_KEEPS[config.feedforward] * config.feedforward_width
    return config.num_layers * (sublayers * (INPUT_KEEPS + norm) * config.width + heads + hidden)


def check_disk_fits(config: Config, directory: Path) -> None:
    """Refuse a run whose checkpoints, with the best and the one being written, have no room on the disk."""
    count = config.training.keep_checkpoints + 2
    needed = count * count_parameters(config.model) * SAVED_BYTES
    there = shutil.disk_usage(directory).free
    if needed > there:
        raise ConfigError(
            f"{directory}: {count} checkpoints need {size(needed)}, and {size(there)} are free there; lower "
            "--training.keep-checkpoints, take a smaller --size, or give --out on another disk"
        )


def size(number: int) -> str:
    """Bytes as a person reads them: 1.5 GB."""
    value, units = float(number), ["bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:,.0f} {units[0]}" if value >= 100 or units[0] == "bytes" else f"{value:.1f} {units[0]}"
