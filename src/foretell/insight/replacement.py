"""Replacement of named values while the model runs, and the attention core whose steps can be replaced.

Scores, weights and the statistics of norms are derived: computed from recorded inputs by the functions of
`model/attention.py` and `model/norm.py`, in float32 or better. The fused kernel also accumulates its scores in float32
for bfloat16 operands, so these are the closest values to the kernel's. `weights @ value` equals the core's output
within

    ATTENTION_BOUND * epsilon of the core's dtype * max |value| * max(1, max |scaled|)

Rounding a score by epsilon times its size changes its weight by the same relative amount, so large scores widen the
bound. Over the tested configurations with large weights the factor was at most 2.3 in float64, 1.7 in float32 and 0.4
in bfloat16; for the shape of GPT-2 with initial weights the difference is below 6e-7 of the largest output in float32,
and 4e-3 in bfloat16.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from foretell.errors import UsageError
from foretell.model.attention import CORE, attention_scores, hide, per_query_head
from foretell.model.description import Declared
from foretell.model.mask import Mask
from foretell.model.structure import Source, Value

Change = Callable[[Tensor], Tensor]
Replacement = Change | Tensor  # a tensor is expanded to the shape of the value it replaces


class OwnThread:
    """The thread that created this object. A trace does not affect other threads."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()

    def is_current(self) -> bool:
        """True in this thread, and in a backward pass: activation checkpointing may repeat calls in torch's threads."""
        return threading.get_ident() == self.ident or in_backward()


def in_backward() -> bool:
    """True during a backward pass. torch's own checkpointing tests it this way; there is no public function."""
    return torch._C._current_graph_task_id() != -1


def without_heads(*heads: int) -> Change:
    """A change for `attention.core` that sets the outputs (B, H, T, E) of these heads to zero."""

    def change(mixed: Tensor) -> Tensor:
        last = mixed.shape[1] - 1
        for head in heads:
            if not 0 <= head <= last:
                raise UsageError(f"there is no head {head} to leave out; the heads are 0 to {last}")
        kept = mixed.clone()
        kept[:, list(heads)] = 0
        return kept

    return change


class ReplacedValue:
    """The hooks of a replacement, which is active in calls from one thread."""

    def __init__(self, value: Value, replacement: Replacement, thread: OwnThread):
        self.value, self.replacement, self.thread = value, replacement, thread

    def register(self, module: nn.Module) -> RemovableHandle:
        """Replace the value, which this module produces, until the handle is removed."""
        if self.value.source is Source.INPUT:
            return module.register_forward_pre_hook(self.change_inputs)
        return module.register_forward_hook(self.change_output)

    def change_inputs(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._change_one(inputs) if self.thread.is_current() else inputs

    def change_output(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if not self.thread.is_current():
            return output
        return self._change_one(output) if self.value.source is Source.PART else self._changed(output)

    def _change_one(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        index = self.value.index
        return (*values[:index], self._changed(values[index]), *values[index + 1 :])

    def _changed(self, old: Tensor) -> Tensor:
        new = self.replacement if isinstance(self.replacement, Tensor) else self.replacement(old)
        return fit(new, old, self.value.name)


def replaced_names(model: nn.Module) -> set[str]:
    """The names of the values that traces currently replace in this thread."""
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    ]
    owners = [getattr(hook, "__self__", None) for hook in hooks]
    return {owner.value.name for owner in owners if isinstance(owner, ReplacedValue) and owner.thread.is_current()}


def fit(new: Any, old: Tensor, name: str) -> Tensor:
    """The new value with the shape, dtype and device of the old one. Raises `UsageError` if it does not fit."""
    if not isinstance(new, Tensor):
        raise UsageError(
            f"the replacement of {name} is a {type(new).__name__}; give a tensor of shape {tuple(old.shape)}"
        )
    try:
        return new.to(old).expand_as(old)
    except RuntimeError:
        shapes = f"shape {tuple(new.shape)}, which does not fit its shape {tuple(old.shape)}"
        raise UsageError(f"the replacement of {name} has {shapes}") from None


ATTENTION_BOUND = 4
STAGES = {
    "scores": Declared("B H T S", ("query", "key"), "attention score"),
    "scaled": Declared("B H T S", ("scores",), "scaled score"),
    "masked": Declared("B H T S", ("scaled",), "masked score"),
    "weights": Declared("B H T S", ("masked",), "attention weight"),
}


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """The weighted sum (B, H, T, E) of values (B, G, S, E) with weights (B, H, T, S)."""
    return weights @ per_query_head(value, weights).to(weights.dtype)


class StagedAttention(nn.Module):
    """An attention core that exposes each step of softmax(Q K' / sqrt(E)) V as the output of a submodule.

    Hooks can then record or replace every step. It keeps the dropout of the core that it replaces. Calls from other
    threads use that core.
    """

    description = CORE.changed(
        values={**STAGES, "dropout": Declared("B H T S", ("weights",), "attention weight")},
        saved=(*CORE.saved, *STAGES),
    )

    def __init__(self, replaced: nn.Module):
        super().__init__()
        self.scores, self.scaled, self.masked, self.weights = (nn.Identity() for _ in STAGES)
        self.replaced, self.thread = (replaced,), OwnThread()  # in a tuple, so that it is not a submodule
        self.dropout = dict(replaced.named_children()).get("dropout", nn.Identity())

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        if not self.thread.is_current():
            return self.replaced[0](query, key, value, mask)
        with torch.autocast(query.device.type, enabled=False):
            scores = self.scores(attention_scores(query, key))  # (B, H, T, S)
            scaled = self.scaled(scores / math.sqrt(query.shape[-1]))
            weights = self.weights(self.masked(hide(scaled, mask)).softmax(dim=-1))
            return mix(self.dropout(weights), value).to(value.dtype)  # (B, H, T, E)
