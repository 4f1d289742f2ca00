"""Replacement of named values while the model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from foretell.errors import UsageError
from foretell.model.structure import Source, Value

Change = Callable[[Tensor], Tensor]
Replacement = Change | Tensor  # a tensor is expanded to the shape of the value it replaces


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


def replace_value(module: nn.Module, value: Value, replacement: Replacement) -> RemovableHandle:
    """Replace a value that is found at this module in every call until the handle is removed."""

    def changed(old: Tensor) -> Tensor:
        return fit(replacement if isinstance(replacement, Tensor) else replacement(old), old, value.name)

    def change_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return put(inputs, value.index, changed(inputs[value.index]))

    def change_output(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if value.source is Source.PART:
            return put(output, value.index, changed(output[value.index]))
        return changed(output)

    if value.source is Source.INPUT:
        return module.register_forward_pre_hook(change_inputs)
    return module.register_forward_hook(change_output)


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """A copy of the tuple with `value` at `index`."""
    return (*values[:index], value, *values[index + 1 :])


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
