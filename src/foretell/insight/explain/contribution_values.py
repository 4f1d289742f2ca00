"""Direct contributions as numbers: what parts of a pass, and tokens through them, add to an output of a head."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from foretell.errors import UsageError
from foretell.insight.address import Dimensions, address_of
from foretell.insight.attribution.stream_parts import HEAD_BIAS, part_names, sums_of
from foretell.insight.attribution.stream_terms import (
    HeadOutputs,
    HeadReads,
    Normalized,
    RecordedPart,
    Term,
    head_weights,
)
from foretell.insight.explain.explain_outcome import MEAN_OF_LABELS, TASK_HEAD, TASK_WEIGHT
from foretell.insight.outcomes import Outcomes
from foretell.insight.recorded_pass import Array, RecordedPass, to_array

VECTOR = "contributions.vector"
TASK_VECTOR = f"{TASK_HEAD}.{VECTOR}"
Output = tuple[int, ...]  # the index of an output: (position, token), (label,), or for tags (position, label)


class Readout(ABC):
    """A linear head: an output is `scale` times the product of a row of weights and the mean of the vectors it reads.

    dimensions, sizes: the dimensions of an output's index, whose last entry is the row. labels: the names of the rows.
    """

    name: str  # the name of the contributions
    dimensions: Dimensions
    sizes: tuple[int, ...]
    scale = 1.0
    labels: list[str]

    @abstractmethod
    def row(self, output: Output) -> tuple[Array, str]:
        """The weights (D,) of an output, and their address."""

    @abstractmethod
    def positions(self, output: Output) -> slice:
        """The positions whose vectors an output reads."""

    @abstractmethod
    def vector(self, output: Output) -> str:
        """The beginning of the address of a part's vector, without part and element."""

    def bias(self, output: Output) -> float:
        return 0.0


class LogitReadout(Readout):
    """The model's head."""

    name, dimensions = "contributions", ("position", "token")

    def __init__(self, recording: RecordedPass):
        self.recording, self.labels = recording, []
        self.sizes = (len(recording.ids), recording.config.vocab_size)

    def row(self, output: Output) -> tuple[Array, str]:
        path = self.recording.weight_path(self.recording.structure["head"])
        return self.recording.weight(path, output[1]), address_of(path, output[1], ":")

    def positions(self, output: Output) -> slice:
        return slice(output[0], output[0] + 1)

    def vector(self, output: Output) -> str:
        return f"{VECTOR}[{output[0]},"

    def bias(self, output: Output) -> float:
        return float(self.recording.weight(HEAD_BIAS, output[1]))


class OutcomeReadout(Readout):
    """A task's head. The output after the labels is the mean of all."""

    name = f"{TASK_HEAD}.contributions"

    def __init__(self, recording: RecordedPass, outcomes: Outcomes):
        self.outcomes, self.length, self.scale = outcomes, len(recording.ids), outcomes.scale
        self.labels = [*outcomes.names, *([MEAN_OF_LABELS] if len(outcomes.weight) > 1 else [])]
        is_tags = outcomes.kind == "tags"
        self.dimensions = ("position", "output") if is_tags else ("output",)
        self.sizes = (*([self.length] if is_tags else []), len(self.labels))

    def row(self, output: Output) -> tuple[Array, str]:
        weight, index = to_array(self.outcomes.weight), output[-1] - self.outcomes.first  # (C, D)
        if self.labels[output[-1]] == MEAN_OF_LABELS:
            return weight.mean(0), ""
        if not 0 <= index < len(weight):
            raise UsageError(f"output {output[-1]} belongs to another pass; show the pass over this answer")
        return weight[index], address_of(TASK_WEIGHT, index, ":")

    def positions(self, output: Output) -> slice:
        return self.outcomes.positions(self.length, *output[:-1])

    def vector(self, output: Output) -> str:
        return f"{TASK_VECTOR}[" if self.outcomes.reads_mean else f"{VECTOR}[{self.positions(output).start},"


class Contributions:
    """The numbered parts of the stream in a recorded pass, and their contributions to outputs.

    The numbers after the parts are sums: of each module with several parts and, last, of all parts.
    """

    def __init__(self, recording: RecordedPass, stream: Term):
        self.recording, self.stream = recording, stream
        self.bias = head_weights(recording.model.decoder, recording.structure)[1]
        parts = part_names(stream, recording.trace, self.bias)
        self.sums = sums_of(recording.structure, parts)
        self.names, self.num_vectors = [*parts, *self.sums], len(parts) - (self.bias is not None)

    def vectors(self, at: slice) -> Array:
        """The vectors (N, P, D) of the parts after the norms."""
        return to_array(self.stream.stacked(self.recording.trace, at)[1])

    def of_parts(self, readout: Readout, output: Output) -> Array:
        """The contributions to an output: each part, then each sum."""
        vectors = self.vectors(readout.positions(output)).mean(1)
        bias = readout.bias(output) if self.bias is not None else 0.0
        return self._with_sums(readout.scale * (vectors @ readout.row(output)[0]), bias)

    def by_token(self, readout: Readout, output: Output) -> Array:
        """The same, split by the token that they come from, (N, T)."""
        at = readout.positions(output)
        values = self.stream.by_token(self.recording.trace, at, self._directions(readout, output))  # (N, 1, T)
        return self._with_sums(to_array(values)[:, 0], 0.0)

    def head_reads(self, readout: Readout, output: Output, part: int) -> HeadReads | None:
        """The reads of a head at the positions of an output; None for any other part."""
        leaf, *norms = self.stream.trail(self.names[part])
        if not isinstance(leaf, HeadOutputs) or self.names[part].endswith(".bias"):
            return None
        at, directions = readout.positions(output), self._directions(readout, output)
        for norm in reversed(norms):
            assert isinstance(norm, Normalized), "a part passes norms"
            directions = norm.back(self.recording.trace, at, directions)
        return leaf.reads(self.recording.trace, at, directions)

    def reads(self, readout: Readout, output: Output, part: int, token: int) -> Array:
        """A part's contributions from a token at each of the P positions that an output reads."""
        at, reads = readout.positions(output), self.head_reads(readout, output, part)
        values = np.zeros(at.stop - at.start)
        if reads is not None:
            values = to_array(reads.from_token(self.head_of(part), token))
        if at.start <= token < at.stop:
            own, here = self.vectors(slice(token, token + 1))[part, 0], token - at.start
            added = to_array(self._directions(readout, output))[0, here] @ own
            values[here] += added if reads is None else float(reads.rests(self.head_of(part))[here])
        return values

    def _directions(self, readout: Readout, output: Output) -> torch.Tensor:
        """The direction (1, P, D) of an output at each position that it reads."""
        at = readout.positions(output)
        count = at.stop - at.start
        return torch.from_numpy(readout.scale * readout.row(output)[0] / count).expand(1, count, -1)

    def _with_sums(self, parts: Array, bias: float) -> Array:
        """Append the head's bias (a task's head has none) and the sums to the parts' numbers."""
        if self.bias is not None:
            parts = np.concatenate([parts, np.full_like(parts[:1], bias)])
        return np.concatenate([parts, [parts[chosen].sum(0) for chosen in self.sums.values()]])

    def written(self, position: int, part: int) -> Array:
        """The vector (D,) that a part adds to the stream."""
        leaf, name = self.stream.trail(self.names[part])[0], self.names[part]
        if isinstance(leaf, HeadOutputs | RecordedPart):
            return to_array(dict(leaf.parts(self.recording.trace, position))[name])
        return self.recording.weight(name)

    def head_of(self, part: int) -> int:
        return int(self.names[part].rpartition("[")[2].removesuffix("]"))
