"""Linear layers, embeddings and tied heads whose weights are small integers with scales.

Integers, scales and minima are buffers under the path of the layer: `trunk.blocks.0.attention.query.integers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self, get_args

import torch
from torch import Tensor, nn

from foretell.config.model import QuantizationConfig, Scheme
from foretell.device import check_name
from foretell.errors import ConfigError, UsageError
from foretell.model.decoder import HEAD, Decoder, TiedHead
from foretell.model.description import Description
from foretell.model.kernels.cpu_matmul import fastest_dtype, linear_in_parts
from foretell.model.kernels.dispatch import plain_form
from foretell.model.quantization import (
    FORMS,
    SCALE_DTYPE,
    UNIT_INPUTS,
    MatrixForm,
    bits_per_weight,
    check_group,
    choose_group,
    dequantize,
    dequantize_int4,
    in_units,
    quantize_int4,
    quantize_int8,
    signed_int4,
    times_scales,
)
from foretell.model.surgery import replace
from foretell.paths import select

BUFFERS = ("integers", "scales", "minima", "scale_units", "minimum_units")
ALL = slice(None)

logger = logging.getLogger(__name__)


def without_cast(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """A tensor as `Module.to` moves it, in its own dtype."""
    moved = fn(tensor)
    return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)


class QuantizedMatrix(nn.Module):
    """A matrix (O, I) stored as integers with scales. Subclasses define the scheme.

    scales, minima: (O, I/group), also without minima, or with units for 256 inputs each. dtype: of dequantised rows;
    `Module.to` changes it and leaves scales, minima and units, whose values need their types.
    """

    scheme: ClassVar[Scheme]
    quantize: ClassVar[Callable[[Tensor, int], dict[str, Tensor]]]  # from a matrix (O, I) and the group
    integers: Tensor
    scales: Tensor
    minima: Tensor | None
    scale_units: Tensor | None

    def __init__(self, stored: Mapping[str, Tensor], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.dtype = dtype
        for name in BUFFERS:
            self.register_buffer(name, stored.get(name))

    @classmethod
    def buffers_of(cls, weight: Tensor, form: MatrixForm) -> dict[str, Tensor]:
        """The buffers of a matrix; on the meta device they have only shapes."""
        return form.empty(*weight.shape) if weight.is_meta else cls.quantize(weight, form.group)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        kept = dict(self._buffers)
        super()._apply(fn, recurse)
        self._buffers |= {name: None if old is None else without_cast(fn, old) for name, old in kept.items()}
        return self

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows (..., I), rounded once to a dtype."""
        raise NotImplementedError

    def factors(self, index: Tensor | slice) -> dict[str, Tensor]:
        """The scales, minima and units of rows."""
        return {name: buffer[index] for name, buffer in self.named_buffers(recurse=False) if name != "integers"}

    def scales_and_minima(self, index: Tensor | slice = ALL) -> tuple[Tensor, Tensor | None]:
        """The scales and minima of rows as numbers, in a type in which they are exact."""
        factors = self.factors(index)
        pairs = (("scales", "scale_units"), ("minima", "minimum_units"))
        scales, minima = (
            factors.get(name) if unit not in factors else in_units(factors[name], factors[unit]) for name, unit in pairs
        )
        assert scales is not None
        return scales, minima

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

    def signed_integers(self, index: Tensor | slice) -> Tensor:
        """The integers (..., I) of rows, one in a byte."""
        raise NotImplementedError

    def stored(self, row: int) -> dict[str, Tensor]:
        """The integers (I,) of a row, with the scale and minimum of each."""
        scales, minima = self.scales_and_minima(slice(row, row + 1))
        ranges = {"scale": scales} if minima is None else {"scale": scales, "minimum": minima}
        spread = {name: values[0].repeat_interleave(self.group) for name, values in ranges.items()}
        return {"integer": self.signed_integers(slice(row, row + 1))[0], **spread}

    @property
    def weight(self) -> Tensor:
        """The whole matrix (O, I), dequantised."""
        return self.rows(ALL, self.dtype)

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
        if dtype == self.scales.dtype == SCALE_DTYPE:
            return times_scales(self.integers[index], self.scales[index], dtype)
        return dequantize(self.integers[index], **self.factors(index)).to(dtype)

    def signed_integers(self, index: Tensor | slice) -> Tensor:
        return self.integers[index]

    @property
    def in_features(self) -> int:
        return self.integers.shape[-1]


class Int4Matrix(QuantizedMatrix):
    """Integers from 0 to 15, or without minima from -8 to 7, two in a byte, (O, I/2)."""

    scheme = "int4"
    quantize = staticmethod(quantize_int4)

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        return dequantize_int4(self.integers[index], **self.factors(index)).to(dtype)

    def signed_integers(self, index: Tensor | slice) -> Tensor:
        return signed_int4(self.integers[index], self.minima)

    @property
    def in_features(self) -> int:
        return 2 * self.integers.shape[-1]


class QuantizedLinear(QuantizedMatrix):
    """`nn.Linear` with integers instead of its weight; the bias is not quantised."""

    description = Description(formula="linear", saved=("x",))

    def __init__(self, stored: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype = torch.float32):
        super().__init__(stored, dtype)
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
        return self.rows(ids, self.dtype)  # (..., D)


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
        forms = {decoder.get_submodule(path): form_of(path, decoder, config) for path in layers}
        table = decoder.embed.token
        token = embedding_form(table, forms[table]) if table in forms else None
        replace(decoder, layers, lambda layer: quantized_form(layer, forms[layer], token))
    return layers


def check_groups(decoder: Decoder, config: QuantizationConfig) -> list[str]:
    """The paths of the layers to quantise; a group that does not divide their widths is a `ConfigError`."""
    layers = quantized_paths(decoder, config.keep, config.forms)
    for path in layers:
        if not isinstance(layer := decoder.get_submodule(path), TiedHead):
            form = form_of(path, decoder, config)
            check_group(path, matrix_of(layer).shape[-1], UNIT_INPUTS if form.has_units else form.group)
    return layers


def form_of(path: str, decoder: Decoder, config: QuantizationConfig) -> MatrixForm:
    """The form of a layer. A token embedding has the form of the head that is tied to it, or is in int8."""
    is_tied = isinstance(decoder.head, TiedHead)
    path = TOKEN if path == HEAD and is_tied else path
    if config.forms:
        return FORMS[config.forms[path]]
    ends: dict[str, Scheme] = {TOKEN: config.head if is_tied else "int8", HEAD: config.head}
    scheme = ends.get(path, config.to)
    return MatrixForm(scheme, config.group, has_minima=scheme == "int4")


def embedding_form(table: nn.Module, form: MatrixForm) -> QuantizedEmbedding:
    weight, kind = matrix_of(table).detach(), EMBEDDINGS[form.scheme]
    return kind(kind.buffers_of(weight, form), weight.dtype)


def quantized_form(layer: nn.Module, form: MatrixForm, token: QuantizedEmbedding | None) -> nn.Module:
    """The quantised form of a linear layer, head or token embedding; `token` is the quantised embedding, if any."""
    if isinstance(layer, nn.Embedding):
        assert token is not None
        return token
    if isinstance(layer, TiedHead):
        assert token is not None
        return QuantizedTiedHead(token, layer.bias)
    assert isinstance(layer, nn.Linear)
    weight, kind = layer.weight.detach(), LINEARS[form.scheme]
    return kind(kind.buffers_of(weight, form), layer.bias, weight.dtype)


def quantized_paths(decoder: Decoder, keep: Sequence[str] = (), forms: Mapping[str, str] | None = None) -> list[str]:
    """The paths of the layers to quantise. If `keep` matches a tied head or the token embedding, both are kept.

    forms: by the paths of the layers, instead of `keep`; a tied head follows its embedding.
    """
    modules = dict(decoder.named_modules())
    plain = {path: plain_form(type(module)) for path, module in modules.items()}
    paths = [TOKEN, *(path for path, form in plain.items() if form is nn.Linear or issubclass(form, TiedHead))]
    is_tied = isinstance(decoder.head, TiedHead)
    if forms:
        if unknown := next((path for path in forms if path not in paths), None):
            raise ConfigError(f"forms names '{unknown}', which is not a matrix of the decoder")
        return [path for path in paths if path in forms or (is_tied and path == HEAD and TOKEN in forms)]
    kept = set(select(keep, [path for path in modules if path])) if keep else set()
    if is_tied and kept & {TOKEN, HEAD}:
        kept |= {TOKEN, HEAD}
    return [path for path in paths if path not in kept]


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


def stored_buffers(decoder: nn.Module) -> dict[str, Tensor]:
    """Integers, scales, minima and units by path, as stored on disk."""
    return {
        f"{path}.{name}": buffer
        for path, layer in quantized_layers(decoder).items()
        for name, buffer in layer.named_buffers(recurse=False)
    }


def count_weights(decoder: nn.Module) -> int:
    """The number of weights, quantised or not."""
    integers = sum(layer.in_features * layer.out_features for layer in quantized_layers(decoder).values())
    return integers + sum(parameter.numel() for parameter in decoder.parameters())
