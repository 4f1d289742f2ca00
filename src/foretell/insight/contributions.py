"""Direct contributions in a recorded pass: what parts, and tokens through them, add to outputs of a linear head.

An output is a dot product of the stream with a direction, and the stream is the sum of the vectors of embeddings, heads
and feed-forward layers (`stream_terms.py`). So an output is a sum of one number per part.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.insight.layers import UPDATES, sublayer_of
from foretell.insight.readout import Output, Readout
from foretell.insight.recorded_pass import Array, RecordedPass, record, to_array
from foretell.insight.replacement import replaced_names
from foretell.insight.stream_terms import (
    HeadOutputs,
    HeadReads,
    Normalized,
    RecordedPart,
    StreamDecomposition,
    Term,
    head_weights,
    names_by_token,
)
from foretell.language_model import LanguageModel
from foretell.model.decoder import HEAD, Decoder
from foretell.model.structure import Structure, model_structure

HEAD_BIAS, ALL = "head.bias", "all"
POSITIONS_AT_ONCE = 16  # the vectors of all parts at a position take N * D numbers in float64


def terms_of_head(decoder: Decoder, structure: Structure, replaced: Collection[str] = ()) -> Term:
    """The terms of the stream that the head reads. Raises `UsageError` if a module does not declare its terms."""
    return StreamDecomposition(decoder, structure, replaced).stream(*structure[HEAD].reads)


def replaced_updates(structure: Structure, replaced: Collection[str]) -> list[str]:
    """The replaced values that are added to the stream: each is one part, without the heads it came from."""
    updates = (value for value in structure.values.values() if value.formula in UPDATES)
    names = dict.fromkeys(name for value in updates for name in (value.reads[1], sublayer_of(structure, value)))
    return [name for name in names if name in replaced]


def record_contributions(
    model: LanguageModel, text: str | list[int], by_token: bool = False, replaced: Collection[str] | None = None
) -> Contributions:
    """The contributions in a pass. by_token: also by the token that they come from.

    replaced: values that are one part each; by default the updates of the stream that traces replace now.
    """
    structure = model_structure(model.decoder)
    if replaced is None:
        replaced = replaced_updates(structure, replaced_names(model.decoder))
    stream = terms_of_head(model.decoder, structure, replaced)
    names = names_by_token(stream, structure) if by_token else stream.names()
    return Contributions(record(model, text, names, structure=structure), stream)


class Contributions:
    """The numbered parts of the stream in a recorded pass, and their contributions to outputs.

    The numbers after the parts, of which the last may be the head's bias, are sums: of each module with several parts
    and, last, of all parts.
    """

    def __init__(self, recording: RecordedPass, stream: Term):
        self.recording, self.stream, self.trace = recording, stream, recording.trace
        self.vector_names, _ = stream.stacked(self.trace, 0)
        self.has_bias = head_weights(recording.model.decoder, recording.structure)[1] is not None
        self.parts = [*self.vector_names, *([HEAD_BIAS] if self.has_bias else [])]
        self.sums = sums_of(recording.structure, self.parts)
        self.names = [*self.parts, *self.sums]

    def vectors(self, at: slice) -> Tensor:
        """The vectors (N, P, D) of the parts after the norms, without the head's bias."""
        return self.stream.stacked(self.trace, at)[1]

    def products(self, at: slice, directions: Tensor) -> Tensor:
        """The products (N, K, P) of the parts with K directions (K, P, D), a few of the P positions at a time."""
        parts = []
        for start in range(at.start, max(at.start + 1, at.stop), POSITIONS_AT_ONCE):  # one part if there is no position
            some = slice(start, min(at.stop, start + POSITIONS_AT_ONCE))
            own = directions[:, start - at.start :][:, :POSITIONS_AT_ONCE]
            parts.append(torch.einsum("npd,kpd->nkp", self.vectors(some), own))
        return torch.cat(parts, dim=-1)

    def of_parts(self, at: slice, directions: Tensor) -> Tensor:
        """The products (N, K) of the parts with K directions (K, P, D), summed over P positions."""
        return self.products(at, directions).sum(-1)

    def of_tokens(self, at: slice, directions: Tensor) -> Tensor:
        """Contributions by the token that they come from, (N, K, T)."""
        return self.stream.by_token(self.trace, at, directions)

    # --- one output of a head

    def to_output(self, readout: Readout, output: Output) -> Array:
        """The contributions to an output: each part, then each sum."""
        T = len(self.recording.ids)
        parts = self.of_parts(readout.positions(T, *output[:-1]), readout.directions(T, output))[:, 0]
        return self._with_sums(to_array(parts), readout.bias(output))

    def to_output_by_token(self, readout: Readout, output: Output) -> Array:
        """Sums by the token that they come from, (N, T)."""
        T = len(self.recording.ids)
        values = self.of_tokens(readout.positions(T, *output[:-1]), readout.directions(T, output))
        return self._with_sums(to_array(values)[:, 0], 0.0)

    def _with_sums(self, parts: Array, bias: float) -> Array:
        """Append the head's bias (a task's head has none) and the sums to the parts' numbers."""
        if self.has_bias:
            parts = np.concatenate([parts, np.full_like(parts[:1], bias)])
        return np.concatenate([parts, [parts[chosen].sum(0) for chosen in self.sums.values()]])

    def head_reads(self, readout: Readout, output: Output, part: int) -> HeadReads | None:
        """The reads of a head at the positions of an output; None for any other part."""
        leaf, *norms = self.stream.trail(self.names[part])
        if not isinstance(leaf, HeadOutputs) or self.names[part].endswith(".bias"):
            return None
        T = len(self.recording.ids)
        at, directions = readout.positions(T, *output[:-1]), readout.directions(T, output)
        for norm in reversed(norms):
            assert isinstance(norm, Normalized), "a part passes norms"
            directions = norm.back(self.trace, at, directions)
        return leaf.reads(self.trace, at, directions)

    def reads(self, readout: Readout, output: Output, part: int, token: int) -> Array:
        """A part's contributions from a token at each of the P positions that an output reads."""
        T = len(self.recording.ids)
        at, reads = readout.positions(T, *output[:-1]), self.head_reads(readout, output, part)
        values = np.zeros(at.stop - at.start)
        if reads is not None:
            values = to_array(reads.from_token(self.head_of(part), token))
        if at.start <= token < at.stop:
            own, here = to_array(self.vectors(slice(token, token + 1)))[part, 0], token - at.start
            added = to_array(readout.directions(T, output))[0, here] @ own
            values[here] += added if reads is None else float(reads.rests(self.head_of(part))[here])
        return values

    def written(self, position: int, part: int) -> Array:
        """The vector (D,) that a part adds to the stream."""
        leaf, name = self.stream.trail(self.names[part])[0], self.names[part]
        if isinstance(leaf, HeadOutputs | RecordedPart):
            return to_array(dict(leaf.parts(self.trace, position))[name])
        return self.recording.weight(name)

    def head_of(self, part: int) -> int:
        return int(self.names[part].rpartition("[")[2].removesuffix("]"))

    def described(self) -> list[dict[str, Any]]:
        """Name, layer, module and head of each part, and the number of its module's sum, or else of the part."""
        sums = enumerate(list(self.sums.values())[:-1], start=len(self.parts))
        number_of = {part: number for number, parts in sums for part in parts}
        structure = self.recording.structure
        return [{**part_of(structure, name), "sum": number_of.get(part, part)} for part, name in enumerate(self.parts)]


def sums_of(structure: Structure, names: list[str]) -> dict[str, list[int]]:
    """The parts of each module with several parts, by its path; and finally all parts, under ALL."""
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
