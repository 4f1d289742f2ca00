"""The input of each module, by name: the wiring of the decoder's `forward`."""

from __future__ import annotations

import re

from torch import nn

from foretell.config import ModelConfig
from foretell.model.transformer import AttentionBlock, AttentionBlockPostNorm, Block, BlockPostNorm

BLOCK = re.compile(r"(trunk\.blocks\.(\d+))\.(.+)")
STREAM = "<stream>"  # the block's input

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
WIRES = {"pre": PRE, "post": POST}  # by norm placement: module -> its input (of a residual: the stream)
ACTIVATED = {"mlp": "up", "gated": "gate"}  # by feed-forward kind: the activation's input
LAST_OF_BLOCK: dict[type[nn.Module], str] = {
    Block: "feedforward_residual",
    BlockPostNorm: "feedforward_norm",
    AttentionBlock: "attention_residual",
    AttentionBlockPostNorm: "attention_norm",
}


def input_of(config: ModelConfig, path: str) -> str:
    """The name of the value that is the input of the module at `path`."""
    if path == "head":
        return "trunk"
    if path == "trunk.norm":
        return stream_into(config.num_layers)
    match = BLOCK.fullmatch(path)
    assert match is not None, path
    block, layer, part = match.groups()
    if part == "feedforward.activation":
        return f"{block}.feedforward.{ACTIVATED[config.feedforward]}"
    wire = WIRES[config.norm_placement][part]
    return stream_into(int(layer)) if wire == STREAM else f"{block}.{wire}"


def stream_into(layer: int) -> str:
    """The name of the input of block `layer`; for the number of layers, the input of the last norm."""
    return "embed" if layer == 0 else f"trunk.blocks.{layer - 1}"


def neighbourhood(name: str, config: ModelConfig) -> list[str]:
    """Globs of the values to record so that the named value and its operands can be recomputed."""
    if name.startswith("trunk.rotation."):
        return [name]
    match = BLOCK.fullmatch(f"{name}.output")  # matches a block itself and anything in it
    if match is None:
        return ["embed", "embed.**", "trunk", "trunk.norm", "trunk.norm.**", stream_into(config.num_layers), "head"]
    rotation = ["trunk.rotation.*"] if config.position == "rotary" else []
    return [match[1], f"{match[1]}.**", stream_into(int(match[2])), *rotation]
