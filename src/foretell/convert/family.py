"""The declaration of a model family: its config.json fields, its weights, and their mapping to ours.

Weights can differ in declared ways, each a `Transform` that works in both directions. A transform maps tensors in our
format (one, or several that are fused in theirs) to tensors in theirs. The last dimension of our matrices is the input
dimension; biases are vectors and use the same transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foretell.config.model import ModelConfig
from foretell.config.weight_shapes import Shape, weight_shapes
from foretell.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

REQUIRED = ...  # the default of a field that must be present


@dataclass(frozen=True)  # so that instances of a class are equal
class Transform:
    """Base class of declared differences between two weight formats."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return list(shapes)

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        raise NotImplementedError

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        """Convert from their format to ours; `shapes` are the shapes of the result."""
        raise NotImplementedError


class Split(Transform):
    """Several of our matrices are one of theirs, concatenated along the outputs: GPT-2's fused query, key and value."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(sum(shape[0] for shape in shapes), *shapes[0][1:])]

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        import torch  # not above: a configuration is read without torch

        return [torch.cat(tensors)]

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        return list(tensors[0].split([shape[0] for shape in shapes]))


class SplitHeads(Split):
    """One matrix has query, key and value of the first head, then of the second, ...: GPT-NeoX (Black et al. 2022)."""

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        import torch

        heads = [tensor.unflatten(0, (-1, config.head_width)) for tensor in tensors]
        return [torch.stack(heads, dim=1).flatten(0, 2)]  # (H, 3, E, D) as (3 H E, D)

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        heads = tensors[0].unflatten(0, (-1, len(shapes), config.head_width))
        return [part.flatten(0, 1) for part in heads.unbind(1)]


class Transpose(Transform):
    """Their matrices are (inputs, outputs), ours (outputs, inputs): GPT-2's Conv1D."""

    def their_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [shape[::-1] for shape in shapes]

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        return [tensor.T if tensor.dim() == 2 else tensor for tensor in tensors]

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        return self.to_theirs(tensors, config)


class Permute(Transform):
    """They rotate pairs (2i, 2i+1) of each head, we rotate (i, i + E/2): the format of Llama's original release."""

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        return [self._regrouped(tensor, (-1, 2, config.head_width // 2)) for tensor in tensors]

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        return [self._regrouped(tensor, (-1, config.head_width // 2, 2)) for tensor in tensors]

    @staticmethod
    def _regrouped(tensor: Tensor, sizes: Shape) -> Tensor:
        return tensor.unflatten(0, sizes).transpose(1, 2).flatten(0, 2)


class PermuteRotated(Transform):
    """They rotate pairs (i, i + R/2) of the first R elements of each head, we rotate (i, i + E/2) for i below R/2.

    The order of a head's elements does not matter if query and key have the same order. A third tensor (the value) does
    not change.
    """

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        R, rest = config.rotary_width // 2, (config.head_width - config.rotary_width) // 2
        return self._regrouped(tensors, config.head_width, (R, rest, R, rest))

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        R, rest = config.rotary_width // 2, (config.head_width - config.rotary_width) // 2
        return self._regrouped(tensors, config.head_width, (R, R, rest, rest))

    @staticmethod
    def _regrouped(tensors: list[Tensor], head_width: int, sizes: Shape) -> list[Tensor]:
        """The four parts of each query and key head, with the two middle parts exchanged."""
        import torch

        parts = [tensor.unflatten(0, (-1, head_width)).split(sizes, dim=1) for tensor in tensors[:2]]
        regrouped = [
            torch.cat((first, third, second, last), dim=1).flatten(0, 1) for first, second, third, last in parts
        ]
        return regrouped + tensors[2:]


class AddOne(Transform):
    """Our norm's weight is an offset from one, theirs is one more: Gemma in GGUF.

    In float32, the scale that a norm computes from the offset has the same bits as theirs. So has a bfloat16 offset
    after a round trip, unless it is below 2^-16, whose last digits the sum loses.
    """

    def to_theirs(self, tensors: list[Tensor], config: ModelConfig) -> list[Tensor]:
        return [tensor.float() + 1 for tensor in tensors]

    def to_ours(self, tensors: list[Tensor], config: ModelConfig, shapes: Sequence[Shape]) -> list[Tensor]:
        return [tensor.float() - 1 for tensor in tensors]


@dataclass(frozen=True)
class Rope:
    """The names of a family's rotary fields, apart from rope_scaling and rope_parameters.

    theta, share: the older names of the base and of the rotated share of each head; share None: everything is rotated.
    scalings: the types of scaling that transformers accepts. local_theta: the older name of the base in layers with a
    window, which is not scaled; None if it is the same.
    """

    theta: str = "rope_theta"
    share: str | None = None
    default_share: float = 1.0
    scalings: tuple[str, ...] = ("default", "linear", "llama3")
    default_theta: float = 10_000.0
    local_theta: str | None = None
    default_local_theta: float = 10_000.0


@dataclass(frozen=True)
class LayerWindows:
    """The names of the fields that say which layers have a window, and the size of all windows.

    types: a list with the type of each layer; None if there is none. period: the older field, a number n, of which
    every n-th layer has no window.
    """

    size: str = "sliding_window"
    types: str | None = "layer_types"
    period: str = "sliding_window_pattern"
    default_size: int | None = 4096
    default_period: int = 6


@dataclass(frozen=True)
class Field:
    """A value of a config.json and the fields of `ModelConfig` that it sets (dotted if nested).

    default: the value that transformers uses if the field is absent. words: their word -> our word; if several of
    theirs map to one of ours, the first is written. follows: the field whose value is written if ours is left out.
    """

    ours: tuple[str, ...]
    default: Any = REQUIRED
    words: Mapping[Any, str] | None = None
    follows: str | None = None


@dataclass(frozen=True)
class Row:
    """A module path in their format and our paths, with `*` for the layer. Transforms apply in order when reading."""

    theirs: str
    ours: tuple[str, ...]
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True)
class Family:
    """The declaration of one `model_type` of Hugging Face, or of one architecture of GGUF."""

    name: str  # the model_type
    architecture: str
    prefix: str  # prefix of every weight except the head; missing in files with only the trunk
    rows: tuple[Row, ...]
    fields: Mapping[str, Field]
    shared: Mapping[str, Any]  # fields of ModelConfig that have the same value in the whole family
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # their field -> the values we can express
    noted: Mapping[str, str] = field(default_factory=dict)  # their field -> why ignoring it is safe; noted when set
    harmless: frozenset[str] = frozenset()  # their fields that do not affect the logits
    buffers: tuple[str, ...] = ()  # globs of names in the files that are not weights
    head: str = "lm_head"
    rope: Rope | None = None  # for rotary positions
    windows: LayerWindows | None = None  # for windows that differ by layer
    tokenizer_class: str | None = None  # the class transformers builds for this family, ignoring the tokenizer files
    splits_width: bool = False  # transformers requires the width to be a multiple of the number of heads


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Pairing:
    """One of their tensors and our tensors that it holds."""

    theirs: str
    shape: Shape  # in their format
    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]  # in ours
    row: Row


def pairings(family: Family, config: ModelConfig) -> Iterator[Pairing]:
    """Every tensor of a file of this family for this configuration."""
    shapes = weight_shapes(config.replaced(num_layers=1, window=None))  # all layers have the same
    for row in family.rows:
        for kind in ("weight", "bias"):
            first = [f"{path}.{kind}".replace("*", "0") for path in row.ours]
            if first[0] not in shapes:
                continue
            ours = tuple(shapes[path] for path in first)
            theirs: Sequence[Shape] = ours
            for transform in reversed(row.transforms):
                theirs = transform.their_shapes(theirs)
            for layer in range(config.num_layers if "*" in row.theirs else 1):
                paths = tuple(f"{path}.{kind}".replace("*", str(layer)) for path in row.ours)
                name = f"{row.theirs}.{kind}".replace("*", str(layer))
                yield Pairing(name, theirs[0], paths, ours, row)


def check_weights(family: Family, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Raise `ConfigError` unless the family covers exactly these weights; a replaced module may have others."""
    shapes = {
        path: shape for pair in pairings(family, config) for path, shape in zip(pair.ours, pair.shapes, strict=True)
    }
    for path, weight in weights.items():
        if path not in shapes:
            raise ConfigError(f"the model has a weight '{path}' that {family.name} cannot express")
        if tuple(weight.shape) != shapes[path]:
            raise ConfigError(
                f"the model's '{path}' has shape {tuple(weight.shape)}, and {family.name} expresses {shapes[path]}"
            )
    for path in shapes:
        if path not in weights:
            raise ConfigError(f"the model lacks the weight '{path}' that {family.name} needs")


def iter_theirs(family: Family, config: ModelConfig, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) in their format, for weights under our module paths. See `check_weights`."""
    for pairing in pairings(family, config):
        tensors = [weights[path] for path in pairing.ours]
        for transform in reversed(pairing.row.transforms):
            tensors = transform.to_theirs(tensors, config)
        yield pairing.theirs, tensors[0].contiguous()


def iter_ours(family: Family, config: ModelConfig, read: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """(module path, tensor) in our format; `read` returns a tensor by their name and is called once per tensor."""
    for pairing in pairings(family, config):
        tensors = [read(pairing.theirs)]
        for transform in pairing.row.transforms:
            tensors = transform.to_ours(tensors, config, pairing.shapes)
        for path, tensor in zip(pairing.ours, tensors, strict=True):
            yield path, tensor.contiguous()


def outputs_in_our_order(pairing: Pairing, config: ModelConfig, theirs: Tensor) -> list[Tensor]:
    """Split a matrix with their outputs as rows, such as B of a LoRA update, into one for each of our layers."""
    tensors = [theirs]
    for transform in pairing.row.transforms:
        if transform != Transpose():
            tensors = transform.to_ours(tensors, config, pairing.shapes)
    return tensors


def outputs_in_their_order(pairing: Pairing, config: ModelConfig, ours: Sequence[Tensor]) -> Tensor:
    """Join matrices with our outputs as rows, and equal numbers of columns, into one with their outputs."""
    tensors = list(ours)
    for transform in reversed(pairing.row.transforms):
        if transform != Transpose():
            tensors = transform.to_theirs(tensors, config)
    return tensors[0]
