"""The weights of one or several linear layers in the layout that the kernels for few rows read.

Outputs are packed in tiles of 16, one output per lane of a vector: so sums need no additions across lanes, biases and
scales are vectors in memory, and an activation is read once for 16 outputs. A tile's weights follow each other in the
order in which a kernel reads them, and one tile follows the other: memory is read from one end to the other.

    float32   16 words per input: a number for each output
    bfloat16  16 words per two inputs: the first in the lower half of a word
    int8      16 words per four inputs: a byte each, from the lowest on
    int4      16 words per eight inputs: byte i holds input i in its lower half and input i + 4 in its upper half
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LANES = 16
INPUTS = 32  # packed rows are filled up with zeros to a multiple of this many inputs, which AMX multiplies at once


class MatrixView(NamedTuple):
    """A packed matrix for compiled code: addresses of its kernels and its three arrays, and its sizes."""

    kernel: int
    few_rows_kernel: int
    words: int
    factors: int
    bias: int
    bits: int
    outputs: int
    inputs: int
    group: int
    reads_planes: bool


@dataclass(frozen=True)
class PackedMatrix:
    """Weights (outputs, inputs), packed. `bits` per weight: 32 and 16 are floating point, 8 and 4 integers with scales.

    words: the weights. factors: for int8 the scales (tiles, groups, 16), for int4 pairs of scales and minima
    (tiles, groups, 2, 16). bias: one per output, zeros where a layer has none.
    """

    words: Tensor
    factors: Tensor
    bias: Tensor
    bits: int
    outputs: int
    inputs: int
    group: int  # inputs that share a scale; 0 without scales

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.words.nbytes + self.factors.nbytes + self.bias.nbytes


def pack_floats(weight: Tensor, bias: Tensor | None) -> PackedMatrix:
    """Pack a weight (O, I) in float32 or bfloat16."""
    is_wide = weight.dtype == torch.float32
    padded = fill_up(weight.detach())  # (N, K)
    columns = padded if is_wide else padded.view(torch.int32)  # (N, K), or pairs (N, K / 2)
    return finish(tiles(columns), torch.zeros(0), weight.shape, bias, 32 if is_wide else 16, 0)


def pack_int8(integers: Tensor, scales: Tensor, bias: Tensor | None) -> PackedMatrix:
    """Pack integers (O, I) in int8 with scales (O, groups)."""
    group = integers.shape[1] // scales.shape[1]
    factors = tiles(fill_up_outputs(scales))  # (tiles, groups, 16)
    columns = fill_up(integers).view(torch.int32)  # (N, K / 4)
    return finish(tiles(columns), factors, integers.shape, bias, 8, group)


def pack_int4(integers: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None) -> PackedMatrix:
    """Pack integers 0..15 (O, I) in uint8 with scales and minima (O, groups)."""
    group = integers.shape[1] // scales.shape[1]
    padded = fill_up(integers).to(torch.int32).unflatten(1, (-1, 2, 4))  # (N, K / 8, half of a byte, byte)
    shifts = torch.tensor([0, 4])[:, None] + torch.arange(0, 32, 8)  # (half of a byte, byte)
    columns = (padded << shifts).sum((2, 3), dtype=torch.int32)  # (N, K / 8)
    scales, minima = (tiles(fill_up_outputs(factor)) for factor in (scales, minima))
    factors = torch.stack((scales, minima), dim=2)  # (tiles, groups, 2, 16)
    return finish(tiles(columns), factors, integers.shape, bias, 4, group)


def fill_up(weight: Tensor) -> Tensor:
    """A weight with zeros up to full tiles and a multiple of INPUTS."""
    return torch.nn.functional.pad(weight, (0, -weight.shape[1] % INPUTS, 0, -weight.shape[0] % LANES)).contiguous()


def fill_up_outputs(factors: Tensor) -> Tensor:
    """Factors (O, groups), whose values are those of bfloat16, with zeros up to full tiles."""
    return torch.nn.functional.pad(factors.to(torch.bfloat16), (0, 0, 0, -factors.shape[0] % LANES))


def tiles(columns: Tensor) -> Tensor:
    """(N, C) in tiles of 16 outputs: (N / 16, C, 16)."""
    return columns.unflatten(0, (-1, LANES)).transpose(1, 2).contiguous()


def finish(
    words: Tensor, factors: Tensor, shape: torch.Size, bias: Tensor | None, bits: int, group: int
) -> PackedMatrix:
    """A packed matrix of these parts; `shape` is that of the weight before it was filled up."""
    outputs, inputs = shape
    biases = torch.zeros(words.shape[0] * LANES)
    if bias is not None:
        biases[:outputs] = bias.detach().float()
    return PackedMatrix(aligned(words), aligned(factors), aligned(biases), bits, outputs, inputs, group)


def aligned(values: Tensor) -> Tensor:
    """The values one after the other in new memory, at an address that is a multiple of 64, as torch allocates."""
    return values.flatten().clone()
