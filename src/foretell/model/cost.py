"""What a model costs: parameters, arithmetic, memory."""

from __future__ import annotations

import torch

from foretell.config import ModelConfig
from foretell.model.decoder import Decoder


def count_parameters(config: ModelConfig) -> int:
    """Parameters of a decoder, a tied head counted once; no weight is made for it, and only two of the layers.

    What one layer more adds is the same for each: only their windows differ, which have no parameters.
    """
    shallow = [_count(config.replaced(num_layers=layers, window=None)) for layers in (1, 2)]
    return shallow[0] + (config.num_layers - 1) * (shallow[1] - shallow[0])


def _count(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Decoder(config).parameters())


def training_flops_per_token(config: ModelConfig) -> int:
    """6N + 12 L (H E) T: forward and backward, with attention over a full context (Chowdhery et al. 2022, appendix B).

    N leaves out learned positions, which are looked up and not multiplied.
    """
    looked_up = config.context_length * config.width if config.position == "learned" else 0
    matrix_parameters = count_parameters(config) - looked_up
    attention_width = config.num_heads * config.head_width
    return 6 * matrix_parameters + 12 * config.num_layers * attention_width * config.context_length


def cache_bytes_per_token(config: ModelConfig, element_bytes: int) -> int:
    """Keys and values of one position in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_width * element_bytes
