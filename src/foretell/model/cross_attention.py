"""Encoder-decoder attention: blocks whose queries also read the output of an encoder, the memory.

Vaswani et al. 2017, sections 3.1 and 3.2.3. Keys and values of the memory are computed once (`cache.MemoryKVView`).
"""

from __future__ import annotations

from torch import Tensor

from foretell.config import ModelConfig
from foretell.model.attention import Attention
from foretell.model.cache import ConditionedKVView, KVView
from foretell.model.description import MEMORY, Declared
from foretell.model.norm import make_norm
from foretell.model.position import Rotation, keep_heads
from foretell.model.transformer import AddUpdate, AttentionBlock, Block, BlockPostNorm, Transformer


class CrossAttention(Attention):
    """Queries from the stream (B, T, D), keys and values from the memory (B, S, D). Positions do not rotate them."""

    description = Attention.description.changed(
        inputs=("x", MEMORY),
        memory_axes="S",
        values={
            **Attention.description.values,
            "key": Declared("B S G*E", (MEMORY,)),
            "key_norm": Declared("B G S E", ("key",)),
            "value": Declared("B S G*E", (MEMORY,)),
            "core.query": Declared("B H T E", ("query_norm",), "identity"),
            "core.key": Declared("B G S E", ("key_norm",), "identity"),
        },
    )

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.rotate = keep_heads


class CrossAttentionBlock(Block):
    """Self-attention, attention to the memory, feed-forward, each on a normalised copy of the stream."""

    description = Block.description.changed(
        inputs=("x", MEMORY),
        values={
            **AttentionBlock.description.values,
            "cross_attention_norm": Declared("B T D", ("attention_residual",)),
            "cross_attention": Declared("B T D", ("cross_attention_norm", MEMORY)),
            "cross_attention_residual": Declared("B T D", ("attention_residual", "cross_attention")),
            "feedforward_norm": Declared("B T D", ("cross_attention_residual",)),
            "feedforward": Declared("B T D", ("feedforward_norm",)),
            "feedforward_residual": Declared("B T D", ("cross_attention_residual", "feedforward")),
        },
    )

    def make_sublayers(self, config: ModelConfig, layer: int) -> None:
        """Make the sublayers after self-attention."""
        self.cross_attention_norm = make_norm(config, config.width)
        self.cross_attention = CrossAttention(config, layer)
        self.cross_attention_residual = AddUpdate(config.dropout.residual)
        super().make_sublayers(config, layer)

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        x = self.attention_residual(x, self.attention(self.attention_norm(x), kv, rotation))
        update = self.cross_attention(self.cross_attention_norm(x), memory_of(kv), None)
        x = self.cross_attention_residual(x, update)
        return self.feedforward_residual(x, self.feedforward(self.feedforward_norm(x)))


class CrossAttentionBlockPostNorm(BlockPostNorm):
    """Self-attention, attention to the memory, feed-forward, the stream normalised after each (ibid.)."""

    description = BlockPostNorm.description.changed(
        inputs=("x", MEMORY),
        values={
            **BlockPostNorm.description.values,
            "cross_attention": Declared("B T D", ("attention_norm", MEMORY)),
            "cross_attention_residual": Declared("B T D", ("attention_norm", "cross_attention")),
            "cross_attention_norm": Declared("B T D", ("cross_attention_residual",)),
            "feedforward": Declared("B T D", ("cross_attention_norm",)),
            "feedforward_residual": Declared("B T D", ("cross_attention_norm", "feedforward")),
        },
    )

    def make_sublayers(self, config: ModelConfig, layer: int) -> None:
        """Make the sublayers after self-attention."""
        self.cross_attention_norm = make_norm(config, config.width)
        self.cross_attention = CrossAttention(config, layer)
        self.cross_attention_residual = AddUpdate(config.dropout.residual)
        super().make_sublayers(config, layer)

    def forward(self, x: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        x = self.attention_norm(self.attention_residual(x, self.attention(x, kv, rotation)))
        update = self.cross_attention(x, memory_of(kv), None)
        x = self.cross_attention_norm(self.cross_attention_residual(x, update))
        return self.feedforward_norm(self.feedforward_residual(x, self.feedforward(x)))


def memory_of(kv: KVView) -> KVView:
    """The view of the memory in a pass that has one."""
    assert isinstance(kv, ConditionedKVView), "a pass through these blocks needs a memory"
    return kv.memory


CROSS_BLOCKS: dict[str, type[AttentionBlock]] = {"pre": CrossAttentionBlock, "post": CrossAttentionBlockPostNorm}


class ConditionedTransformer(Transformer):
    """A trunk whose blocks also read a memory."""

    description = Transformer.description.changed(inputs=("x", MEMORY))

    def block_class(self, config: ModelConfig) -> type[AttentionBlock]:
        """The class of the blocks."""
        return CROSS_BLOCKS[config.norm_placement]
