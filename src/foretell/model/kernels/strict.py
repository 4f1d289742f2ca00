"""Strict forms of layers, with bit-identical results for a token in any batch, with or without a cache or chunks.

Ordinary kernels choose the order of additions by the shapes of their inputs, so the last bits of a token's logits
depend on the other tokens of the batch. Strict forms are the numba kernels, which compute every vector in the same
way, independent of the number of vectors. The bits are the same for one version of torch and numba with any number of
threads; in float32, int8 and int4 also with both AVX2 and AVX-512. They are the same with gradients too, which are
the plain layers' gradients at the same inputs.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from foretell.errors import UsageError
from foretell.model.attention import EagerAttention, SDPAttention
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.kernels.fast_decoder import KERNELS, WARMING, has_numba
from foretell.model.quantized_linear import QuantizedEmbedding, QuantizedLinear, QuantizedTiedHead
from foretell.model.surgery import copy_with, recast

LAYERS = "foretell.model.kernels.strict_layers"
NAMES: dict[type[nn.Module], str] = {
    SDPAttention: "StrictAttention",
    nn.SiLU: "CompiledSiLU",
    nn.GELU: "CompiledGELU",
}  # there
# These always compute each vector separately
BY_VECTOR = (nn.Embedding, QuantizedEmbedding, nn.LayerNorm, nn.RMSNorm)
WITHOUT_STRICT_FORM = (nn.Linear, TiedHead, QuantizedLinear, QuantizedTiedHead, EagerAttention)


def strict_copy(decoder: Decoder) -> Decoder:
    """A copy of a decoder with strict forms of its layers, which shares weights and hooks.

    Missing kernels are compiled first. Raises UsageError without numba, and for a layer without a strict form.
    """
    if not has_numba():
        raise UsageError("strict generation needs numba: pip install numba")
    if decoder.device.type != "cpu" or decoder.dtype not in (torch.float32, torch.bfloat16):
        name = str(decoder.dtype).removeprefix("torch.")
        raise UsageError(f"strict generation needs a CPU and float32 or bfloat16, not {name} on {decoder.device}")
    importlib.import_module(WARMING).are_ready(decoder, wait=True, is_strict=True)
    forms: dict[str, nn.Module] = {}
    for path, module in decoder.named_modules():
        form = strict_form(module)
        if form is not module:
            forms[path] = form
        elif isinstance(module, (QuantizedLinear, QuantizedTiedHead)):
            raise UsageError(f"'{path}' has no strict form: its group size must be a multiple of 8")
        elif isinstance(module, WITHOUT_STRICT_FORM) or is_unknown(module):
            raise UsageError(f"'{path}' is a {type(module).__name__}, which has no strict form")
    return copy_with(decoder, forms)


def strict_form(module: nn.Module) -> nn.Module:
    """The strict form of a layer, which shares its weights, or the layer itself if there is none."""
    if type(module) in NAMES:
        return recast(module, getattr(importlib.import_module(LAYERS), NAMES[type(module)]))
    kernels: Any = importlib.import_module(KERNELS)
    return kernels.fast_form(module, is_strict=True)


def is_unknown(module: nn.Module) -> bool:
    """True for a layer with weights whose class is not from this package."""
    has_weights = next(module.parameters(recurse=False), None) is not None
    return has_weights and not isinstance(module, BY_VECTOR)
