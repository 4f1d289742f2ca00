"""The operations of `change` as functions of values: scale, add, set, or patch from another text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from foretell.insight.trace import Trace
from foretell.model.decoder import HEAD
from foretell.model.structure import Value
from foretell.paths import select
from foretell.serving.errors import errors_of, refused
from foretell.serving.models import ExploredModel
from foretell.serving.requests import ChangeRequest

MOST_PATCHES = 4  # texts to patch from; each is read in one pass, while other requests wait
MOST_OPERATIONS = 256  # operations per pass
# Above this, squares in later layers may be infinite, and a norm divides by them: then all logits are 0, and finite
LARGEST = 1e10
Operation = Callable[[Tensor], Tensor]


class Changes:
    """The changes of a request, for all its sequences; each text to patch from is read once.

    further: a change that is applied elsewhere, whose text is read with the others.
    """

    def __init__(self, served: ExploredModel, changes: list[ChangeRequest], further: ChangeRequest | None = None):
        self.served, self.changes = served, changes
        self._globs: dict[str, list[str]] = {}
        self._traces: dict[str, Trace] = {}
        for change in changes if further is None else [*changes, further]:
            if change.patch is not None:
                self._globs.setdefault(change.patch, []).append(change.value)
        if len(self._globs) > MOST_PATCHES:
            raise refused("change", f"{len(self._globs)} texts to patch from; at most {MOST_PATCHES}")

    def patch(self, text: str, name: str) -> Tensor:
        """A value of the unchanged model in a pass over a text; runs in the thread of the models."""
        if text not in self._traces:
            model = self.served.model
            ids = torch.tensor([model.encode_fitting(text)], device=model.device)
            options = {"budget_bytes": self.served.look_bytes, "structure": self.served.structure}
            with Trace(model, self._globs[text], **options) as trace, torch.inference_mode():
                model.decoder.hidden(ids)  # the head cannot be patched
            self._traces[text] = trace
        return self._traces[text][name]

    @property
    def names(self) -> set[str]:
        """The names of the changed values. Raises ApiError for unknown names."""
        with errors_of("change"):
            return {name for change in self.changes for name in select(change.value, self.served.structure.names)}

    @property
    def key(self) -> str:
        """A key that is equal for equal changes; empty if they depend on positions."""
        if any(change.positions is not None or change.patch is not None for change in self.changes):
            return ""
        return "\n".join(change.model_dump_json() for change in self.changes)

    def operations(self, start: Callable[[], int] = lambda: 0) -> dict[str, Operation]:
        """The operations on a pass, by the name of the value. start: gives the position of its first token.

        Raises ApiError for unknown names and axes; patches are read in the thread of the models.
        """
        by_name: dict[str, list[Operation]] = {}
        with errors_of("change"):
            for change in self.changes:
                for name in select(change.value, self.served.structure.names):
                    operation = operation_of(change, self.served.structure[name], self, start)
                    by_name.setdefault(name, []).append(operation)
        if (count := sum(map(len, by_name.values()))) > MOST_OPERATIONS:
            raise refused("change", f"{count} operations on values; at most {MOST_OPERATIONS}")
        return {name: partial(in_turn, operations) for name, operations in by_name.items()}


def operation_of(change: ChangeRequest, value: Value, changes: Changes, start: Callable[[], int]) -> Operation:
    """The function of a value described by a request. Raises ApiError for axes that the value does not have."""
    if change.patch is not None and ("T" not in value.dims or "S" in value.dims):
        raise refused("change", f"{value.name} cannot be patched: its numbers do not belong to one position each")
    if value.name == HEAD and (change.patch is not None or change.positions is not None):
        raise refused("change", "the head reads only the last tokens of a pass; change it without patch and positions")
    patched = None if change.patch is None else changes.patch(change.patch, value.name)
    axes = {"H": change.heads, "last": change.neurons, "T": change.positions}
    axes = {letter: wanted for letter, wanted in axes.items() if wanted is not None}
    if missing := next((letter for letter in axes if letter not in (*value.dims, "last")), None):
        what = "heads" if missing == "H" else "positions"
        raise refused("change", f"{value.name} has no axis of {what}; its axes are {' '.join(value.dims)}")

    def operation(old: Tensor) -> Tensor:
        first = start()
        new = changed(old, change, patched, value.dims, first)
        if not axes:
            return new
        where = torch.ones(old.shape, dtype=torch.bool)
        for letter, wanted in axes.items():
            axis = old.dim() - 1 if letter == "last" else value.dims.index(letter)
            what = f"{value.name} has {old.shape[axis]} {'heads' if letter == 'H' else 'neurons'}"
            where &= on_axis(old.shape, axis, wanted, first if letter == "T" else None, what)
        return torch.where(where.to(old.device), new, old)

    return operation


def changed(old: Tensor, change: ChangeRequest, patched: Tensor | None, dims: tuple[str, ...], start: int) -> Tensor:
    """The whole value after the operation of a request."""
    if patched is not None:
        axis, patched = dims.index("T"), patched.expand(len(old), *patched.shape[1:])
        known = min(patched.shape[axis] - start, old.shape[axis])
        if known <= 0:
            return old
        rest = old.narrow(axis, known, old.shape[axis] - known)  # positions after the end of the other text
        return torch.cat((patched.narrow(axis, start, known), rest), axis)
    if change.scale is not None:
        return old * change.scale
    operand = torch.as_tensor(change.add if change.set is None else change.set, dtype=old.dtype, device=old.device)
    if operand.dim() and operand.shape[-1] != old.shape[-1]:
        sizes = f"{old.shape[-1]} numbers per token, and the vector {operand.shape[-1]}"
        raise refused("change", f"{change.value} has {sizes}")
    return old + operand if change.set is None else operand.expand_as(old)


def in_turn(operations: list[Operation], value: Tensor) -> Tensor:
    """A value after all its operations; numbers that these raise above LARGEST become NaN, so the answer is refused."""
    before = value
    for operation in operations:
        value = operation(value)
    return value.masked_fill((before.isfinite() | value.isfinite()) & (value.abs() > LARGEST), torch.nan)


def on_axis(shape: torch.Size, axis: int, wanted: list[int], start: int | None, what: str) -> Tensor:
    """A mask of indices of an axis. start: the position of the first token; positions outside the pass are left out.

    Raises ApiError, with a message that begins with `what`, for an invalid index.
    """
    size = shape[axis]
    if start is not None:
        wanted = [position - start for position in wanted if start <= position < start + size]
    elif max(wanted) >= size:
        raise refused("change", f"{what}, counted from 0; there is no {max(wanted)}")
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[wanted] = True
    return chosen.reshape([-1 if each == axis else 1 for each in range(len(shape))])
