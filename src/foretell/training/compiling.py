"""Compiles the blocks and the loss with torch.compile during training.

The compiler fuses the small operations between two matmuls, which on a GPU wait for memory and not for arithmetic.
`module.compile()` wraps nothing, so paths stay. All blocks share one compiled form.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from foretell.device import autocast
from foretell.model.dropout import Dropout
from foretell.model.transformer import Block
from foretell.training.objective import Objective, TokenLosses
from foretell.training.step import TrainingBatch

UNITS = (Block, TokenLosses)  # with their subclasses; the operations between them are small
REASON = 200  # characters of the compiler's message

logger = logging.getLogger(__name__)


def compile_units(objective: nn.Module, batch: TrainingBatch, dtype: torch.dtype) -> bool:
    """Compile the blocks and the loss for batches like this one; False, with the reason on the log, if it fails."""
    if not (isinstance(objective, Objective) and objective.has_one_shape):
        logger.info("not compiled: the batches of this task have many shapes")
        return False
    units = [module for module in objective.modules() if isinstance(module, UNITS)]
    dropouts = [module for module in objective.modules() if isinstance(module, Dropout)]
    device, started = next(objective.parameters()).device, time.perf_counter()
    for unit in units:
        unit.compile(dynamic=False)
    for dropout in dropouts:
        dropout.keys = dropout.make_keys(len(batch), device)
    try:
        try_out(objective, batch.to(device), device, dtype)
    except (
        Exception
    ) as error:  # of the compiler; any other error comes again in the first step, which then runs uncompiled
        for unit in units:
            unit._compiled_call_impl = None  # torch has no public way back
        for dropout in dropouts:
            dropout.keys = None
        logger.warning(f"not compiled: {' '.join(str(error).split())[:REASON]}")
        return False
    logger.info(f"compiled    {len(units)} blocks and losses in {time.perf_counter() - started:.0f} s")
    return True


def try_out(objective: nn.Module, batch: TrainingBatch, device: torch.device, dtype: torch.dtype) -> None:
    """Run forward and backward on a batch, which compiles both, and discard the gradient."""
    try:
        with autocast(device, dtype):
            loss = objective(batch)
        loss.sum.backward()
    finally:
        objective.zero_grad(set_to_none=True)


def eagerly() -> AbstractContextManager[object]:
    """Run compiled modules uncompiled inside the block, because every new shape would have to be compiled."""
    is_loaded = "torch._dynamo" in sys.modules  # else nothing is compiled; loading it takes seconds
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()
