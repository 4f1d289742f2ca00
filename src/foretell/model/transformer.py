"""Blocks and the trunk they make: each block reads the stream of vectors and adds to it."""

from __future__ import annotations

from torch import Tensor, nn

from foretell.config import ModelConfig
from foretell.model.attention import Attention
from foretell.model.cache import KVView
from foretell.model.dropout import make_dropout
from foretell.model.feedforward import FEEDFORWARDS
from foretell.model.norm import make_norm
from foretell.model.position import ROTATIONS, Rotation


class AddUpdate(nn.Module):
    """The stream plus a sublayer's update, which dropout thins out during training."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = make_dropout(dropout)

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        return stream + self.dropout(update)


class ReplaceByUpdate(nn.Module):
    """No residual connection: the update alone goes on."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = make_dropout(dropout)

    def forward(self, stream: Tensor, update: Tensor) -> Tensor:
        return self.dropout(update)


class AttentionBlock(nn.Module):
    """Attention alone, for models without a feed-forward layer. Norm first (GPT-2)."""

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

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        return self.attention_norm(self.attention_residual(x, self.attention(x, kv, rotation)))


class Block(AttentionBlock):
    """Attention, then feed-forward, each on a normalised copy of the stream (Radford et al. 2019, section 2.3)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.feedforward_norm = make_norm(config, config.width)
        self.feedforward = FEEDFORWARDS[config.feedforward](config)
        self.feedforward_residual = AddUpdate(config.dropout.residual)

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        x = self.attention_residual(x, self.attention(self.attention_norm(x), kv, rotation))
        return self.feedforward_residual(x, self.feedforward(self.feedforward_norm(x)))


class BlockPostNorm(Block):
    """Attention, then feed-forward, the stream normalised after each (GPT-1; Vaswani et al. 2017, section 3.1)."""

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        x = self.attention_norm(self.attention_residual(x, self.attention(x, kv, rotation)))
        return self.feedforward_norm(self.feedforward_residual(x, self.feedforward(x)))


BLOCKS: dict[tuple[str, bool], type[AttentionBlock]] = {  # by norm placement and: is there a feed-forward layer?
    ("pre", True): Block,
    ("post", True): BlockPostNorm,
    ("pre", False): AttentionBlock,
    ("post", False): AttentionBlockPostNorm,
}


class Transformer(nn.Module):
    """The trunk: L blocks and, where the norm comes first, a last norm."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        block = BLOCKS[config.norm_placement, config.feedforward != "none"]
        self.rotation = ROTATIONS[config.position == "rotary"][0](config)
        self.blocks = nn.ModuleList(block(config, layer) for layer in range(config.num_layers))
        self.norm = make_norm(config, config.width) if config.norm_placement == "pre" else nn.Identity()

    def forward(self, x: Tensor, kv: KVView) -> Tensor:
        rotation = self.rotation(kv.positions, x.dtype)
        for block in self.blocks:
            x = block(x, kv, rotation)  # (B, T, D)
        return self.norm(x)
