"""Linear layers, embeddings and tied heads whose weights are small integers with scales.

Integers, scales and minima are buffers under the path of the layer: `trunk.blocks.0.attention.query.integers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from foretell.config.quantization import MATRIX_TENSORS, Scheme
from foretell.model.cpu_matmul import fastest_dtype, linear_in_parts
from foretell.model.decoder import ScaledVectors, TiedHead
from foretell.model.description import Description
from foretell.model.quantization import (
    SCALE_DTYPE,
    MatrixForm,
    dequantize,
    dequantize_int4,
    in_units,
    quantize_int4,
    quantize_int8,
    signed_int4,
    times_scales,
)

ALL = slice(None)


def without_cast(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """A tensor as `Module.to` moves it, in its own dtype."""
    moved = fn(tensor)
    return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)


class QuantizedMatrix(nn.Module):
    """A matrix (O, I) stored as integers with scales. Subclasses define the scheme.

    scales, minima: (O, I/group), also without minima, or with units for 256 inputs each. `Module.to` leaves their
    types, which their values need. It casts `floats`, an empty buffer that has the dtype of dequantised rows; copies of
    the module share it like other buffers.
    """

    scheme: ClassVar[Scheme]
    quantize: ClassVar[Callable[[Tensor, int], dict[str, Tensor]]]  # from a matrix (O, I) and the group
    integers: Tensor
    scales: Tensor
    minima: Tensor | None
    scale_units: Tensor | None
    floats: Tensor

    def __init__(self, stored: Mapping[str, Tensor], dtype: torch.dtype = torch.float32):
        super().__init__()
        for name in MATRIX_TENSORS:
            self.register_buffer(name, stored.get(name))
        self.register_buffer("floats", torch.empty(0, dtype=dtype), persistent=False)

    @classmethod
    def buffers_of(cls, weight: Tensor, form: MatrixForm) -> dict[str, Tensor]:
        """The buffers of a matrix; on the meta device they have only shapes."""
        return form.empty(*weight.shape) if weight.is_meta else cls.quantize(weight, form.group)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: self._buffers[name] for name in MATRIX_TENSORS}
        super()._apply(fn, recurse)
        self._buffers |= {name: None if old is None else without_cast(fn, old) for name, old in kept.items()}
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of dequantised rows."""
        return self.floats.dtype

    def rows(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rows (..., I), rounded once to a dtype."""
        raise NotImplementedError

    def factors(self, index: Tensor | slice) -> dict[str, Tensor]:
        """The scales, minima and units of rows."""
        buffers = {name: self._buffers[name] for name in MATRIX_TENSORS if name != "integers"}
        return {name: buffer[index] for name, buffer in buffers.items() if buffer is not None}

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

    description = Description(formula="linear", backward="transposed linear", saved=("x",))

    def __init__(self, stored: Mapping[str, Tensor], bias: Tensor | None, dtype: torch.dtype = torch.float32):
        super().__init__(stored, dtype)
        self.bias = bias

    def forward(self, input: Tensor) -> Tensor:
        return self.matmul(input, self.bias)  # (..., O)


class Int8Linear(QuantizedLinear, Int8Matrix):
    """A linear layer in int8."""

    operation = "matmul"


class Int4Linear(QuantizedLinear, Int4Matrix):
    """A linear layer in int4."""

    operation = "matmul"


class QuantizedEmbedding(QuantizedMatrix):
    """`nn.Embedding` with integers instead of its weight."""

    description = Description(formula="token vector", backward="rows", inputs=("ids",), is_float32=True)

    def forward(self, input: Tensor) -> Tensor:
        return self.rows(input, self.dtype)  # (..., D)


class Int8Embedding(QuantizedEmbedding, Int8Matrix):
    """A token embedding in int8."""

    operation = "embed"


class Int4Embedding(QuantizedEmbedding, Int4Matrix):
    """A token embedding in int4, for a head tied to it."""

    operation = "embed"


class ScaledQuantizedEmbedding(ScaledVectors, QuantizedEmbedding):
    """A token embedding in integers, times `scale`."""

    def __init__(self, stored: Mapping[str, Tensor], dtype: torch.dtype, scale: float):
        super().__init__(stored, dtype)
        self.scale = scale


class ScaledInt8Embedding(ScaledQuantizedEmbedding, Int8Embedding):
    """A token embedding in int8, times `scale`."""

    operation = "scaled embed"


class ScaledInt4Embedding(ScaledQuantizedEmbedding, Int4Embedding):
    """A token embedding in int4, times `scale`."""

    operation = "scaled embed"


class QuantizedTiedHead(TiedHead):
    """`TiedHead` on the integers of a `QuantizedEmbedding`."""

    operation = "matmul"

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
SCALED_EMBEDDINGS: dict[str, type[Any]] = {"int8": ScaledInt8Embedding, "int4": ScaledInt4Embedding}
TOKEN = "embed.token"


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
