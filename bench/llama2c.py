"""Read a checkpoint of llama2.c (its first binary format) as a decoder."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.model.decoder import Decoder
from foretell.model.init import decoder_with_weights

HEADER = struct.Struct("<7i")  # width, feed-forward width, layers, heads, key heads, vocabulary, context


def read_llama2c(path: Path) -> Decoder:
    """The decoder of a file whose head is tied to the embedding."""
    data = path.read_bytes()
    D, F, L, H, G, V, context_length = HEADER.unpack_from(data)
    config = ModelConfig(
        num_layers=L,
        num_heads=H,
        num_kv_heads=G,
        width=D,
        feedforward_width=F,
        context_length=context_length,
        vocab_size=V,
        position="rotary",
        norm="rmsnorm",
        norm_epsilon=1e-5,
        feedforward="gated",
        activation="silu",
        bias=False,
        tie_embeddings=True,
    )
    values = torch.frombuffer(bytearray(data), dtype=torch.float32, offset=HEADER.size)
    key_width = D // H * G
    in_blocks = {  # in the order of the file, each for all layers
        "attention_norm": (D,),
        "attention.query": (D, D),
        "attention.key": (key_width, D),
        "attention.value": (key_width, D),
        "attention.output": (D, D),
        "feedforward_norm": (D,),
        "feedforward.gate": (F, D),
        "feedforward.down": (D, F),
        "feedforward.up": (F, D),
    }
    shapes = {"embed.token.weight": (V, D)}
    shapes |= {f"trunk.blocks.{i}.{name}.weight": shape for name, shape in in_blocks.items() for i in range(L)}
    shapes |= {"trunk.norm.weight": (D,)}
    weights, start = dict[str, Tensor](), 0
    for key, shape in shapes.items():
        count = math.prod(shape)
        weight = values[start : start + count].view(shape)
        weights[key] = halves(weight, D // H) if key.endswith(("query.weight", "key.weight")) else weight.clone()
        start += count
    return decoder_with_weights(config, weights).eval()


def halves(weight: Tensor, E: int) -> Tensor:
    """Rows whose rotated pairs are neighbours, in the order of a head's two halves."""
    return weight.unflatten(0, (-1, E // 2, 2)).transpose(1, 2).flatten(0, 2).contiguous()
