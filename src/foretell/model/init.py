"""New decoders: with initial weights, with given weights, with shapes alone, or with a larger vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from foretell.config.model import ModelConfig
from foretell.errors import check_type
from foretell.model.decoder import Decoder
from foretell.model.dispatch import Use, choose_kernels

WEIGHT_STD = 0.02
POSITION_STD = 0.01


def make_decoder(config: ModelConfig, seed: int) -> Decoder:
    """A decoder on the CPU with initial weights, determined by configuration and seed; keeps torch's random state."""
    check_type("the seed", seed, Integral, "a whole number")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = Decoder(config)
        INITIALIZERS[config.init](decoder)
    choose_kernels(decoder, Use(torch.device("cpu"), torch.float32, config.context_length))
    return decoder


def empty_decoder(config: ModelConfig) -> Decoder:
    """A decoder on the meta device, whose weights have shapes but no values."""
    with torch.device("meta"), NoInitialization():
        return Decoder(config)


def decoder_with_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> Decoder:
    """A decoder with these weights, all of one dtype and device, and the kernels that suit them."""
    return fill_decoder(empty_decoder(config), weights)


def fill_decoder(decoder: Decoder, weights: Mapping[str, Tensor]) -> Decoder:
    """Put weights into a decoder from the meta device, choose its kernels, and return it."""
    decoder.load_state_dict(dict(weights), assign=True)
    choose_kernels(decoder, Use(decoder.device, decoder.dtype, decoder.config.context_length))
    return decoder


class NoInitialization(TorchFunctionMode):
    """Skips initialisation, which on the meta device would load torch's compiler (1.5 seconds)."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Tensor:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@torch.no_grad()
def initialize_like_gpt2(decoder: Decoder) -> None:
    """Normal weights of standard deviation 0.02, positions 0.01, biases 0, norms 1.

    Layers that write into the residual stream are divided by sqrt(2L), because 2L of them add up there (Radford et al.
    2019, section 2.3; the 0.01 of positions and the biases are from the released code, model.py).
    """
    for path, module in decoder.named_modules():
        if isinstance(module, nn.Linear):
            writes_to_stream = path.endswith(("attention.output", "feedforward.down"))
            depth = math.sqrt(2 * decoder.config.num_layers) if writes_to_stream else 1.0
            nn.init.normal_(module.weight, std=WEIGHT_STD / depth)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=POSITION_STD if path == "embed.position" else WEIGHT_STD)
    for path, parameter in decoder.named_parameters():
        if path.endswith(".bias"):
            nn.init.zeros_(parameter)


INITIALIZERS: dict[str, Callable[[Decoder], None]] = {
    "gpt2": initialize_like_gpt2,
    "torch": lambda decoder: None,  # as torch's modules initialise themselves
}


GROWING = ("embed.token.weight", "head.weight", "head.bias")  # the weights with a row per token


def with_vocabulary(decoder: Decoder, vocab_size: int, seed: int) -> Decoder:
    """A decoder with a vocabulary of at least `vocab_size`, for tokens that were added to its tokenizer.

    New rows of matrices are drawn like initial weights, and new biases are 0. The other weights are shared with the
    given decoder, which is returned itself if it has enough rows.
    """
    if vocab_size <= decoder.config.vocab_size:
        return decoder
    weights = {
        path: longer(weight.detach(), vocab_size, seed) if path in GROWING else weight.detach()
        for path, weight in decoder.named_parameters()
    }
    larger = empty_decoder(decoder.config.replaced(vocab_size=vocab_size))
    larger.load_state_dict(weights, assign=True)
    return larger.train(decoder.training)


def longer(weight: Tensor, rows: int, seed: int) -> Tensor:
    """A weight (V, ...) with more rows."""
    shape = (rows - len(weight), *weight.shape[1:])
    generator = torch.Generator().manual_seed(seed)
    new = torch.zeros(shape) if weight.dim() == 1 else torch.randn(shape, generator=generator).mul_(WEIGHT_STD)
    return torch.cat((weight, new.to(weight)))  # (rows, ...)
