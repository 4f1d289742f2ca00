"""The stream at one position as a sum of parts: the embeddings, and the output of each head and feed-forward layer.

A norm with frozen statistics is linear, so it can be applied to each part separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.norm import LayerNorm, RMSNorm
from foretell.model.transformer import AddUpdate, ReplaceByUpdate


@dataclass(frozen=True)
class FrozenNorm:
    """A norm as a linear function of parts (N, D): subtract each part's mean if `centers`, then multiply by `scale`.

    The means of the parts add up to the mean of the stream, so only the divisor is frozen. `shift` is a separate part.
    """

    scale: Tensor | float
    centers: bool
    shift: Tensor | None

    def __call__(self, parts: Tensor) -> Tensor:
        """The contribution of each part to the normalized stream, without the shift."""
        return (parts - parts.mean(-1, keepdim=True) if self.centers else parts) * self.scale


def freeze(decoder: nn.Module, path: str, trace: Trace, at: int) -> FrozenNorm:
    """The norm at a path with its statistics at position `at` of the traced pass."""
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


# Values that a decomposition reads, as far as the model has them
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
        """Add a part, unless it is None."""
        if vector is not None:
            self.names.append(name)
            self.vectors.append(vector.detach().double())

    def clear(self) -> None:
        """Remove all parts: without a residual connection the update replaces the stream."""
        self.names, self.vectors = [], []

    def keep(self) -> None:
        """Keep all parts: the update is added to the stream."""

    def stacked(self) -> Tensor:
        """All parts as one tensor, (N, D)."""
        return torch.stack(self.vectors)


# What a residual module does to the parts in the stream before an update is added
RESIDUALS: dict[type[nn.Module], Callable[[StreamParts], None]] = {
    AddUpdate: StreamParts.keep,
    ReplaceByUpdate: StreamParts.clear,
}


class StreamDecomposition:
    """Follows the parts of the stream at position `at` of a traced pass through the decoder."""

    def __init__(self, decoder: Decoder, trace: Trace, at: int):
        self.decoder, self.trace, self.at = decoder, trace, at
        self.recorded = set(trace.names())
        self.parts = StreamParts()

    def run(self) -> StreamParts:
        """The parts of the head's input."""
        self._embed()
        for layer in range(self.decoder.config.num_layers):
            PLACEMENTS[self.decoder.config.norm_placement](self, f"trunk.blocks.{layer}")
        self._normalize("trunk.norm")
        return self.parts

    def _embed(self) -> None:
        token = self._value("embed.token")
        self.parts.add("embed.token", token)
        if "embed.position" in self.recorded:  # rounded as when it was added: sinusoids are computed in float64
            self.parts.add("embed.position", self._value("embed.position").to(token.dtype))

    def _block_pre_norm(self, path: str) -> None:
        """A block with norms before its sublayers, which leave the stream unchanged."""
        self._attend(path)
        self._feed_forward(path)

    def _block_post_norm(self, path: str) -> None:
        """A block with norms after its sublayers, which change all parts of the stream."""
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
        """Add the feed-forward layer's output; False if the block has none."""
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
    "pre": StreamDecomposition._block_pre_norm,
    "post": StreamDecomposition._block_post_norm,
}
WeightAndBias = tuple[Tensor, Tensor | None]
OUTPUTS: dict[
    type[nn.Module], Callable[..., WeightAndBias]
] = {  # weight (D, H * E) and bias of attention's output projection
    nn.Linear: lambda output, size, device: (output.weight.detach().double(), output.bias),
    nn.Identity: lambda output, size, device: (torch.eye(size, dtype=torch.float64, device=device), None),
}
