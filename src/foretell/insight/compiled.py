"""Eager execution of compiled modules while they are traced: a compiled forward does not call hooks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from foretell.model.cache import CachedKVView

logger = logging.getLogger(__name__)

Call = tuple[tuple[Any, ...], Tensor]  # inputs and output of one call


@contextmanager
def run_eagerly(model: nn.Module, notes: list[str]) -> Generator[None]:
    """Run compiled modules eagerly inside the block, then measure how far their compiled output differs.

    After the block the first call of each compiled module is repeated, compiled. Each module adds a line to `notes`.
    """
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled; importing it takes seconds
        yield
        return
    # torch has no public test for this; `Module.compile` sets the attribute, and every module has it
    compiled = {path: module for path, module in model.named_modules() if module._compiled_call_impl is not None}
    first_calls: dict[str, Call] = {}
    with ExitStack() as stack:
        for path, module in compiled.items():
            stack.enter_context(module.register_forward_hook(_keep_first(path, first_calls)))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
    for path, module in compiled.items():
        difference = _difference(module, first_calls.get(path))
        notes.append(f"{path or 'the decoder'} is compiled and ran eagerly here; {difference}")
        logger.info(notes[-1])


def _keep_first(path: str, calls: dict[str, Call]) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def keep(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        calls.setdefault(path, (inputs, output.detach()))

    return keep


@torch.no_grad()
def _difference(module: nn.Module, call: Call | None) -> str:
    if call is None:
        return "it was not called"
    inputs, output = call
    if any(isinstance(argument, CachedKVView) for argument in inputs):
        return "the difference was not measured: the cache has changed since"
    largest = float((module(*inputs) - output).abs().max())
    return f"its compiled output differs by at most {largest:.2g}"
