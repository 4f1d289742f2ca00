"""Matrices as small integers, with one scale (in int4 also one minimum) per group of inputs of a row.

    int8: weight = integer * scale                  integers from -127 to 127
    int4: weight = integer * scale + minimum        integers from 0 to 15, two in a byte

Scales and minima are stored in bfloat16: int4 in groups of 32 then takes 5 bits per weight, instead of 6 with float32.
The integers are fitted to the rounded scale, so little is lost: the error of a normally distributed matrix grows by
0.4% in int8 (groups of 64) and by 0.02% in int4 (groups of 32). An integer times a scale is exact in float32.

Matrices that came packed keep their numbers (`FORMS`): scales and minima in float16, or as 8-bit integers times a unit
in float16 for 256 inputs. Such an int8 matrix may have minima, and an int4 matrix has integers from -8 to 7 without.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from foretell.config.quantization import FormName, Scheme, group_of, scheme_of
from foretell.errors import ConfigError

SCALE_DTYPE = torch.bfloat16
MAX_INT8, MAX_INT4 = 127, 15
GROUPS = {"int8": 64, "int4": 32}  # default group sizes, if they divide the width
UNIT_INPUTS = 256  # inputs that share the unit of their scales
RANGE_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)  # parts of a group's range that are tried
SMALLEST_GROUP, LARGEST_GROUP = 2, 1024  # limits of the groups that are suggested or chosen


@dataclass(frozen=True)
class MatrixForm:
    """How a matrix is stored. has_units: scales and minima are 8-bit integers, and their units are in `factors`."""

    scheme: Scheme
    group: int
    has_minima: bool
    factors: torch.dtype = SCALE_DTYPE
    has_units: bool = False

    def empty(self, outputs: int, inputs: int) -> dict[str, Tensor]:
        """The buffers of a matrix (O, I) on the meta device, which have shapes alone."""
        steps = torch.uint8 if self.has_minima else torch.int8  # of a unit
        factor = inputs // self.group, steps if self.has_units else self.factors
        unit = inputs // UNIT_INPUTS, self.factors
        sizes = {"integers": (inputs, torch.int8) if self.scheme == "int8" else (inputs // 2, torch.uint8)}
        sizes |= {"scales": factor, **({"minima": factor} if self.has_minima else {})}
        if self.has_units:
            sizes |= {"scale_units": unit, **({"minimum_units": unit} if self.has_minima else {})}
        return {name: torch.empty(outputs, width, dtype=dtype, device="meta") for name, (width, dtype) in sizes.items()}


def packed_form(name: FormName) -> MatrixForm:
    has_minima = name in ("q4_1", "q5_1", "q4_k", "q5_k")
    return MatrixForm(scheme_of(name), group_of(name), has_minima, torch.float16, has_units=name.endswith("k"))


FORMS: dict[FormName, MatrixForm] = {name: packed_form(name) for name in get_args(FormName)}


def quantize_int8(weight: Tensor, group: int) -> dict[str, Tensor]:
    """The integers (O, I) and scales (O, I/group) nearest to a matrix (O, I), with an error of at most half a scale."""
    grouped = weight.float().unflatten(-1, (-1, group))  # (O, I/group, group)
    scales = (grouped.abs().amax(-1) / MAX_INT8).to(SCALE_DTYPE)
    integers = (grouped / divisor(scales)).round().clamp(-MAX_INT8, MAX_INT8)
    return {"integers": integers.to(torch.int8).flatten(-2), "scales": scales}


def times_scales(integers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers (..., I) in int8 times scales (..., I/group), computed in float32 or bfloat16.

    Integers and scales are exact in both, so a product in bfloat16 is the rounded float32 product, in half the time.
    """
    grouped = integers.to(dtype).unflatten(-1, (scales.shape[-1], -1))
    return grouped.mul_(scales.to(dtype)[..., None]).flatten(-2)


def quantize_int4(weight: Tensor, group: int) -> dict[str, Tensor]:
    """The integers (O, I/2), scales and minima (O, I/group) nearest to a matrix (O, I)."""
    grouped = weight.float().unflatten(-1, (-1, group))  # (O, I/group, group)
    scales, minima = fit_int4(grouped)
    integers = round_int4(grouped, scales, minima)
    return {
        "integers": pack_int4(integers.flatten(-2)),
        "scales": scales.to(SCALE_DTYPE),
        "minima": minima.to(SCALE_DTYPE),
    }


def fit_int4(grouped: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of groups (..., group), for the group's range or for a part of it if its error is smaller.

    The range includes 0, so rounding the minimum to SCALE_DTYPE loses little.
    """
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    best_scales = best_minima = low
    least = torch.full_like(low, torch.inf)
    for share in RANGE_SHARES:
        minima = (low * share).to(SCALE_DTYPE).float()
        scales = ((high - low) * share / MAX_INT4).to(SCALE_DTYPE).float()
        rounded = round_int4(grouped, scales, minima) * scales[..., None] + minima[..., None]
        error = (rounded - grouped).square().sum(-1)
        is_better = error < least
        least = torch.where(is_better, error, least)
        best_scales = torch.where(is_better, scales, best_scales)
        best_minima = torch.where(is_better, minima, best_minima)
    return best_scales, best_minima


def round_int4(grouped: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """The integers of groups (..., group), as floats."""
    return ((grouped - minima.float()[..., None]) / divisor(scales)).round().clamp(0, MAX_INT4)


def dequantize(
    integers: Tensor,
    scales: Tensor,
    minima: Tensor | None = None,
    scale_units: Tensor | None = None,
    minimum_units: Tensor | None = None,
) -> Tensor:
    """Rows of weights (N, I) in float32; units are factors of the scales and minima of some groups in sequence."""
    grouped = integers.float().unflatten(-1, (scales.shape[-1], -1))
    grouped.mul_(in_units(scales, scale_units)[..., None])
    if minima is not None:
        grouped.add_(in_units(minima, minimum_units)[..., None])
    return grouped.flatten(-2)


def in_units(factors: Tensor, units: Tensor | None) -> Tensor:
    """Scales or minima (N, groups) in float32."""
    return factors.float() if units is None else times_scales(factors, units, torch.float32)


def dequantize_int4(integers: Tensor, scales: Tensor, minima: Tensor | None = None, **units: Tensor) -> Tensor:
    """Rows of weights (N, I) in float32 from integers, two in a byte."""
    return dequantize(signed_int4(integers, minima), scales, minima, **units)


def signed_int4(packed: Tensor, minima: Tensor | None) -> Tensor:
    """The integers (..., I) of bytes (..., I/2); without minima they are stored 8 too large."""
    integers = unpack_int4(packed)
    return integers if minima is not None else integers.view(torch.int8) - 8


def pack_int4(integers: Tensor) -> Tensor:
    """Two integers per byte: input 2k in the low half of byte k, input 2k + 1 in the high half."""
    pairs = integers.to(torch.uint8)
    return pairs[..., 0::2] | pairs[..., 1::2] << 4


def unpack_int4(packed: Tensor) -> Tensor:
    """The integers (..., I) of bytes (..., I/2)."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def divisor(scales: Tensor) -> Tensor:
    """Scales (..., 1) to divide by; 1 for a group of zeros."""
    scales = scales.float()[..., None]
    return torch.where(scales == 0, 1.0, scales)


def bits_per_weight(scheme: str, group: int) -> float:
    """Bits per weight, including its share of the group's scale and, in int4, minimum, both in bfloat16."""
    return 4 + 32 / group if scheme == "int4" else 8 + 16 / group


def choose_group(scheme: str, widths: Iterable[int]) -> int:
    """The scheme's default group, or the largest even one below it that divides all widths."""
    widths = list(widths)
    fitting = [group for group in range(GROUPS[scheme], 1, -2) if all(width % group == 0 for width in widths)]
    if not fitting:
        different = ", ".join(map(str, sorted(set(widths))))
        raise ConfigError(f"no group size divides all widths {different}; keep some layers unquantised")
    return fitting[0]


def check_group(path: str, width: int, group: int) -> None:
    """Refuse a group that does not divide a layer's width; the error lists the groups that do."""
    if group % 2 == 0 and width % group == 0:
        return
    fitting = [str(size) for size in range(SMALLEST_GROUP, min(width, LARGEST_GROUP) + 1, 2) if width % size == 0]
    keep = f"keep '{path}' unquantised"
    instead = f"use one of {', '.join(fitting)}, or {keep}" if fitting else keep
    raise ConfigError(
        f"'{path}' has a width of {width}, which groups of {group} do not divide into even groups; {instead}"
    )
