"""The parts of the stream that the head reads, by name and in the modules that wrote them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foretell.insight.attribution.stream_terms import Term
from foretell.insight.trace import Trace
from foretell.model.structure import Structure

HEAD_BIAS, ALL = "head.bias", "all"


def part_names(stream: Term, trace: Trace, bias: Tensor | None) -> list[str]:
    """The names of the parts of the stream that the head reads, and of the head's bias."""
    return [*stream.stacked(trace, 0)[0], *([] if bias is None else [HEAD_BIAS])]


def sums_of(structure: Structure, names: list[str]) -> dict[str, list[int]]:
    """The parts of each module with several parts, by its path; and finally all parts, under ALL.

    Sums are numbered after the parts.
    """
    modules: dict[str, list[int]] = {}
    for part, name in enumerate(names):
        described = part_of(structure, name)
        if described["layer"] is not None:
            modules.setdefault(f"{structure.stream[described['layer'] + 1]}.{described['module']}", []).append(part)
    return {path: parts for path, parts in modules.items() if len(parts) > 1} | {ALL: [*range(len(names))]}


def part_of(structure: Structure, address: str) -> dict[str, Any]:
    """`trunk.blocks.3.attention.core[0]`: layer 3, module attention, head 0."""
    name, _, index = address.removesuffix("]").partition("[")
    part = {"name": address, "layer": None, "module": None, "head": int(index) if index else None}
    for layer, block in enumerate(structure.stream[1:]):
        if name.startswith(f"{block}."):
            part |= {"layer": layer, "module": name.removeprefix(f"{block}.").split(".")[0]}
    return part
