"""What is to be left out, in writing: globs of trace names, with an index for one head, or each, behind it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.points import Point, make_catalog
from foretell.insight.replacement import Change
from foretell.model.decoder import Decoder
from foretell.paths import matches, select

ADDRESS = re.compile(r"(?P<glob>[^\[\]]+)(?:\[(?P<index>\d+|\*)\])?")
HEADED = ("core", "query", "key", "value")  # a core and what goes into it are (B, H or G, T, E)


@dataclass(frozen=True)
class Target:
    """A value of the pass, or one head of it."""

    name: str
    head: int | None = None

    def __str__(self) -> str:
        return self.name if self.head is None else f"{self.name}[{self.head}]"

    def change(self, fill: Change) -> Change:
        """The replacement: what `fill` makes of the value, in this head alone where there is one."""
        if self.head is None:
            return fill

        def of_one_head(value: Tensor) -> Tensor:
            changed = value.clone()
            changed[:, self.head] = fill(value)[:, self.head]
            return changed

        return of_one_head


FILLS: dict[str, Change] = {
    "zero": torch.zeros_like,
    "mean": lambda value: value.mean(-2, keepdim=True).expand_as(value),  # over the positions of the text
}


def find_targets(decoder: Decoder, address: str) -> list[Target]:
    """All that an address names: `trunk.blocks.*.feedforward`; one head, `**.attention.core[0]`; each, `**.core[*]`."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(f"'{address}' is no address; write a name or glob, and [0] or [*] behind it for heads")
    names = select(found["glob"], replaceable(decoder, found["glob"]))
    if found["index"] is None:
        return [Target(name) for name in names]
    return [Target(name, head) for name in names for head in _heads(decoder, name, found["index"])]


def replaceable(decoder: Decoder, glob: str) -> list[str]:
    """The names of what modules hand out, all of which a pass can be made to go on without.

    A glob that matches only what is computed beside the pass is a `UsageError`.
    """
    entries = make_catalog(decoder).entries
    names = [name for name, entry in entries.items() if isinstance(entry, Point)]
    matched = [name for name in entries if matches(glob, name)]
    if matched and not any(name in names for name in matched):
        first = matched[0]
        raise UsageError(
            f"{first} is computed beside the pass, which does not read it; leave out {first.rpartition('.')[0]} instead"
        )
    return names


def _heads(decoder: Decoder, name: str, index: str) -> range:
    parents, last = name.rpartition(".")[0], _last(name)
    if last not in HEADED or (last != "core" and _last(parents) != "core"):
        raise UsageError(f"{name} has no heads to choose from; attention.core and what is named below it have")
    config = decoder.config
    count = config.num_kv_heads if last in ("key", "value") else config.num_heads
    if index == "*":
        return range(count)
    if int(index) >= count:
        raise UsageError(f"{name} has no head {index}; its heads are 0 to {count - 1}")
    return range(int(index), int(index) + 1)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
