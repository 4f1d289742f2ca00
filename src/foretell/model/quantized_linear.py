"""Linear layers, embeddings and tied heads whose weights are small integers with scales.

Integers, scales and minima are buffers under the path of the layer: `trunk.blocks.0.attention.query.integers`. Scales
and minima have the model's dtype, so `Module.to` casts them. Their values fit bfloat16, so casting to it and back
changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from foretell.config.model import QuantizationConfig, Scheme
from foretell.device import check_name
from foretell.errors import UsageError
from foretell.model.cpu_matmul import fastest_dtype, linear_in_parts
from foretell.model.decoder import HEAD, Decoder, TiedHead
from foretell.model.description import Description
from foretell.model.dispatch import plain_form
from foretell.model.quantization import (
    SCALE_DTYPE,
    bits_per_weight,
    check_group,
    choose_group,
    dequantize_int4,
    quantize_int4,
    quantize_int8,
    times_scales,
    unpack_int4,
)
from foretell.model.surgery import replace
from foretell.paths import select

logger = logging.getLogger(__name__)


class QuantizedMatrix(nn.Module):
    """A matrix (O, I) stored as integers with scales. Subclasses define the scheme."""

    scheme: ClassVar[Scheme]
    quantize: ClassVar[Callable[[Tensor, int], dict[str, Tensor]]]  # from a matrix (O, I) and the group
    integers: Tensor
    scales: Tensor  # (O, I/group)

    def __init__(self, stored: Mapping[str, Tensor]):
        super().__init__()
        for name, tensor in stored.items():
            self.register_buffer(name, tensor)

    @classmethod
    def buffers_of(cls, weight: Tensor, group: int) -> dict[str, Tensor]:
        """The buffers of a matrix; empty on the meta device, where rounding GPT-2 to int4 takes five seconds."""
        if not weight.is_meta:
            return cls.quantize(weight, group)
        row = cls.quantize(weight.new_zeros(1, weight.shape[1], device="cpu"), group)
        return {name: weight.new_empty(len(weight), part.shape[1], dtype=part.dtype) for name, part in row.items()}

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows (..., I), rounded once to a dtype."""
        raise NotImplementedError

    @property
    def out_features(self) -> int:
        return len(self.scales)

    @property
    def in_features(self) -> int:
        raise NotImplementedError

    @property
    def group(self) -> int:
        """The number of inputs that share a scale."""
        return self.in_features // self.scales.shape[-1]

    def stored(self, row: int) -> dict[str, Tensor]:
        """The integers (I,) of a row, with the scale and minimum of each."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The whole matrix (O, I), dequantised."""
        return self.rows(slice(None), self.scales.dtype)

    def matmul(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W' + b; W is dequantised in parts."""
        dtype = fastest_dtype(x)
        rows = partial(self.rows, dtype=dtype)
        return linear_in_parts(x.to(dtype), rows, bias, self.out_features).to(x.dtype)  # (..., O)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.scheme} in groups of {self.group}"


class Int8Matrix(QuantizedMatrix):
    """Integers from -127 to 127, (O, I)."""

    scheme = "int8"
    quantize = staticmethod(quantize_int8)

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        exact = dtype if dtype == SCALE_DTYPE else torch.float32
        return times_scales(self.integers[index], self.scales[index], exact).to(dtype)

    def stored(self, row: int) -> dict[str, Tensor]:
        return {"integer": self.integers[row], "scale": self.scales[row].repeat_interleave(self.group)}

    @property
    def in_features(self) -> int:
        return self.integers.shape[-1]


class Int4Matrix(QuantizedMatrix):
    """Integers from 0 to 15, two in a byte, (O, I/2), and the minimum of each group."""

    scheme = "int4"
    quantize = staticmethod(quantize_int4)
    minima: Tensor  # (O, I/group)

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        return dequantize_int4(self.integers[index], self.scales[index], self.minima[index]).to(dtype)

    def stored(self, row: int) -> dict[str, Tensor]:
        ranges = {"scale": self.scales[row], "minimum": self.minima[row]}
        spread = {name: values.repeat_interleave(self.group) for name, values in ranges.items()}
        return {"integer": unpack_int4(self.integers[row]), **spread}

    @property
    def in_features(self) -> int:
        return 2 * self.integers.shape[-1]


class QuantizedLinear(QuantizedMatrix):
    """`nn.Linear` with integers instead of its weight; the bias is not quantised."""

    description = Description(formula="linear", saved=("x",))

    def __init__(self, stored: Mapping[str, Tensor], bias: Tensor | None):
        super().__init__(stored)
        self.bias = bias

    def forward(self, input: Tensor) -> Tensor:
        return self.matmul(input, self.bias)  # (..., O)


class Int8Linear(QuantizedLinear, Int8Matrix):
    """A linear layer in int8."""


class Int4Linear(QuantizedLinear, Int4Matrix):
    """A linear layer in int4."""


class QuantizedEmbedding(QuantizedMatrix):
    """`nn.Embedding` with integers instead of its weight."""

    description = Description(formula="token vector", inputs=("ids",), is_float32=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids, self.scales.dtype)  # (..., D)


class Int8Embedding(QuantizedEmbedding, Int8Matrix):
    """A token embedding in int8."""


class Int4Embedding(QuantizedEmbedding, Int4Matrix):
    """A token embedding in int4, for a head tied to it."""


class QuantizedTiedHead(TiedHead):
    """`TiedHead` on the integers of a `QuantizedEmbedding`."""

    def __init__(self, token: QuantizedEmbedding, bias: nn.Parameter | None):
        nn.Module.__init__(self)
        self.token = (token,)  # in a tuple, so that the module tree does not contain it twice
        self.bias = bias

    @property
    def weight(self) -> Tensor:
        return self.token[0].weight

    def forward(self, input: Tensor) -> Tensor:
        return self.token[0].matmul(input, self.bias)  # (..., V)


def stored_matrix(layer: Any) -> Any:
    """The module that holds a layer's weights: the embedding for a quantised tied head, else the layer."""
    return layer.token[0] if isinstance(layer, QuantizedTiedHead) else layer


LINEARS: dict[str, type[QuantizedLinear]] = {"int8": Int8Linear, "int4": Int4Linear}
EMBEDDINGS: dict[str, type[QuantizedEmbedding]] = {"int8": Int8Embedding, "int4": Int4Embedding}
TOKEN = "embed.token"


def quantize_decoder(decoder: Decoder, config: QuantizationConfig) -> list[str]:
    """Replace linear layers, token embedding and head by quantised forms, in place; returns their paths.

    A head, and a token embedding tied to it, have the scheme `config.head`: int8 is the default in an int4 model too,
    because in int4 they lose as much quality as all other layers, or more. On the meta device the new layers have only
    shapes. A group that does not divide a width is a `ConfigError`, and a glob without a match a `UsageError`.
    """
    layers = check_groups(decoder, config)
    if layers:
        token = quantized_embedding(decoder, config) if TOKEN in layers else None
        replace(decoder, layers, lambda layer: quantized_form(layer, config, token, is_head=layer is decoder.head))
    return layers


def check_groups(decoder: Decoder, config: QuantizationConfig) -> list[str]:
    """The paths of the layers to quantise; a group that does not divide their widths is a `ConfigError`."""
    layers = quantized_paths(decoder, config.keep)
    for path in layers:
        if not isinstance(layer := decoder.get_submodule(path), TiedHead):
            check_group(path, matrix_of(layer).shape[-1], config.group)
    return layers


def quantized_embedding(decoder: Decoder, config: QuantizationConfig) -> QuantizedEmbedding:
    """The token embedding of a decoder; in int8, unless a head in int4 is tied to it."""
    kind = EMBEDDINGS[config.head] if isinstance(decoder.head, TiedHead) else Int8Embedding
    return kind(kind.buffers_of(matrix_of(decoder.embed.token).detach(), config.group))


def quantized_form(
    layer: nn.Module, config: QuantizationConfig, token: QuantizedEmbedding | None, *, is_head: bool
) -> nn.Module:
    """The quantised form of a linear layer, head or token embedding; `token` is the quantised embedding, if any."""
    if isinstance(layer, nn.Embedding):
        assert token is not None
        return token
    if isinstance(layer, TiedHead):
        assert token is not None
        return QuantizedTiedHead(token, layer.bias)
    assert isinstance(layer, nn.Linear)
    kind = LINEARS[config.head if is_head else config.to]
    return kind(kind.buffers_of(layer.weight.detach(), config.group), layer.bias)


def quantized_paths(decoder: Decoder, keep: Sequence[str] = ()) -> list[str]:
    """The paths of the layers to quantise. If `keep` matches a tied head or the token embedding, both are kept."""
    modules = dict(decoder.named_modules())
    forms = {path: plain_form(type(module)) for path, module in modules.items()}
    paths = [path for path, form in forms.items() if form is nn.Linear or issubclass(form, TiedHead)]
    kept = set(select(keep, [path for path in modules if path])) if keep else set()
    if isinstance(decoder.head, TiedHead) and kept & {TOKEN, HEAD}:
        kept |= {TOKEN, HEAD}
    return [path for path in (TOKEN, *paths) if path not in kept]


def matrix_of(layer: nn.Module) -> Tensor:
    assert isinstance(layer, (nn.Linear, nn.Embedding))
    return layer.weight


def make_quantization(
    decoder: Decoder, to: Scheme, group: int | None = None, keep: Sequence[str] = (), head: Scheme = "int8"
) -> QuantizationConfig:
    """The settings for a decoder; `group` defaults to one that fits its widths.

    Raises UsageError for a head with fewer bits than the other layers. Logs a warning for int4 in groups so small that
    int8 takes about as much memory: it is more accurate.
    """
    check_schemes(to, head)
    paths = quantized_paths(decoder, keep)
    if head == "int4" and HEAD not in paths:
        raise UsageError("--keep matches the head, so it cannot be int4; leave out --head or that --keep")
    layers = [decoder.get_submodule(path) for path in paths]
    widths = [matrix_of(layer).shape[-1] for layer in layers if not isinstance(layer, TiedHead)]
    chosen = choose_group(to, widths) if group is None else group
    settings = QuantizationConfig(to=to, group=chosen, head=head, keep=tuple(keep or ()))
    if to == "int4":
        bits, bits_of_int8 = bits_per_weight(to, chosen), bits_per_weight("int8", choose_group("int8", widths))
        if bits > 0.9 * bits_of_int8:
            logger.warning(
                f"int4 in groups of {chosen} takes {bits:.1f} bits per weight; int8 takes {bits_of_int8:.1f} and is "
                "more accurate"
            )
    return settings


def check_schemes(to: Scheme, head: Scheme) -> None:
    """Refuse unknown names, and a head in int4 with other layers in int8."""
    for name in (to, head):
        check_name("scheme", name, get_args(Scheme))
    if head == "int4" != to:
        raise UsageError(f"--head int4 is for int4 models, not for {to}; leave --head out")


def quantized_layers(decoder: nn.Module) -> dict[str, QuantizedMatrix]:
    """The quantised linear layers and embeddings, by path. A tied head has no weights and is not included."""
    return {path: module for path, module in decoder.named_modules() if isinstance(module, QuantizedMatrix)}


def plain_weights(decoder: nn.Module) -> dict[str, Tensor]:
    """Every weight by its path in a plain decoder; quantised weights are converted to floats."""
    weights = {f"{path}.weight": layer.weight for path, layer in quantized_layers(decoder).items()}
    return {**dict(decoder.named_parameters()), **weights}


def count_weights(decoder: nn.Module) -> int:
    """The number of weights, quantised or not."""
    integers = sum(layer.in_features * layer.out_features for layer in quantized_layers(decoder).values())
    return integers + sum(parameter.numel() for parameter in decoder.parameters())
