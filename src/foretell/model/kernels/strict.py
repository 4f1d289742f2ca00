"""Strict forms of layers: the same bits for a token alone, in any batch, cached or read again, in parts or whole.

Ordinary kernels choose their order of additions by the shapes of their inputs, so that the last bits of a token's
logits depend on what is read with it. Here every token is computed by calls whose shapes depend on its own position
alone. That holds for one version of torch on one type of machine, with any number of threads. With the kernels in
numba the bits were also the same with AVX2 and AVX-512, on one processor.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.model.attention import EagerAttention, SDPAttention, per_query_head
from foretell.model.decoder import Decoder, TiedHead
from foretell.model.kernels.fast_decoder import KERNELS, WARMING, has_numba
from foretell.model.mask import Mask
from foretell.model.quantized_linear import QuantizedEmbedding, QuantizedLinear, QuantizedTiedHead
from foretell.model.surgery import copy_with, recast
from foretell.norms import in_float32


def by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' + b, one vector at a time: (..., I) to (..., O)."""
    rows = [F.linear(row, weight, bias) for row in x.reshape(-1, 1, x.shape[-1])]
    return torch.cat(rows).view(*x.shape[:-1], len(weight))


class StrictLinear(nn.Linear):
    """`nn.Linear`, one vector at a time."""

    def forward(self, input: Tensor) -> Tensor:
        return by_row(input, self.weight, self.bias)


class StrictTiedHead(TiedHead):
    """`TiedHead`, one vector at a time."""

    def forward(self, input: Tensor) -> Tensor:
        return by_row(input, self.weight, self.bias)


class StrictAttention(SDPAttention):
    """`SDPAttention`, one query at a time over copies of the keys that it may see."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        B, _, T, _ = query.shape
        allowed = mask.allowed.expand(B, 1, T, key.shape[2])[:, 0]  # (B, T, S)
        rows = [self.attend(query[b, :, t], key[b], value[b], allowed[b, t]) for b in range(B) for t in range(T)]
        return torch.stack(rows).unflatten(0, (B, T)).transpose(1, 2)  # (B, H, T, E)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
        """The mix (H, E) of one query (H, E) over the allowed of keys and values (G, S, E).

        torch's fused attention splits the keys by the number of threads, and MKL two or more queries; one does not.
        Products of bfloat16, and the sum in torch's softmax, depend on the width of the processor's vectors.
        """
        visible, dtype, query = allowed.nonzero()[:, 0], query.dtype, in_float32(query[None])
        key, value = (per_query_head(in_float32(h.index_select(1, visible)[None]), query) for h in (key, value))
        scores = (query / math.sqrt(query.shape[-1]))[:, :, None] @ key.mT  # (1, H, 1, S)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights /= weights.double().cumsum(-1)[..., -1:].to(weights.dtype)  # one after the other
        return (weights @ value)[0, :, 0].to(dtype)  # (H, E)


class StrictSiLU(nn.SiLU):
    """`nn.SiLU` in operations that give every element of a tensor the same bits.

    torch computes most elements of a tensor in vector registers and the last ones, also of each thread's part, with
    scalar functions, whose sigmoid rounds differently.
    """

    def forward(self, input: Tensor) -> Tensor:
        x = in_float32(input)
        return (x / (1 + (-x).exp())).to(input.dtype)


class StrictGELU(nn.GELU):
    """`nn.GELU`, for the same reason."""

    def forward(self, input: Tensor) -> Tensor:
        x = in_float32(input)
        return (x * CUMULATED[self.approximate](x)).to(input.dtype)


CUMULATED: dict[str, Callable[[Tensor], Tensor]] = {  # the standard normal distribution, exact and approximate
    "none": lambda x: (1 + (x * math.sqrt(0.5)).erf()) * 0.5,
    "tanh": lambda x: (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh()) * 0.5,
}


STRICT: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: StrictLinear,
    TiedHead: StrictTiedHead,
    SDPAttention: StrictAttention,
    nn.SiLU: StrictSiLU,
    nn.GELU: StrictGELU,
}
BY_VECTOR = (
    nn.Embedding,
    QuantizedEmbedding,
    nn.LayerNorm,
    nn.RMSNorm,
    TiedHead,
)  # each vector is computed by itself anyway
WITHOUT_STRICT_FORM = (nn.Linear, QuantizedLinear, QuantizedTiedHead, EagerAttention)  # their other subclasses


def strict_copy(decoder: Decoder) -> Decoder:
    """A copy of a decoder with strict forms of its layers, which shares weights and hooks.

    With numba, linear layers are kernels that compute every vector in the same way however many there are; missing ones
    are compiled first. Raises UsageError for a layer that has no strict form.
    """
    if has_numba():
        importlib.import_module(WARMING).are_ready(decoder, wait=True)
    forms: dict[str, nn.Module] = {}
    for path, module in decoder.named_modules():
        if (form := strict_form(module)) is not None:
            forms[path] = form
        elif isinstance(module, (QuantizedLinear, QuantizedTiedHead)):
            if not has_numba():
                raise UsageError("strict generation of a quantised model needs numba: pip install numba")
            raise UsageError(f"'{path}' has no strict form: it must be on a CPU, in groups of a multiple of 8 inputs")
        elif isinstance(module, WITHOUT_STRICT_FORM) or is_unknown(module):
            raise UsageError(f"'{path}' is a {type(module).__name__}, which has no strict form")
    return copy_with(decoder, forms)


def strict_form(module: nn.Module) -> nn.Module | None:
    """The strict form of a layer, which shares its weights; None where there is none."""
    if has_numba():
        kernels: Any = importlib.import_module(KERNELS)
        fast = kernels.fast_form(module, max_rows=None)
        if fast is not module:
            return fast
    return recast(module, STRICT[type(module)]) if type(module) in STRICT else None


def is_unknown(module: nn.Module) -> bool:
    """True for a layer with weights of a class that this package does not have."""
    has_weights = next(module.parameters(recurse=False), None) is not None
    return has_weights and not isinstance(module, BY_VECTOR)
