"""A norm with its statistics held still is linear: it can be applied to each part of a stream by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.linear import Linear
from foretell.model.norm import LayerNorm, RMSNorm
from foretell.model.transformer import AddUpdate, ReplaceByUpdate


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
    return FREEZERS[type(norm)](norm, path, trace, at)


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


# What a dissection needs to have been recorded; of these, a model has what it has
RECORDED = (
    *("embed.token", "embed.position", "trunk.blocks.*.attention.core", "trunk.blocks.*.feedforward"),
    *(
        "trunk.norm.variance",
        "trunk.norm.mean_square",
        "trunk.blocks.*.*_norm.variance",
        "trunk.blocks.*.*_norm.mean_square",
    ),
)


@dataclass
class StreamParts:
    """Named vectors (D,) in float64 that add up to the stream."""

    names: list[str] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)

    def add(self, name: str, vector: Tensor | None) -> None:
        """One more part; None is nothing."""
        if vector is not None:
            self.names.append(name)
            self.vectors.append(vector.detach().double())

    def clear(self) -> None:
        """What was there does not go on."""
        self.names, self.vectors = [], []

    def keep(self) -> None:
        """What was there goes on."""

    def stacked(self) -> Tensor:
        """All parts, (N, D)."""
        return torch.stack(self.vectors)


# A residual connection: what becomes of the parts when an update comes
RESIDUALS: dict[type[nn.Module], Callable[[StreamParts], None]] = {
    AddUpdate: StreamParts.keep,
    ReplaceByUpdate: StreamParts.clear,
}


class StreamDecomposition:
    """Follows the stream at position `at` of a traced pass through the decoder, part by part."""

    def __init__(self, decoder: Decoder, trace: Trace, at: int):
        self.decoder, self.trace, self.at = decoder, trace, at
        self.recorded = set(trace.names())
        self.parts = StreamParts()

    def run(self) -> StreamParts:
        """The parts of what the head reads."""
        self._embed()
        for layer in range(self.decoder.config.num_layers):
            PLACEMENTS[self.decoder.config.norm_placement](self, f"trunk.blocks.{layer}")
        self._normalize("trunk.norm")
        return self.parts

    def _embed(self) -> None:
        token = self._value("embed.token")
        self.parts.add("embed.token", token)
        if "embed.position" in self.recorded:  # as added: sinusoids are made in float64
            self.parts.add("embed.position", self._value("embed.position").to(token.dtype))

    def _block_norm_first(self, path: str) -> None:
        """Norms read the stream and do not change it."""
        self._attend(path)
        self._feed_forward(path)

    def _block_norm_after(self, path: str) -> None:
        """Norms change the stream, and so all that is in it by then."""
        self._attend(path)
        self._normalize(f"{path}.attention_norm")
        if self._feed_forward(path):
            self._normalize(f"{path}.feedforward_norm")

    def _attend(self, path: str) -> None:
        RESIDUALS[type(self.decoder.get_submodule(f"{path}.attention_residual"))](self.parts)
        heads = self.trace[f"{path}.attention.core"][0, :, self.at].double()  # (H, E)
        output = self.decoder.get_submodule(f"{path}.attention.output")
        weight, bias = OUTPUTS[type(output)](output, heads.numel(), heads.device)  # (D, H * E)
        updates = torch.einsum("dhe,he->hd", weight.unflatten(1, heads.shape), heads)  # (H, D)
        for head, update in enumerate(updates):
            self.parts.add(f"{path}.attention.core[{head}]", update)
        self.parts.add(f"{path}.attention.output.bias", bias)

    def _feed_forward(self, path: str) -> bool:
        """Is there one?"""
        name = f"{path}.feedforward"
        if name in self.recorded:
            self.parts.add(name, self._value(name))
        return name in self.recorded

    def _normalize(self, path: str) -> None:
        norm = freeze(self.decoder, path, self.trace, self.at)
        self.parts.vectors = list(norm(self.parts.stacked()))
        self.parts.add(f"{path}.bias", norm.shift)

    def _value(self, name: str) -> Tensor:
        return self.trace[name][0, self.at]


PLACEMENTS: dict[str, Callable[[StreamDecomposition, str], None]] = {
    "pre": StreamDecomposition._block_norm_first,
    "post": StreamDecomposition._block_norm_after,
}
WeightAndBias = tuple[Tensor, Tensor | None]
OUTPUTS: dict[type[nn.Module], Callable[..., WeightAndBias]] = {  # what takes the heads (H * E) into the stream (D)
    Linear: lambda output, size, device: (output.weight.detach().double(), output.bias),
    nn.Identity: lambda output, size, device: (torch.eye(size, dtype=torch.float64, device=device), None),
}
