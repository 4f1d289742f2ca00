"""LoRA: low-rank updates of frozen linear layers (Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from foretell.config.section import Section
from foretell.errors import ConfigError, check_type
from foretell.model.cpu_matmul import CPULinear
from foretell.model.decoder import Decoder, check_decoder
from foretell.model.description import UNKNOWN_FORMULA, Description
from foretell.model.dropout import make_dropout
from foretell.model.surgery import replace
from foretell.numerics.randomness import stream_key
from foretell.paths import select

# All layers: better for small models than the paper's query and value of the attention (docs/finetuning-reference.md)
DEFAULT_TARGETS = ("trunk.blocks.**",)


class LoRAConfig(Section):
    """The rank, scale (alpha / rank) and layers of the updates."""

    rank: int = Field(8, gt=0)
    alpha: float = Field(16.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)  # on the update's input
    targets: tuple[str, ...] = DEFAULT_TARGETS  # globs of module paths
    also_trained: tuple[str, ...] = ()  # globs of weights that are trained too, such as embed.** for new tokens

    @field_validator("targets", "also_trained", mode="before")
    @classmethod
    def _from_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class LoRALinear(CPULinear):
    """W x + b + (alpha / rank) B A dropout(x), where W and b are frozen (Hu et al. 2021, section 4.1).

    lora_a is A, (rank, inputs), and lora_b is B, (outputs, rank). B starts at 0, so a new update changes nothing.
    """

    description = Description(formula=UNKNOWN_FORMULA, saved=("x",))

    def __init__(self, plain: nn.Linear, config: LoRAConfig):
        nn.Module.__init__(self)  # shares the weights of the plain layer
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.scale = config.scale
        weight = plain.weight
        self.lora_a = nn.Parameter(weight.new_zeros(config.rank, plain.in_features))
        self.lora_b = nn.Parameter(weight.new_zeros(plain.out_features, config.rank))
        self.lora_dropout = make_dropout(config.dropout)

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(self.lora_dropout(input), self.lora_a)  # (..., rank)
        return super().forward(input) + F.linear(low, self.lora_b) * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain layer with the weight W + (alpha / rank) B A, computed in float32 or better."""
        precise = torch.promote_types(self.weight.dtype, torch.float32)
        update = self.lora_b.to(precise) @ self.lora_a.to(precise) * self.scale
        plain = CPULinear(self.in_features, self.out_features, bias=False, device="meta")
        plain.weight = nn.Parameter((self.weight.to(precise) + update).to(self.weight.dtype))
        plain.bias = self.bias
        return plain


def add_lora(decoder: Decoder, config: LoRAConfig, seed: int = 0) -> list[str]:
    """Add new updates to the layers that `config.targets` match, and freeze all other weights but `also_trained`.

    A is drawn uniformly within 1/sqrt(inputs), like the weight of a new linear layer (Kaiming's rule with a = sqrt(5),
    as in the paper's code and peft); it depends on the seed and the path. Returns the paths of the layers. Raises
    ConfigError for a target that is not a linear layer with unshared weights, UsageError for a glob without a match.
    """
    check_decoder(decoder)
    check_type("the configuration", config, LoRAConfig, "a LoRAConfig")
    layers = find_targets(decoder, config.targets)
    weights = dict(decoder.named_parameters())
    also_trained = select(config.also_trained, list(weights))
    for path, weight in weights.items():
        weight.requires_grad_(path in also_trained)
    replace(decoder, layers, partial(LoRALinear, config=config))
    for path, layer in lora_layers(decoder).items():
        generator = torch.Generator().manual_seed(stream_key("lora", seed, path) >> 1)
        bound = layer.in_features**-0.5
        draws = torch.empty(layer.lora_a.shape).uniform_(-bound, bound, generator=generator)
        with torch.no_grad():
            layer.lora_a.copy_(draws)
    return layers


def find_targets(decoder: Decoder, globs: Iterable[str]) -> list[str]:
    """The paths of the linear layers that the globs match; each glob must match one."""
    modules = {path: module for path, module in decoder.named_modules() if path}
    linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
    for glob in globs:
        matched = select(glob, list(modules))
        if not any(path in linear for path in matched):
            raise ConfigError(f"'{matched[0]}' is not a linear layer, so LoRA cannot be added; try '{glob}.*'")
    paths = select(globs, linear)
    if twice := next((path for path in paths if isinstance(modules[path], LoRALinear)), None):
        raise ConfigError(f"'{twice}' has a LoRA update already; merge it first (foretell.load does)")
    return paths


def lora_layers(decoder: Decoder) -> dict[str, LoRALinear]:
    return {path: module for path, module in decoder.named_modules() if isinstance(module, LoRALinear)}


def lora_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The weights of the updates, by path: `trunk.blocks.0.attention.query.lora_a`."""
    return {
        f"{path}.{name}": getattr(layer, name)
        for path, layer in lora_layers(decoder).items()
        for name in ("lora_a", "lora_b")
    }


def merge_lora(decoder: Decoder) -> None:
    """Replace the layers that have an update by plain layers with the same outputs."""
    if layers := lora_layers(decoder):
        replace(decoder, list(layers), lambda layer: layer.merged() if isinstance(layer, LoRALinear) else layer)


def set_updates(decoder: Decoder, updates: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Copy (A, B) into the layers at these paths."""
    layers = lora_layers(decoder)
    with torch.no_grad():
        for path, (a, b) in updates.items():
            layers[path].lora_a.copy_(a)
            layers[path].lora_b.copy_(b)
