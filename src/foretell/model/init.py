"""The weights that a decoder starts with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from foretell.config import ModelConfig
from foretell.model.decoder import Decoder

WEIGHT_STD = 0.02
POSITION_STD = 0.01


def make_decoder(config: ModelConfig, seed: int) -> Decoder:
    """A decoder with new weights, a function of configuration and seed alone; torch's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = Decoder(config)
        INITIALIZERS[config.init](decoder)
    return decoder


def empty_decoder(config: ModelConfig) -> Decoder:
    """A decoder whose weights have shapes and no numbers (meta device), for those that come from a file."""
    with torch.device("meta"), NoInitialization():
        return Decoder(config)


class NoInitialization(TorchFunctionMode):
    """Leave new tensors as they are. Drawing numbers for those without any loads torch's compiler, for 1.5 seconds."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@torch.no_grad()
def initialize_like_gpt2(decoder: Decoder) -> None:
    """Normal weights of standard deviation 0.02, positions 0.01, biases 0, norms 1.

    Layers that write into the residual stream are divided by sqrt(2L), since 2L of them add up there (Radford et al.
    2019, section 2.3; position's 0.01 and the biases are from the released code, model.py).
    """
    for path, module in decoder.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=WEIGHT_STD / residual_depth(path, decoder.config))
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=POSITION_STD if path == "embed.position" else WEIGHT_STD)
    for path, parameter in decoder.named_parameters():
        if path.endswith(".bias"):
            nn.init.zeros_(parameter)


def residual_depth(path: str, config: ModelConfig) -> float:
    """sqrt(2L) for the layers that write into the residual stream, 1 for all others."""
    return math.sqrt(2 * config.num_layers) if path.endswith(("attention.output", "feedforward.down")) else 1.0


def keep_torch_defaults(decoder: Decoder) -> None:
    """The initialisation that torch's modules bring along."""


INITIALIZERS = {"gpt2": initialize_like_gpt2, "torch": keep_torch_defaults}
