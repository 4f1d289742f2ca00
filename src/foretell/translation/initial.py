"""New encoder-decoders: with initial weights, or with shapes alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from foretell.model.init import INITIALIZERS, NoInitialization
from foretell.model.kernels.dispatch import Use, choose_kernels
from foretell.translation.config import EncoderDecoderConfig
from foretell.translation.encoder_decoder import EncoderDecoder


def make_encoder_decoder(config: EncoderDecoderConfig, seed: int) -> EncoderDecoder:
    """A model on the CPU with new weights, a function of configuration and seed. torch's random state is kept.

    Scaled embeddings are normal with a standard deviation of 1 / sqrt(width), so that scaled ones have 1.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EncoderDecoder(config)
        INITIALIZERS[config.init](model)
        if config.scale_embeddings:
            for embed in (model.embed, model.encoder.embed):
                if isinstance(embed.token, nn.Embedding):
                    nn.init.normal_(embed.token.weight, std=config.width**-0.5)
    choose_kernels(model, Use(torch.device("cpu"), torch.float32, config.context_length))
    return model


def empty_encoder_decoder(config: EncoderDecoderConfig) -> EncoderDecoder:
    """A model on the meta device: its weights have shapes and no values."""
    with torch.device("meta"), NoInitialization():
        return EncoderDecoder(config)


def weight_shapes(config: EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its path."""
    return {path: tuple(weight.shape) for path, weight in empty_encoder_decoder(config).named_parameters()}


def encoder_decoder_with_weights(config: EncoderDecoderConfig, weights: Mapping[str, Tensor]) -> EncoderDecoder:
    """A model that takes over these weights, all of one dtype and device, and the kernels that suit them."""
    model = empty_encoder_decoder(config)
    model.load_state_dict(dict(weights), assign=True)
    weight = model.embed.token.weight
    choose_kernels(model, Use(weight.device, weight.dtype, config.context_length))
    return model
