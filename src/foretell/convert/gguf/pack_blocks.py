"""The blocks of GGUF's tensors from integers, scales and minima, with the bytes that `blocks` unpacked."""

from __future__ import annotations

import torch
from torch import Tensor

from foretell.convert.gguf.blocks import Buffers
from foretell.convert.gguf.header import TYPE_OF_NAME
from foretell.convert.gguf.write import PackedTensor
from foretell.language_model import LanguageModel
from foretell.model.quantized_linear import quantized_layers

OFFSETS = {"Q4_0": 8, "Q5_0": 16, "Q6_K": 32}  # added to the integers, so that they are not negative


def packed_matrices(model: LanguageModel) -> dict[str, PackedTensor]:
    """The matrices of a model that came packed, by the paths of their weights; none of another model."""
    forms = {} if model.quantization is None else model.quantization.forms
    layers = quantized_layers(model.decoder) if forms else {}
    return {
        f"{path}.weight": PackedTensor(
            forms[path].upper(),
            pack_rows(
                forms[path].upper(), {**layer.factors(slice(None)), "integers": layer.signed_integers(slice(None))}
            ),
        )
        for path, layer in layers.items()
    }


def pack_rows(kind: str, buffers: Buffers) -> Tensor:
    """The bytes (O, n) of a matrix, from its integers (O, I), scales, minima and units."""
    outputs, inputs = buffers["integers"].shape
    count = outputs * inputs // TYPE_OF_NAME[kind].weights
    blocks = {name: part.reshape(count, -1) for name, part in buffers.items()}
    integers = (blocks["integers"] + OFFSETS.get(kind, 0)).view(torch.uint8)
    if kind == "Q6_K":
        parts = [*six_bit_integers(integers), blocks["scales"], blocks["scale_units"]]
    elif kind in ("Q4_K", "Q5_K"):
        lower = joined(integers.unflatten(1, (4, 2, 32)))
        upper = [with_bits(integers.unflatten(1, (8, 32)).mT >> 4)] if kind == "Q5_K" else []
        parts = [blocks["scale_units"], -blocks["minimum_units"], six_bit_factors(blocks), *upper, lower]
    else:
        parts = [blocks[name] for name in ("scales", "minima") if name in blocks]
        parts += [with_bits(integers.unflatten(1, (4, 8)) >> 4)] if kind in ("Q5_0", "Q5_1") else []
        parts += [integers if kind == "Q8_0" else joined(integers.unflatten(1, (1, 2, 16)))]
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1).view(outputs, -1)


def joined(integers: Tensor) -> Tensor:
    """The bytes (N, m n) whose lower halves are the first, and whose upper halves are the second of (N, m, 2, n)."""
    lower, upper = integers.unbind(-2)
    return (lower & 15 | upper << 4).flatten(1)


def with_bits(numbers: Tensor) -> Tensor:
    """The bytes (..., n) with these bits (..., n, 8)."""
    return (numbers << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def six_bit_factors(blocks: Buffers) -> Tensor:
    """The 8 scales and 8 minima of a block in 12 bytes."""
    (scales, more_scales), (minima, more_minima) = (blocks[name].chunk(2, dim=1) for name in ("scales", "minima"))
    first, second = scales | (more_scales & 48) << 2, minima | (more_minima & 48) << 2
    return torch.cat((first, second, more_scales & 15 | more_minima << 4), dim=1)


def six_bit_integers(integers: Tensor) -> list[Tensor]:
    """The lower 4 bits of 256 integers in 128 bytes, and the upper 2 in 64."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    upper = ((integers.unflatten(1, (2, 4, 32)) >> 4) << shifts).sum(2, dtype=torch.uint8)
    return [joined(integers.unflatten(1, (2, 2, 64))), upper.flatten(1)]
