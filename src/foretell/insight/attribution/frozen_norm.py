"""A norm with its statistics held still is linear: it can be applied to each part of a stream by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretell.insight.trace import Trace
from foretell.model.norm import LayerNorm, RMSNorm


@dataclass(frozen=True)
class FrozenNorm:
    """Multiplies each part (N, D) by `scale` (D,), after subtracting its own mean where the norm does; then the shift.

    The parts' means add up to the stream's, so only the division has to be held still.
    """

    scale: Tensor | float
    centres: bool
    shift: Tensor | None

    def __call__(self, parts: Tensor) -> Tensor:
        """Each part as it is in the normalised stream, in which the shift is a part of its own."""
        return (parts - parts.mean(-1, keepdim=True) if self.centres else parts) * self.scale


def freeze(decoder: nn.Module, path: str, trace: Trace, at: int) -> FrozenNorm:
    """The norm at a path with the statistics that it had at position `at` of the traced pass."""
    norm = decoder.get_submodule(path)
    kind = next(kind for kind in type(norm).__mro__ if kind in FREEZERS)
    return FREEZERS[kind](norm, path, trace, at)


def _freeze_layer_norm(norm: LayerNorm, path: str, trace: Trace, at: int) -> FrozenNorm:
    variance = trace[f"{path}.variance"][0, at].double()
    shift = None if norm.bias is None else norm.bias.detach().double()
    return FrozenNorm(norm.weight.detach().double() / torch.sqrt(variance + norm.eps), True, shift)


def _freeze_rms_norm(norm: RMSNorm, path: str, trace: Trace, at: int) -> FrozenNorm:
    mean_square = trace[f"{path}.mean_square"][0, at].double()
    assert norm.eps is not None, "the configuration always has one"
    return FrozenNorm(norm.weight.detach().double() / torch.sqrt(mean_square + norm.eps), False, None)


FREEZERS: dict[type[nn.Module], Callable[..., FrozenNorm]] = {
    LayerNorm: _freeze_layer_norm,
    RMSNorm: _freeze_rms_norm,
    nn.Identity: lambda norm, path, trace, at: FrozenNorm(1.0, False, None),
}
