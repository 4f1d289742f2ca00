"""Feed-forward layers, blocks and the trunk: sublayers that read the residual stream and add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.model.attention import Attention
from foretell.model.cache import KVView
from foretell.model.description import OWN_INPUT, PARTS, PASSED_BACK, Declared, Description
from foretell.model.dropout import make_dropout
from foretell.model.norm import make_norm
from foretell.model.position import Rotation, make_rotation
from foretell.numerics.activations import ACTIVATIONS


class MLP(nn.Module):
    """down(activation(up(x))): Vaswani et al. 2017, section 3.3."""

    description = Description(
        values={
            "up": Declared("B T F"),
            "activation": Declared("B T F", ("up",)),
            "down": Declared("B T D", ("activation",)),
        },
        returns="down",
    )
    operation = PARTS

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = nn.Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.activation = ACTIVATIONS[config.activation].make()
        self.down = nn.Linear(config.feedforward_width, config.width, bias=config.bias.feedforward)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))  # (B, T, D) -> (B, T, F) -> (B, T, D)


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)): Shazeer 2020, GLU variants; SwiGLU with SiLU."""

    description = Description(
        values={
            "gate": Declared("B T F"),
            "up": Declared("B T F"),
            "activation": Declared("B T F", ("gate",)),
            "down": Declared("B T D", ("activation", "up"), "gated linear", "linear", "transposed gated linear"),
        },
        returns="down",
        saved=("activation", "up"),
    )
    operation = PARTS

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate = nn.Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.up = nn.Linear(config.width, config.feedforward_width, bias=config.bias.feedforward)
        self.activation = ACTIVATIONS[config.activation].make()
        self.down = nn.Linear(config.feedforward_width, config.width, bias=config.bias.feedforward)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))  # (B, T, D) -> (B, T, F) -> (B, T, D)


FEEDFORWARDS: dict[str, type[nn.Module]] = {"mlp": MLP, "gated": GatedMLP}


class AddUpdate(nn.Module):
    """The residual stream plus a sublayer's update; dropout applies to the update."""

    description = Description(
        formula="residual",
        backward=PASSED_BACK,
        inputs=("stream", "update"),
        values={"dropout": Declared("B T D", ("update",))},
        is_float32=True,
    )
    operation = "add"

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = make_dropout(dropout)

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        return stream + self.dropout(update)


class ReplaceByUpdate(AddUpdate):
    """No residual connection: the update replaces the stream."""

    description = AddUpdate.description.changed(formula="replacement", is_float32=False)
    operation = "replace"

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        return self.dropout(update)


@dataclass(frozen=True)
class Sublayer:
    """A part of a block that computes an update of the stream.

    name: its module in the block; its norm, the norm of its update and its residual are `<name>_norm`,
    `<name>_update_norm` and `<name>_residual`.
    arguments: makes the call's arguments from the vectors (B, T, D) to read, and the KV view and rotation of the pass.
    reads: the names of further inputs of the block that it reads.
    """

    name: str
    make: Callable[[ModelConfig, int], nn.Module]  # from the configuration and the index of the layer
    arguments: Callable[[Tensor, KVView, Rotation | None], tuple[Any, ...]]
    reads: tuple[str, ...] = ()


# Named functions, since a model is pickled with its sublayers
def attention_arguments(x: Tensor, kv: KVView, rotation: Rotation | None) -> tuple[Any, ...]:
    return x, kv, rotation


def feedforward_arguments(x: Tensor, kv: KVView, rotation: Rotation | None) -> tuple[Any, ...]:
    return (x,)


def make_feedforward(config: ModelConfig, layer: int) -> nn.Module:
    return FEEDFORWARDS[config.feedforward](config)


ATTENTION = Sublayer("attention", Attention, attention_arguments)
FEEDFORWARD = Sublayer("feedforward", make_feedforward, feedforward_arguments)


class Block(nn.Module):
    """Sublayers in sequence, each of which reads the normalised stream (Radford et al. 2019, section 2.3)."""

    description: Description
    operation = PARTS

    def __init__(self, config: ModelConfig, layer: int, sublayers: tuple[Sublayer, ...] = (ATTENTION, FEEDFORWARD)):
        super().__init__()
        self.sublayers = sublayers
        for sublayer in sublayers:
            values = self.reads(sublayer.name, OWN_INPUT)
            if f"{sublayer.name}_norm" in values:
                self.add_module(f"{sublayer.name}_norm", make_norm(config, config.width))
            self.add_module(sublayer.name, sublayer.make(config, layer))
            if f"{sublayer.name}_update_norm" in values:
                self.add_module(f"{sublayer.name}_update_norm", make_norm(config, config.width))
            keeps_stream = config.attention_residual or sublayer is not ATTENTION
            residual = AddUpdate if keeps_stream else ReplaceByUpdate
            self.add_module(f"{sublayer.name}_residual", residual(config.dropout.residual))
        self.description = self.describe()

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        for sublayer in self.sublayers:
            update = self.update(sublayer, self.normalised(sublayer, x), kv, rotation)
            x = self.add(sublayer, x, update)
        return x

    def normalised(self, sublayer: Sublayer, x: Tensor) -> Tensor:
        return getattr(self, f"{sublayer.name}_norm")(x)

    def normalised_update(self, sublayer: Sublayer, update: Tensor) -> Tensor:
        return getattr(self, f"{sublayer.name}_update_norm")(update)

    def update(self, sublayer: Sublayer, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        return getattr(self, sublayer.name)(*sublayer.arguments(x, kv, rotation))

    def add(self, sublayer: Sublayer, stream: Tensor, update: Tensor) -> Tensor:
        return getattr(self, f"{sublayer.name}_residual")(stream, update)

    def reads(self, name: str, stream: str) -> dict[str, tuple[str, ...]]:
        """The inputs of each value of a sublayer, in the order of `forward`; the last value is the new stream."""
        return {f"{name}_norm": (stream,), name: (f"{name}_norm",), f"{name}_residual": (stream, name)}

    def describe(self) -> Description:
        values, stream = {}, OWN_INPUT
        for sublayer in self.sublayers:
            reads = self.reads(sublayer.name, stream)
            reads[sublayer.name] += sublayer.reads
            values |= {value: Declared("B T D", read) for value, read in reads.items()}
            *_, stream = reads
        others = tuple(name for sublayer in self.sublayers for name in sublayer.reads)
        return Description(inputs=(OWN_INPUT, *others), values=values, returns=stream)


class BlockPostNorm(Block):
    """Sublayers in sequence, with the stream normalised after each (GPT-1; Vaswani et al. 2017, section 3.1)."""

    operation = PARTS

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        for sublayer in self.sublayers:
            update = self.update(sublayer, x, kv, rotation)
            x = self.normalised(sublayer, self.add(sublayer, x, update))
        return x

    def reads(self, name: str, stream: str) -> dict[str, tuple[str, ...]]:
        return {name: (stream,), f"{name}_residual": (stream, name), f"{name}_norm": (f"{name}_residual",)}


class UpdateNormBlock(Block):
    """Sublayers in sequence, each of whose updates is normalised before its addition (OLMo 2: Walsh et al. 2025)."""

    operation = PARTS

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        for sublayer in self.sublayers:
            update = self.update(sublayer, x, kv, rotation)
            x = self.add(sublayer, x, self.normalised_update(sublayer, update))
        return x

    def reads(self, name: str, stream: str) -> dict[str, tuple[str, ...]]:
        norm = f"{name}_update_norm"
        return {name: (stream,), norm: (name,), f"{name}_residual": (stream, norm)}


class SandwichBlock(UpdateNormBlock):
    """Sublayers in sequence, with norms of what each reads and of its update (Ding et al. 2021, CogView; Gemma 3)."""

    operation = PARTS

    def update(self, sublayer: Sublayer, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        return super().update(sublayer, self.normalised(sublayer, x), kv, rotation)

    def reads(self, name: str, stream: str) -> dict[str, tuple[str, ...]]:
        return {f"{name}_norm": (stream,), **super().reads(name, stream), name: (f"{name}_norm",)}


class ParallelBlock(Block):
    """Sublayers that all read the input of the block, each through its own norm (GPT-NeoX: Black et al. 2022)."""

    operation = PARTS

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        stream = x
        for sublayer in self.sublayers:
            update = self.update(sublayer, self.normalised(sublayer, x), kv, rotation)
            stream = self.add(sublayer, stream, update)
        return stream

    def reads(self, name: str, stream: str) -> dict[str, tuple[str, ...]]:
        return {f"{name}_norm": (OWN_INPUT,), name: (f"{name}_norm",), f"{name}_residual": (stream, name)}


class ParallelBlockSharedNorm(Block):
    """Sublayers that all read the input of the block through one norm (GPT-J: Wang and Komatsuzaki 2021; Phi)."""

    operation = PARTS

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        stream, x = x, self.normalised(ATTENTION, x)
        for sublayer in self.sublayers:
            stream = self.add(sublayer, stream, self.update(sublayer, x, kv, rotation))
        return stream

    def reads(self, name: str, stream: str) -> dict[str, tuple[str, ...]]:
        norm = {"attention_norm": (OWN_INPUT,)} if name == "attention" else {}
        return {**norm, name: ("attention_norm",), f"{name}_residual": (stream, name)}


BLOCKS: dict[tuple[str, str], type[Block]] = {  # by `residual` and `norm_placement`
    ("sequential", "pre"): Block,
    ("sequential", "post"): BlockPostNorm,
    ("sequential", "update"): UpdateNormBlock,
    ("sequential", "sandwich"): SandwichBlock,
    ("parallel", "pre"): ParallelBlock,
    ("parallel_shared_norm", "pre"): ParallelBlockSharedNorm,
}


class Transformer(nn.Module):
    """The trunk: L blocks and, unless the blocks normalise the stream itself, a final norm."""

    description = Description(values={"norm": Declared("B T D", ("blocks",))}, chain="blocks", returns="norm")
    operation = PARTS

    def __init__(self, config: ModelConfig):
        super().__init__()
        block, sublayers = BLOCKS[config.residual, config.norm_placement], self.choose_sublayers(config)
        self.rotation = make_rotation(config)
        self.blocks = nn.ModuleList(block(config, layer, sublayers) for layer in range(config.num_layers))
        self.norm = make_norm(config, config.width) if config.has_final_norm else nn.Identity()

    def forward(self, x: Tensor, kv: KVView) -> Tensor:
        rotation = self.rotation(kv.positions, x.dtype)
        for block in self.blocks:
            x = block(x, kv, rotation)  # (B, T, D)
        return self.norm(x)

    def choose_sublayers(self, config: ModelConfig) -> tuple[Sublayer, ...]:
        return (ATTENTION,) if config.feedforward == "none" else (ATTENTION, FEEDFORWARD)
