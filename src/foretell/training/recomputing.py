"""Activation checkpointing: modules keep only their inputs, and compute their values again in the backward pass.

The instance's `forward` goes through `torch.utils.checkpoint`. Nothing is wrapped: path, class, weights and hooks stay,
and hooks see one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from foretell.model.dropout import DropoutRNG
from foretell.paths import matches
from foretell.training.optimizer import check_globs


class Recomputing:
    """Checkpoints the activations of the modules whose paths match a glob.

    rng: the counters of the model's dropout, which give both computations the same masks. A glob without a match is a
    `ConfigError`.
    """

    def __init__(self, model: nn.Module, globs: tuple[str, ...], rng: DropoutRNG):
        modules = {path: module for path, module in model.named_modules() if path}
        check_globs("checkpoint_activations", globs, modules, "module")
        self.modules = {path: module for path, module in modules.items() if any(matches(glob, path) for glob in globs)}
        self._forwards = {path: partial(checkpointed, module, rng) for path, module in self.modules.items()}
        self.install()

    def install(self) -> None:
        """Give the modules a `forward` that is computed again in the backward pass."""
        for path, module in self.modules.items():
            module.forward = self._forwards[path]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the forward of their class inside the block: copies of the modules must not run the originals."""
        for module in self.modules.values():
            del module.forward
        try:
            yield
        finally:
            self.install()


def checkpointed(module: nn.Module, rng: DropoutRNG, *args: Any, **keywords: Any) -> Any:
    """The forward pass of a module's class; only its inputs are kept for the gradient."""
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
    """Set the dropout counters inside the block: a task may have changed them since the first computation."""
    current = replace(rng)
    vars(rng).update(vars(counters))
    try:
        yield
    finally:
        vars(rng).update(vars(current))
