"""Blocks and the trunk: each block reads the residual stream and adds to it."""

from __future__ import annotations

from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.attention import Attention
from foretell.model.cache import KVView
from foretell.model.description import Declared, Description
from foretell.model.dropout import make_dropout
from foretell.model.feedforward import FEEDFORWARDS
from foretell.model.norm import make_norm
from foretell.model.position import NoRotation, RotaryPosition, Rotation


class AddUpdate(nn.Module):
    """The residual stream plus a sublayer's update; dropout applies to the update."""

    description = Description(
        formula="residual",
        inputs=("stream", "update"),
        values={"dropout": Declared("B T D", ("update",))},
        is_float32=True,
    )

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = make_dropout(dropout)

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        return stream + self.dropout(update)


class ReplaceByUpdate(nn.Module):
    """No residual connection: the update replaces the stream."""

    description = Description(
        formula="replacement", inputs=("stream", "update"), values={"dropout": Declared("B T D", ("update",))}
    )

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = make_dropout(dropout)

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        return self.dropout(update)


class AttentionBlock(nn.Module):
    """Attention alone, for models without a feed-forward layer. Norm first (GPT-2)."""

    description = Description(
        values={
            "attention_norm": Declared("B T D"),
            "attention": Declared("B T D", ("attention_norm",)),
            "attention_residual": Declared("B T D", ("x", "attention")),
        },
        returns="attention_residual",
    )

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = make_norm(config, config.width)
        self.attention = Attention(config, layer)
        residual = AddUpdate if config.attention_residual else ReplaceByUpdate
        self.attention_residual = residual(config.dropout.residual)

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        return self.attention_residual(x, self.attention(self.attention_norm(x), kv, rotation))


class AttentionBlockPostNorm(AttentionBlock):
    """Attention alone, norm after the residual."""

    description = Description(
        values={
            "attention": Declared("B T D"),
            "attention_residual": Declared("B T D", ("x", "attention")),
            "attention_norm": Declared("B T D", ("attention_residual",)),
        },
        returns="attention_norm",
    )

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        return self.attention_norm(self.attention_residual(x, self.attention(x, kv, rotation)))


class Block(AttentionBlock):
    """Attention, then feed-forward, each on a normalised copy of the stream (Radford et al. 2019, section 2.3)."""

    description = Description(
        values={
            **AttentionBlock.description.values,
            "feedforward_norm": Declared("B T D", ("attention_residual",)),
            "feedforward": Declared("B T D", ("feedforward_norm",)),
            "feedforward_residual": Declared("B T D", ("attention_residual", "feedforward")),
        },
        returns="feedforward_residual",
    )

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.make_sublayers(config, layer)

    def make_sublayers(self, config: ModelConfig, layer: int) -> None:
        """Make the sublayers after self-attention."""
        self.feedforward_norm = make_norm(config, config.width)
        self.feedforward = FEEDFORWARDS[config.feedforward](config)
        self.feedforward_residual = AddUpdate(config.dropout.residual)

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        x = self.attention_residual(x, self.attention(self.attention_norm(x), kv, rotation))
        return self.feedforward_residual(x, self.feedforward(self.feedforward_norm(x)))


class BlockPostNorm(Block):
    """Attention, then feed-forward, the stream normalised after each (GPT-1; Vaswani et al. 2017, section 3.1)."""

    description = Description(
        values={
            **AttentionBlockPostNorm.description.values,
            "feedforward": Declared("B T D", ("attention_norm",)),
            "feedforward_residual": Declared("B T D", ("attention_norm", "feedforward")),
            "feedforward_norm": Declared("B T D", ("feedforward_residual",)),
        },
        returns="feedforward_norm",
    )

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        x = self.attention_norm(self.attention_residual(x, self.attention(x, kv, rotation)))
        return self.feedforward_norm(self.feedforward_residual(x, self.feedforward(x)))


BLOCKS: dict[str, type[AttentionBlock]] = {"pre": Block, "post": BlockPostNorm}
BLOCKS_WITHOUT_FEEDFORWARD: dict[str, type[AttentionBlock]] = {"pre": AttentionBlock, "post": AttentionBlockPostNorm}


class Transformer(nn.Module):
    """The trunk: L blocks and, where the norm comes first, a final norm."""

    description = Description(values={"norm": Declared("B T D", ("blocks",))}, chain="blocks", returns="norm")

    def __init__(self, config: ModelConfig):
        super().__init__()
        block = self.block_class(config)
        self.rotation = RotaryPosition(config) if config.position == "rotary" else NoRotation()
        self.blocks = nn.ModuleList(block(config, layer) for layer in range(config.num_layers))
        self.norm = make_norm(config, config.width) if config.norm_placement == "pre" else nn.Identity()

    def forward(self, x: Tensor, kv: KVView) -> Tensor:
        rotation = self.rotation(kv.positions, x.dtype)
        for block in self.blocks:
            x = block(x, kv, rotation)  # (B, T, D)
        return self.norm(x)

    def block_class(self, config: ModelConfig) -> type[AttentionBlock]:
        """The class of the blocks."""
        blocks = BLOCKS if config.feedforward != "none" else BLOCKS_WITHOUT_FEEDFORWARD
        return blocks[config.norm_placement]
