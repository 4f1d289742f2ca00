"""More rows in a decoder's vocabulary, for tokens that were added to its tokenizer."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.model.decoder import Decoder
from foretell.model.init import WEIGHT_STD, empty_decoder

GROWING = ("embed.token.weight", "head.weight", "head.bias")  # the weights with a row for every token


def with_vocabulary(decoder: Decoder, vocab_size: int, seed: int) -> Decoder:
    """A decoder with `vocab_size` rows; the given one where it has as many.

    New rows of matrices are normal with standard deviation 0.02, as initial weights are, and those of biases 0. The
    other weights are shared with the given decoder.
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
