"""int4 rounding that compensates its errors for the inputs of a layer (GPTQ, Frantar et al. 2022).

The columns of a weight are rounded in sequence. The error of each is distributed over the columns not yet rounded, so
that the layer's output on the calibration inputs X (N, I) changes least, using the inverse of X'X. A model is rounded
block by block; the inputs of each layer come from the rounded layers before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config.quantization import QuantizationConfig
from foretell.model.decoder import HEAD, Decoder
from foretell.model.quantization import MAX_INT4, SCALE_DTYPE, fit_int4, pack_int4
from foretell.model.quantize_decoder import check_groups, quantize_decoder
from foretell.model.quantized_linear import Int4Linear, stored_matrix
from foretell.model.surgery import replace

DAMPING = 0.01  # added to the diagonal of X'X, as a share of its mean; the paper's value
COLUMNS_AT_ONCE = 128  # rounded before their errors are applied to the later columns; the paper's value
BLOCKS = "trunk.blocks"
TOKENS_AT_ONCE = 4096
Call = tuple[Any, ...]  # the arguments of a block: stream, KV view, rotation


class InputProducts:
    """X'X of the inputs of a layer, accumulated over batches."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, x: Tensor) -> None:
        """Add inputs (..., I)."""
        x = x.detach().flatten(0, -2).float()
        self.total = x.T @ x if self.total is None else self.total.addmm_(x.T, x)

    def inverse_factor(self) -> Tensor:
        """The upper triangular U (I, I) with U'U = (X'X + damping)^-1; row i distributes the error of column i."""
        assert self.total is not None, "no inputs were seen"
        products = self.total.double()
        damping = DAMPING * products.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
        products.diagonal().add_(damping)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(products))
        return torch.linalg.cholesky(inverse, upper=True).float()


def round_with_feedback(weight: Tensor, factor: Tensor, group: int) -> dict[str, Tensor]:
    """The integers, scales and minima of a weight (O, I), given the `inverse_factor` (I, I) of its inputs."""
    rest = weight.detach().float().clone()
    outputs, inputs = rest.shape
    integers, scales = torch.empty_like(rest), rest.new_empty(outputs, inputs // group)
    minima = torch.empty_like(scales)
    step = max(group, COLUMNS_AT_ONCE // group * group)
    for start in range(0, inputs, step):
        end = min(start + step, inputs)
        errors = rest.new_empty(outputs, end - start)
        for column in range(start, end):
            index = column // group
            if column % group == 0:
                scales[:, index], minima[:, index] = fit_int4(rest[:, column : column + group])
            scale, minimum = scales[:, index], minima[:, index]
            given = rest[:, column]
            integers[:, column] = ((given - minimum) / torch.where(scale == 0, 1.0, scale)).round_().clamp_(0, MAX_INT4)
            rounded = integers[:, column] * scale + minimum
            error = (given - rounded) / factor[column, column]
            rest[:, column:end] -= torch.outer(error, factor[column, column:end])
            errors[:, column - start] = error
        rest[:, end:] -= errors @ factor[start:end, end:]
    return {"integers": pack_int4(integers), "scales": scales.to(SCALE_DTYPE), "minima": minima.to(SCALE_DTYPE)}


@torch.no_grad()
def quantize_for_inputs(
    decoder: Decoder, config: QuantizationConfig, rows: Tensor, progress: Callable[[int, int], None]
) -> list[str]:
    """Like `quantize_decoder` to int4, but with each linear layer of a block rounded for its inputs on ids (N, T).

    A head in int4 is rounded for its inputs in the unrounded model. progress: called with (done, all) blocks.
    """
    paths = check_groups(decoder, config)
    head = round_head(decoder, config, rows) if HEAD in paths and config.head == "int4" else {}
    quantize_decoder(decoder, config.model_copy(update={"keep": (*config.keep, f"{BLOCKS}.**")}))
    for name, buffer in head.items():
        stored_matrix(decoder.head).get_buffer(name).copy_(buffer)
    calls = block_calls(decoder, rows)
    for index, block in enumerate(decoder.trunk.blocks):
        layers = {path: decoder.get_submodule(path) for path in paths if path.startswith(f"{BLOCKS}.{index}.")}
        for stage in find_stages(block, layers, calls[0]):
            factor = products_of(layers[stage[0]], block, calls).inverse_factor()
            replace(decoder, stage, lambda layer, factor=factor: round_layer(layer, factor, config.group))
        calls = [(block(*call), *call[1:]) for call in calls]
        progress(index + 1, len(decoder.trunk.blocks))
    return paths


def round_head(decoder: Decoder, config: QuantizationConfig, rows: Tensor) -> dict[str, Tensor]:
    """The buffers of a head in int4, rounded for its inputs on ids (N, T)."""
    products, weight = InputProducts(), decoder.head.weight
    assert isinstance(weight, Tensor)
    for part in batches(decoder, rows):
        products.add(decoder.hidden(part))
    return round_with_feedback(weight, products.inverse_factor(), config.group)


def batches(decoder: Decoder, rows: Tensor) -> tuple[Tensor, ...]:
    """A few rows of ids (N, T) at a time."""
    return rows.to(decoder.device).split(max(1, TOKENS_AT_ONCE // rows.shape[1]))


def block_calls(decoder: Decoder, rows: Tensor) -> list[Call]:
    """The arguments of the first block, for a few rows of ids (N, T) at a time."""
    calls: list[Call] = []
    hook = decoder.trunk.blocks[0].register_forward_pre_hook(lambda _, given: calls.append(given))
    with hook:
        for part in batches(decoder, rows):
            decoder.hidden(part)
    return calls


def find_stages(block: nn.Module, layers: Mapping[str, nn.Module], call: Call) -> list[list[str]]:
    """The paths of the layers in the order of their calls, grouped by the tensor that they read."""
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
    assert isinstance(layer, nn.Linear)
    return Int4Linear(round_with_feedback(layer.weight, factor, group), layer.bias)
