"""The prepared form of a decoder, kept as long as the decoder lives and nothing of it changes."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from foretell.model.decoder import Decoder
from foretell.model.surgery import HOOKS


class Contents:
    """The modules, attributes and tensors of a decoder at one time.

    Tensors count the changes that torch's operators make in place. An edit through `.data` or NumPy is not counted, nor
    is a step of torch's fused optimizers.
    """

    def __init__(self, modules: list[nn.Module], tensors: list[Tensor]):
        self.parts = parts_of(modules)
        self.versions = [tensor._version for tensor in tensors]
        self.values = [tensor.detach() for tensor in tensors]  # keeps their memory, so no other tensor has its address

    def equal(self, other: Contents) -> bool:
        """True if nothing changed between the two times."""
        is_same = len(self.parts) == len(other.parts) and all(map(is_, self.parts, other.parts))
        addresses = ([value.data_ptr() for value in contents.values] for contents in (self, other))
        return is_same and self.versions == other.versions and next(addresses) == next(addresses)


class KeptForm(NamedTuple):
    """A prepared form, the function that made it, and the contents of its decoder."""

    form: Decoder
    make: Callable[[Decoder], Decoder]
    contents: Contents


KEPT: WeakKeyDictionary[Decoder, KeptForm] = WeakKeyDictionary()


def kept_form(decoder: Decoder, make: Callable[[Decoder], Decoder]) -> Decoder:
    """The form that `make` made of this decoder before, if the decoder has not changed; else a new one.

    The form of a decoder with hooks, or with weights that do not count changes, is not kept.
    """
    modules = list(decoder.modules())
    groups = (group for module in modules for group in (module._parameters, module._buffers))
    tensors = [tensor for group in groups for tensor in group.values() if tensor is not None]
    has_hooks = any(getattr(module, name) for module in modules for name in HOOKS)
    if has_hooks or any(tensor.is_inference() for tensor in tensors):
        return make(decoder)
    contents, kept = Contents(modules, tensors), KEPT.get(decoder)
    if kept is not None and kept.make is make and kept.contents.equal(contents):
        return kept.form
    del kept
    KEPT.pop(decoder, None)  # frees its memory before the new form takes some
    form = make(decoder)
    if form is not decoder:
        KEPT[decoder] = KeptForm(form, make, contents)
    return form


def parts_of(modules: list[nn.Module]) -> list[Any]:
    """The classes and attributes of modules, with their children and tensors.

    The modules themselves are left out: a reference to the decoder would keep it for ever.
    """
    parts: list[Any] = []
    for module in modules:
        parts.append(type(module))
        for name, value in vars(module).items():
            parts.append(name)
            parts += [item for pair in value.items() for item in pair] if isinstance(value, dict) else [value]
    return parts
