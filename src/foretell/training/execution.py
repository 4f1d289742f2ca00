"""Execution of modules during training: compiled blocks and loss, and activation checkpointing.

The compiler fuses the small operations between two matmuls, which are memory-bound on a GPU. All blocks share one
compiled form. Checkpointed modules keep only their inputs and recompute their values in the backward pass: the
instance's `forward` calls `torch.utils.checkpoint`. Neither wraps a module: path, class, weights and hooks stay, and
hooks see only the first pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from foretell.config.training import TrainingConfig
from foretell.model.decoder import Decoder
from foretell.model.dispatch import Use, choose_kernels
from foretell.model.dropout import Dropout, DropoutRNG
from foretell.model.transformer import Block
from foretell.paths import matches
from foretell.system.device import autocast
from foretell.training.objective import Objective, TokenLosses
from foretell.training.optimizer import check_globs
from foretell.training.step import TrainingBatch

UNITS = (Block, TokenLosses)  # and subclasses; the operations between them are small
REASON = 200  # maximum length of the compiler's message in the log
COMPILED_STEPS = 1_000  # compiling takes 13 to 30 s on an H200, and saves 10 to 30 ms per step (docs/performance.md)

logger = logging.getLogger(__name__)


def wants_compiling(training: TrainingConfig, device: str) -> bool:
    """True if blocks and loss should be compiled: as configured, by default for long runs on a GPU."""
    is_long = device not in ("cpu", "mps") and training.steps >= COMPILED_STEPS
    return is_long if training.compile is None else training.compile


def compile_units(objective: nn.Module, batch: TrainingBatch, dtype: torch.dtype) -> bool:
    """Compile the blocks and the loss for batches like this one; if it fails, log the reason and return False."""
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
    # A compiler error; any other error occurs again in the first step, which then runs uncompiled
    except Exception as error:
        for unit in units:
            unit._compiled_call_impl = None  # torch has no public way back
        for dropout in dropouts:
            dropout.keys = None
        logger.warning(f"not compiled: {' '.join(str(error).split())[:REASON]}")
        return False
    logger.info(f"compiled    {len(units)} blocks and losses in {time.perf_counter() - started:.0f} s")
    return True


def try_out(objective: nn.Module, batch: TrainingBatch, device: torch.device, dtype: torch.dtype) -> None:
    """Run forward and backward on a batch to compile both, and discard the gradient."""
    try:
        with autocast(device, dtype):
            loss = objective(batch)
        loss.sum.backward()
    finally:
        objective.zero_grad(set_to_none=True)


class Recomputing:
    """Checkpoints the activations of the modules whose paths match a glob.

    rng: the counters of the model's dropout, with which both computations get the same masks. A glob without a match is
    a `ConfigError`.
    """

    def __init__(self, model: nn.Module, globs: tuple[str, ...], rng: DropoutRNG):
        modules = {path: module for path, module in model.named_modules() if path}
        check_globs("checkpoint_activations", globs, modules, "module")
        self.modules = {path: module for path, module in modules.items() if any(matches(glob, path) for glob in globs)}
        self._forwards = {path: partial(checkpointed, module, rng) for path, module in self.modules.items()}
        self.install()

    def install(self) -> None:
        """Give the modules a `forward` that is recomputed in the backward pass."""
        for path, module in self.modules.items():
            module.forward = self._forwards[path]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the plain forward inside the block, so that copies made there do not call the original modules."""
        for module in self.modules.values():
            del module.forward
        try:
            yield
        finally:
            self.install()


def checkpointed(module: nn.Module, rng: DropoutRNG, *args: Any, **keywords: Any) -> Any:
    """The forward of a module's class, which keeps only its inputs for the gradient."""
    forward = type(module).forward
    if not torch.is_grad_enabled():
        return forward(module, *args, **keywords)
    counters = replace(rng)

    def contexts():
        return nullcontext(), with_counters(rng, counters)

    return checkpoint(
        forward, module, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **keywords
    )


@contextmanager
def with_counters(rng: DropoutRNG, counters: DropoutRNG) -> Iterator[None]:
    """Set the dropout counters inside the block; a task may have changed them since the first computation."""
    current = replace(rng)
    vars(rng).update(vars(counters))
    try:
        yield
    finally:
        vars(rng).update(vars(current))


def make_objective(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> Objective:
    """The objective for training on a device with matrix products in `dtype`, with suitable kernels."""
    choose_kernels(decoder.to(device), Use(device, dtype, decoder.config.context_length, is_training=True))
    return Objective(decoder).train()
