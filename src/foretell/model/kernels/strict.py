"""Strict forms of layers: the same bits for a token alone, in any batch, cached or read again, in parts or whole.

Ordinary kernels choose their order of additions by the shapes of their inputs, so that the last bits of a token's
logits depend on what is read with it. Strict forms are the kernels in numba, which compute every vector in the same
way however many there are. The bits hold for one version of torch and numba, with any number of threads; in float32,
int8 and int4 with AVX2 and AVX-512 too.
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
# Each vector is computed by itself anyway
BY_VECTOR = (nn.Embedding, QuantizedEmbedding, nn.LayerNorm, nn.RMSNorm)
WITHOUT_STRICT_FORM = (nn.Linear, TiedHead, QuantizedLinear, QuantizedTiedHead, EagerAttention)


def strict_copy(decoder: Decoder) -> Decoder:
    """A copy of a decoder with strict forms of its layers, which shares weights and hooks.

    Missing kernels are compiled first. Raises UsageError without numba, and for a layer that has no strict form.
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
            raise UsageError(f"'{path}' has no strict form: its groups must have a multiple of 8 inputs")
        elif isinstance(module, WITHOUT_STRICT_FORM) or is_unknown(module):
            raise UsageError(f"'{path}' is a {type(module).__name__}, which has no strict form")
    return copy_with(decoder, forms)


def strict_form(module: nn.Module) -> nn.Module:
    """The strict form of a layer, which shares its weights; itself where there is none."""
    if type(module) in NAMES:
        return recast(module, getattr(importlib.import_module(LAYERS), NAMES[type(module)]))
    kernels: Any = importlib.import_module(KERNELS)
    return kernels.fast_form(module, max_rows=None)


def is_unknown(module: nn.Module) -> bool:
    """True for a layer with weights of a class that this package does not have."""
    has_weights = next(module.parameters(recurse=False), None) is not None
    return has_weights and not isinstance(module, BY_VECTOR)
