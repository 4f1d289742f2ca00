"""Which named value goes into which module: the wiring of the decoder's `forward`, by name."""

from __future__ import annotations

import re

from torch import nn

from foretell.config import ModelConfig
from foretell.model.transformer import AttentionBlock, AttentionBlockPostNorm, Block, BlockPostNorm

BLOCK = re.compile(r"(trunk\.blocks\.(\d+))\.(.+)")
STREAM = "<stream>"  # what comes into the block

FROM_ATTENTION = {
    "attention.output": "attention.core",
    "attention.query_norm": "attention.query",
    "attention.key_norm": "attention.key",
    "feedforward.down": "feedforward.activation",
    "attention_residual.dropout": "attention",
    "feedforward_residual.dropout": "feedforward",
}
PRE = {
    **FROM_ATTENTION,
    "attention_norm": STREAM,
    **dict.fromkeys(("attention.query", "attention.key", "attention.value"), "attention_norm"),
    "attention_residual": STREAM,
    "feedforward_norm": "attention_residual",
    **dict.fromkeys(("feedforward.up", "feedforward.gate"), "feedforward_norm"),
    "feedforward_residual": "attention_residual",
}
POST = {
    **FROM_ATTENTION,
    **dict.fromkeys(("attention.query", "attention.key", "attention.value"), STREAM),
    "attention_residual": STREAM,
    "attention_norm": "attention_residual",
    **dict.fromkeys(("feedforward.up", "feedforward.gate"), "attention_norm"),
    "feedforward_residual": "attention_norm",
    "feedforward_norm": "feedforward_residual",
}
WIRES = {"pre": PRE, "post": POST}  # by norm placement: module -> what it reads; a residual, what it adds to
ACTIVATED = {"mlp": "up", "gated": "gate"}  # by feed-forward layer: what the activation reads
LAST_OF_BLOCK: dict[type[nn.Module], str] = {
    Block: "feedforward_residual",
    BlockPostNorm: "feedforward_norm",
    AttentionBlock: "attention_residual",
    AttentionBlockPostNorm: "attention_norm",
}


def input_of(config: ModelConfig, path: str) -> str:
    """The name of the value that the module at `path` reads."""
    if path == "head":
        return "trunk"
    if path == "trunk.norm":
        return stream_into(config.num_layers)
    found = BLOCK.fullmatch(path)
    assert found is not None, path
    block, layer, part = found.groups()
    if part == "feedforward.activation":
        return f"{block}.feedforward.{ACTIVATED[config.feedforward]}"
    wire = WIRES[config.norm_placement][part]
    return stream_into(int(layer)) if wire == STREAM else f"{block}.{wire}"


def stream_into(layer: int) -> str:
    """The name of the stream that block `layer` reads; after the last block, what the last norm reads."""
    return "embed" if layer == 0 else f"trunk.blocks.{layer - 1}"


def neighbourhood(name: str, config: ModelConfig) -> list[str]:
    """Globs of what has to be recorded so that any value of this part of the pass can be recomputed."""
    if name.startswith("trunk.rotation."):
        return [name]
    found = BLOCK.fullmatch(f"{name}.output")  # of a block itself, and of anything in it
    if found is None:
        return ["embed", "embed.**", "trunk", "trunk.norm", "trunk.norm.**", stream_into(config.num_layers), "head"]
    rotation = ["trunk.rotation.*"] if config.position == "rotary" else []
    return [found[1], f"{found[1]}.**", stream_into(int(found[2])), *rotation]
