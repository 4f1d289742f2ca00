"""Attention of a decoder to an encoder's output, and the trunks that have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.model.attention import Attention
from foretell.model.cache import KVView
from foretell.model.description import MEMORY, OWN_INPUT, PASSED_BACK, Declared
from foretell.model.memory_cache import ConditionedKVView, MemoryKVView
from foretell.model.position import Rotation, keep_heads, rotate_heads
from foretell.model.transformer import ATTENTION, FEEDFORWARD, Sublayer, Transformer


class CrossAttention(Attention):
    """Queries from the stream (B, T, D), keys and values from the memory (B, S, D), an encoder's output.

    Not rotated. The memory is projected once (`MemoryKVView`). Vaswani et al. 2017, section 3.2.3.
    """

    description = Attention.description.changed(
        inputs=("x", MEMORY),
        memory_axes="S",
        values={
            **Attention.description.values,
            "key": Declared("B S G*E", (MEMORY,)),
            "key_norm": Declared("B G S E", ("key",)),
            "value": Declared("B S G*E", (MEMORY,)),
            "core.query": Declared("B H T E", ("query_norm",), "identity", backward=PASSED_BACK),
            "core.key": Declared("B G S E", ("key_norm",), "identity", backward=PASSED_BACK),
        },
    )

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.rotate = keep_heads


class RotatedCrossAttention(CrossAttention):
    """Cross-attention whose queries are rotated by target positions, and whose keys by memory positions.

    A score then depends on the difference of the positions in the two sentences (docs/translation-reference.md).
    """

    description = CrossAttention.description.changed(
        values={
            **CrossAttention.description.values,
            "core.query": Declared("B H T E", ("query_norm",), "rotated heads", backward="rotated back"),
            "core.key": Declared("B G S E", ("key_norm",), "rotated heads", backward="rotated back"),
        }
    )

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.rotate = rotate_heads

    def rotate_keys(self, key: Tensor, kv: KVView, rotation: Rotation | None) -> Tensor:
        assert isinstance(kv, MemoryKVView)
        assert kv.rotation is not None, "the memory was encoded without its rotation"
        cosine, sine = (part[:, :, : key.shape[2]] for part in kv.rotation)  # later calls have no new keys
        return rotate_heads(key, (cosine, sine))


def memory_of(kv: KVView) -> KVView:
    """The view of the memory in a pass that has one."""
    assert isinstance(kv, ConditionedKVView), "a pass through these blocks needs a memory"
    return kv.memory


def memory_arguments(x: Tensor, kv: KVView, rotation: Rotation | None) -> tuple[Any, ...]:
    return x, memory_of(kv), None


def rotated_memory_arguments(x: Tensor, kv: KVView, rotation: Rotation | None) -> tuple[Any, ...]:
    return x, memory_of(kv), rotation


CROSS_ATTENTION = Sublayer("cross_attention", CrossAttention, memory_arguments, reads=(MEMORY,))
ROTATED_CROSS_ATTENTION = replace(CROSS_ATTENTION, make=RotatedCrossAttention, arguments=rotated_memory_arguments)


class ConditionedTransformer(Transformer):
    """A trunk whose blocks also read a memory, the output of an encoder (Vaswani et al. 2017, section 3.1)."""

    description = Transformer.description.changed(inputs=(OWN_INPUT, MEMORY))
    cross_attention = CROSS_ATTENTION

    def choose_sublayers(self, config: ModelConfig) -> tuple[Sublayer, ...]:
        """Attention to the memory comes after self-attention."""
        return ATTENTION, self.cross_attention, FEEDFORWARD


class RotatedConditionedTransformer(ConditionedTransformer):
    """`ConditionedTransformer` with rotary positions in the attention to the memory."""

    cross_attention = ROTATED_CROSS_ATTENTION
