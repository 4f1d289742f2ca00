"""Cost of a model: parameters, arithmetic, memory."""

from __future__ import annotations

from foretell.config.model import ModelConfig
from foretell.config.weight_shapes import count_parameters
from foretell.model.init import empty_decoder
from foretell.model.structure import model_structure


def saved_bytes_per_token(config: ModelConfig, matmul_bytes: int = 2) -> int:
    """Bytes that a forward pass keeps for the backward pass, per token of a full context, at least.

    matmul_bytes: bytes of an element in the precision of matmuls. `model/structure.py` counts the tensors that the
    modules declare, 0.5 to 1 of the bytes of a real pass (tests/model/test_structure.py). The bytes grow by the same
    amount with every layer, so decoders of one and two layers without weights are counted.
    """
    shallow = [empty_decoder(config.replaced(num_layers=layers, window=None)) for layers in (1, 2)]
    counts = [model_structure(each).saved_bytes_per_token(config.context_length, matmul_bytes) for each in shallow]
    return counts[0] + (config.num_layers - 1) * (counts[1] - counts[0])


def training_flops_per_token(config: ModelConfig) -> int:
    """`ModelConfig.training_flops_per_token` of a decoder with this configuration."""
    return config.training_flops_per_token(count_parameters(config))
