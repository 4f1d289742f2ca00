"""Calibrated int4: block after block, each layer rounded for the inputs that the rounded layers before it give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from foretell.model.decoder import Decoder
from foretell.model.quantized_linear import Int4Linear, QuantizationConfig, check_groups, quantize_decoder
from foretell.model.surgery import replace
from foretell.quantization.gptq import InputProducts, round_with_feedback

BLOCKS = "trunk.blocks"
TOKENS_AT_ONCE = 4096
Call = tuple[Any, ...]  # the arguments of a block: stream, KV view, rotation


@torch.no_grad()
def quantize_for_inputs(
    decoder: Decoder, config: QuantizationConfig, rows: Tensor, progress: Callable[[int, int], None]
) -> list[str]:
    """Like `quantize_decoder`, to int4, with each linear layer of a block rounded for its inputs on ids (N, T).

    Token embedding, head and what is outside the blocks are rounded to the nearest. progress: (done, total) in blocks.
    """
    paths = check_groups(decoder, config)
    quantize_decoder(decoder, config.model_copy(update={"keep": (*config.keep, f"{BLOCKS}.**")}))
    calls = block_calls(decoder, rows)
    for index, block in enumerate(decoder.trunk.blocks):
        layers = {path: decoder.get_submodule(path) for path in paths if path.startswith(f"{BLOCKS}.{index}.")}
        for stage in find_stages(block, layers, calls[0]):
            factor = products_of(layers[stage[0]], block, calls).inverse_factor()
            replace(decoder, stage, lambda layer, factor=factor: round_layer(layer, factor, config.group))
        calls = [(block(*call), *call[1:]) for call in calls]
        progress(index + 1, len(decoder.trunk.blocks))
    return paths


def block_calls(decoder: Decoder, rows: Tensor) -> list[Call]:
    """The arguments of the first block, for a few rows of ids (N, T) at a time."""
    calls: list[Call] = []
    hook = decoder.trunk.blocks[0].register_forward_pre_hook(lambda _, given: calls.append(given))
    with hook:
        for part in rows.to(decoder.device).split(max(1, TOKENS_AT_ONCE // rows.shape[1])):
            decoder.hidden(part)
    return calls


def find_stages(block: nn.Module, layers: Mapping[str, nn.Module], call: Call) -> list[list[str]]:
    """The paths of the layers in the order of their calls; those that read the same tensor are together."""
    stages: list[tuple[Tensor, list[str]]] = []

    def enter(path: str, given: tuple[Tensor, ...]) -> None:
        if not stages or stages[-1][0] is not given[0]:
            stages.append((given[0], []))
        stages[-1][1].append(path)

    with ExitStack() as hooks:
        for path, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(lambda _, given, path=path: enter(path, given)))
        block(*call)
    return [paths for _, paths in stages]


def products_of(layer: nn.Module, block: nn.Module, calls: list[Call]) -> InputProducts:
    """X'X of a layer's inputs over all calls of its block."""
    products = InputProducts()
    with layer.register_forward_pre_hook(lambda _, given: products.add(given[0])):
        for call in calls:
            block(*call)
    return products


def round_layer(layer: nn.Module, factor: Tensor, group: int) -> Int4Linear:
    """A linear layer in int4, rounded for its inputs."""
    assert isinstance(layer, nn.Linear)
    return Int4Linear(round_with_feedback(layer.weight, factor, group), layer.bias)
