"""Replacing modules of a model by path: for good, inside a `with` block, or in a copy; hooks and compiled modules."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from torch import nn
from torch.nn.modules import module as all_modules

from foretell.model.dropout import DropoutHost
from foretell.paths import select

HOOKS = [name for name in vars(nn.Module()) if "_hooks" in name and "state_dict" not in name]
GLOBAL_HOOKS: list[Any] = [all_modules._global_forward_hooks, all_modules._global_forward_pre_hooks]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Surgery:
    """The replacements made by one call of `replace`. As a context manager, it undoes them at the end of the block."""

    def __init__(self, model: nn.Module, old: dict[str, nn.Module], new: dict[str, nn.Module]):
        self.model, self.old, self.new = model, old, new

    @property
    def paths(self) -> list[str]:
        """The paths of the replaced modules, in the order of the model."""
        return list(self.old)

    def undo(self) -> None:
        """Put the old modules back, except where a module has been replaced again."""
        current = dict(self.model.named_modules())
        for path, module in self.old.items():
            if current.get(path) is self.new[path]:
                self.model.set_submodule(path, module)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def replace(model: nn.Module, glob: str | Iterable[str], make: Callable[[nn.Module], nn.Module]) -> Surgery:
    """Replace every module whose path a glob matches by `make(module)`.

        replace(decoder, "**.attention.query", LowRankLinear)                      # for good
        with replace(decoder, "trunk.blocks.3.attention.core", EagerAttention):    # put back after the block
            ...

    A new module has the path and the mode (training or evaluation) of the old one. If `make` returns its argument,
    nothing changes. A glob without a match is a `UsageError`.
    """
    modules = dict(model.named_modules())
    paths = select(glob, [path for path in modules if path])
    new = {path: make(modules[path]) for path in paths}
    new = {path: module for path, module in new.items() if module is not modules[path]}
    for path, module in new.items():
        model.set_submodule(path, module.train(modules[path].training))
    if isinstance(model, DropoutHost):
        model.bind_dropout()
    return Surgery(model, {path: modules[path] for path in new}, new)


def is_compiled(module: nn.Module) -> bool:
    """True after `module.compile()`, and for the wrapper that `torch.compile(module)` returns."""
    # torch has no public test for the former
    return module._compiled_call_impl is not None or is_in_wrapper(module)


def is_in_wrapper(module: nn.Module) -> bool:
    """True for the wrapper that `torch.compile(module)` returns."""
    return type(module).__name__ == "OptimizedModule"  # importing the class takes seconds


def copy_with(module: AnyModule, changed: Mapping[str, nn.Module], path: str = "") -> AnyModule:
    """A copy of a module tree with other modules at some paths; weights, buffers, hooks and the rest are shared.

    The original does not change, so both can run at the same time. `path` is the module's path in the tree.
    """
    other = copy.copy(module)
    children = dict(module._modules)
    for name, child in module._modules.items():
        below = f"{path}.{name}" if path else name
        if child is not None and any(at.startswith(f"{below}.") for at in changed):
            children[name] = copy_with(child, changed, below)
        children[name] = changed.get(below, children[name])
    other._modules = children
    return other


class RefersToHooks(nn.Module):
    """A module that keeps references to hooks or to modules above it, besides its children."""

    def refer_to(self, copies: Mapping[nn.Module, nn.Module]) -> None:
        """Replace the references of this copy by references to the copies of the modules and their hooks."""
        raise NotImplementedError


def copy_with_own_hooks(module: AnyModule) -> AnyModule:
    """A copy of a module tree without the hooks; weights, including packed ones, are shared.

    The original does not change, and hooks on either do not see the calls of the other.
    """
    copies = {old: copy.copy(old) for old in module.modules()}
    for old, new in copies.items():
        new._modules = {name: None if child is None else copies[child] for name, child in old._modules.items()}
        for name in HOOKS:
            setattr(new, name, OrderedDict())
    for new in copies.values():
        if isinstance(new, RefersToHooks):
            new.refer_to(copies)
    copied = copies[module]
    assert isinstance(copied, type(module))
    return copied


def recast(module: nn.Module, kind: type[AnyModule]) -> AnyModule:
    """A module of another class that shares the parameters, buffers, hooks and settings of this one.

    Both classes must name their state alike, as a kernel that subclasses the plain form does.
    """
    other = copy.copy(module)
    other.__class__ = kind
    assert isinstance(other, kind)
    return other
