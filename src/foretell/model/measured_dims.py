"""Dims of modules without a description, measured by running a decoder on the meta device."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretell.errors import UsageError
from foretell.model.decoder import Decoder
from foretell.model.surgery import copy_with_own_hooks

logger = logging.getLogger(__name__)

UNKNOWN_SIZE = "N"  # the letter of a dimension that is not declared and could not be measured
ROWS, LENGTHS = (2, 3), (3, 4)  # the sizes of two passes; a dimension that differs between them gets a letter
VARYING = {ROWS: "B", LENGTHS: "T", (ROWS[0] * LENGTHS[0], ROWS[1] * LENGTHS[1]): "B*T"}


def measured_dims(decoder: Decoder) -> dict[str, tuple[str, ...]]:
    """The dims of every module's output, from two passes on the meta device; empty if the model cannot run there.

    Sizes that do not depend on the text are numbers.
    """
    try:
        first, second = (output_shapes(decoder, *sizes) for sizes in zip(ROWS, LENGTHS, strict=True))
    except UsageError:
        raise
    except Exception as error:  # a module whose code depends on its data must be traceable nevertheless
        logger.info(
            f"cannot measure undeclared modules without data ({type(error).__name__}: {error}); the memory for their "
            "values is counted only when they are recorded"
        )
        return {}
    dims = {
        path: tuple(
            str(size) if size == other else VARYING.get((size, other), UNKNOWN_SIZE)
            for size, other in zip(shape, second.get(path, ()), strict=False)
        )
        for path, shape in first.items()
    }
    return {path: () if UNKNOWN_SIZE in letters else letters for path, letters in dims.items()}


def output_shapes(decoder: Decoder, rows: int, length: int) -> dict[str, tuple[int, ...]]:
    """The shape of each module's output tensor in a pass over ids (rows, length), without weights or arithmetic."""
    if length > decoder.config.context_length:
        raise UsageError(f"a context of {decoder.config.context_length} is too short to examine undeclared modules")
    shapes: dict[str, tuple[int, ...]] = {}

    def remember(path: str):
        def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor):
                shapes[path] = tuple(output.shape)

        return hook

    state = {path: tensor.to("meta") for path, tensor in (*decoder.named_parameters(), *decoder.named_buffers())}
    copied = copy_with_own_hooks(decoder)  # not the hooks of a trace
    for path, module in copied.named_modules():
        module.register_forward_hook(remember(path))
    with torch.no_grad():
        functional_call(copied, state, (torch.zeros(rows, length, dtype=torch.long, device="meta"),))
    return shapes
