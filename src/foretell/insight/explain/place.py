"""The number that is to be explained: whose it is, and where in it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from foretell.insight.dimensions import PLACES, dimensions_of
from foretell.insight.explain.recording import Recording


@dataclass(frozen=True)
class Place:
    """One number of a named value: its name, its index counted from 0, and the module at whose call it stands."""

    name: str
    index: tuple[int, ...]
    module: nn.Module

    @property
    def parent(self) -> str:
        """The name without its last segment."""
        return self.name.rpartition(".")[0]


def locate(name: str, index: tuple[int, ...], recording: Recording) -> Place:
    """The place of an index; a value that is a part of a module's call stands at that module."""
    modules = dict(recording.model.decoder.named_modules())
    owner = name
    while owner not in modules:
        owner = owner.rpartition(".")[0]
    return Place(name, index, modules[owner])


def meanings(recording: Recording, name: str, index: tuple[int, ...]) -> list[str]:
    """What each number of an index stands for: `head 1`, `query 3 ' of'`."""
    return [
        f"{meaning} {place}{_named(recording, meaning, place)}"
        for meaning, place in zip(dimensions_of(name), index, strict=True)
    ]


def _named(recording: Recording, meaning: str, place: int) -> str:
    if meaning in PLACES:
        return f" {recording.token(place)}"
    return f" {recording.named(place)}" if meaning == "token" else ""


def address_of(name: str, *index: int) -> str:
    """`name[1,3]`."""
    return f"{name}[{','.join(map(str, index))}]"
