"""Linear heads that read the stream after the last norm: the model's own, whose outputs are logits, and a task's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from foretell.errors import UsageError
from foretell.insight.address import Dimensions, address_of
from foretell.insight.recorded_pass import RecordedPass
from foretell.insight.stream_terms import head_weights
from foretell.model.decoder import HEAD, Decoder

VECTOR = "contributions.vector"
TASK_HEAD = "task_head"
TASK_WEIGHT, TASK_VECTOR = f"{TASK_HEAD}.weight", f"{TASK_HEAD}.{VECTOR}"
MEAN_OF_LABELS = "the mean of all labels"
Output = tuple[int, ...]  # the index of an output: (position, token), (label,), or for tags (position, label)


class Readout(ABC):
    """A linear head of a pass over T tokens.

    An output is `scale` times the product of a row of `weight` (C, D) and the mean of the vectors that it reads, plus a
    constant. name: of the contributions to its outputs. dimensions: of the index of an output, which ends with the row.
    labels: the names of the outputs, if they have any.
    """

    name: ClassVar[str]
    dimensions: ClassVar[Dimensions]
    weight: Tensor
    scale: float = 1.0

    @property
    @abstractmethod
    def labels(self) -> Sequence[str]: ...

    @abstractmethod
    def sizes(self, length: int) -> tuple[int, ...]:
        """The sizes of an output's index, for a pass over `length` tokens."""

    @abstractmethod
    def row(self, output: Output) -> tuple[Tensor, str]:
        """The weights (D,) of an output in float64, and their address."""

    @abstractmethod
    def positions(self, length: int, *position: int) -> slice:
        """The positions whose vectors an output reads. position: the beginning of its index."""

    @abstractmethod
    def vector(self, length: int, *position: int) -> str:
        """The beginning of the address of a part's vector, without part and element."""

    def bias(self, output: Output) -> float:
        return 0.0

    def directions(self, length: int, output: Output) -> Tensor:
        """The vectors (1, P, D) whose products with those at P positions add up to the output without its constant."""
        at = self.positions(length, *output[:-1])
        count = at.stop - at.start
        return (self.scale / count * self.row(output)[0]).expand(1, count, -1)


class LogitReadout(Readout):
    """The model's head. Raises `UsageError` for a head that is not one linear layer."""

    name, dimensions = "contributions", ("position", "token")
    labels = ()

    def __init__(self, recording: RecordedPass):
        self.recording = recording
        self.weight, self.biases = head_weights(recording.model.decoder, recording.structure)

    def sizes(self, length: int) -> tuple[int, ...]:
        return length, len(self.weight)

    def row(self, output: Output) -> tuple[Tensor, str]:
        path = self.recording.weight_path(self.recording.structure[HEAD])
        return self.weight[output[1]].detach().double(), address_of(path, output[1], ":")

    def positions(self, length: int, *position: int) -> slice:
        return slice(position[0], position[0] + 1)

    def vector(self, length: int, *position: int) -> str:
        return f"{VECTOR}[{position[0]},"

    def bias(self, output: Output) -> float:
        return 0.0 if self.biases is None else float(self.biases[output[1]])


@dataclass(eq=False)
class TaskReadout(Readout):
    """The head of a tuned model after a pass: logits of labels, or a number (C = 1).

    outputs: computes the outputs (C,) from the streams after the last norm (T, D) of the pass and all `others`, or the
    pass's share if given only the pass.
    """

    name, dimensions = f"{TASK_HEAD}.contributions", ("output",)
    kind: ClassVar[str] = "text"  # for the page
    is_per_position: ClassVar[bool] = False  # True: there are outputs at each position

    names: tuple[str, ...]  # names of the outputs
    weight: Tensor
    reads_mean: bool  # True: the vector is the mean over all positions; False: the last position's
    outputs: Callable[..., Tensor]
    words: Callable[[], list[int]]  # the index of each token's word, -1 for a special token
    scale: float = 1.0
    constant: float = 0.0
    others: tuple[list[int], ...] = ()  # further token sequences that the head reads
    first: int = 0  # the output of the first row
    example: str = "text"  # the word for the input in headings

    def to_json(self) -> dict[str, Any]:
        names = ("names", "kind", "first", "example", "constant")
        return {**{name: getattr(self, name) for name in names}, "readsMean": self.reads_mean}

    @torch.no_grad()
    def read(self, decoder: Decoder, hidden: Tensor) -> Tensor:
        """The outputs, given the stream (T, D) of the pass; runs the passes over `others`."""
        rows = [decoder.hidden(torch.tensor([ids], device=hidden.device))[0] for ids in self.others]
        return self.outputs(hidden, *rows)

    def added_by_others(self, hidden: Tensor, outputs: Tensor) -> Tensor:
        """The share of the outputs that other sequences add, given the stream (T, D) of the pass."""
        return torch.zeros_like(outputs, dtype=torch.float64)

    def sequences(self, output: int) -> Sequence[int]:
        """The indices of the sequences of an example that an output depends on."""
        return range(1 + len(self.others))

    @property
    def labels(self) -> list[str]:
        """The names of the outputs; after several rows, the mean of all."""
        return [*self.names, *([MEAN_OF_LABELS] if len(self.weight) > 1 else [])]

    def sizes(self, length: int) -> tuple[int, ...]:
        return (len(self.labels),)

    def has_row(self, output: int) -> bool:
        """False for an output of another pass."""
        return 0 <= output - self.first < len(self.weight)

    def row(self, output: Output) -> tuple[Tensor, str]:
        index = output[-1] - self.first
        if not self.has_row(output[-1]):
            raise UsageError(f"output {output[-1]} belongs to another pass; show the pass over this answer")
        return self.weight[index].double(), address_of(TASK_WEIGHT, index, ":")

    def positions(self, length: int, *position: int) -> slice:
        return slice(0 if self.reads_mean else length - 1, length)

    def vector(self, length: int, *position: int) -> str:
        return f"{TASK_VECTOR}[" if self.reads_mean else f"{VECTOR}[{self.positions(length, *position).start},"

    def at(self, outputs: Tensor, position: int) -> Tensor:
        """The outputs (C,) at a position."""
        return outputs

    def compare(self, values: Tensor, output: int, against: int | None, dim: int) -> Tensor:
        """An output, or its difference from another one (the index after the last: from the mean of all)."""
        chosen = values.select(dim, output)
        if against is None:
            return chosen
        return chosen - (values.mean(dim) if against == len(self.names) else values.select(dim, against))

    def direction(self, output: int, against: int | None) -> Tensor:
        """The vector (D,) whose product with the vector that is read is such an output, in any pass of an example."""
        return self.scale * self.compare(self.weight.double(), output, against, dim=0)


class OrdersReadout(TaskReadout):
    """The outputs of both orders of two texts are added."""

    kind = "orders"

    def added_by_others(self, hidden: Tensor, outputs: Tensor) -> Tensor:
        return outputs.double() - self.outputs(hidden).double()


class ChoiceReadout(TaskReadout):
    """Each sequence has one output: the score of an answer. The pass has output `first`."""

    kind = "choice"

    def sequences(self, output: int) -> Sequence[int]:
        return (output,)

    def direction(self, output: int, against: int | None) -> Tensor:
        return self.weight[0].double()


class TagsReadout(TaskReadout):
    """Each token has outputs, (T, C), and a word has the outputs of its last token."""

    kind = "tags"
    dimensions = ("position", "output")
    is_per_position = True

    def sizes(self, length: int) -> tuple[int, ...]:
        return length, len(self.labels)

    def positions(self, length: int, *position: int) -> slice:
        return slice(position[0], position[0] + 1)

    def at(self, outputs: Tensor, position: int) -> Tensor:
        return outputs[position]
