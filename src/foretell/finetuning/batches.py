"""Batches of encoded examples: rows of similar length together, the batch of a step a function of (seed, step)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import pad
from foretell.device import to_device
from foretell.finetuning.input_format import Sequences
from foretell.randomness import permutation, stream_key, uniform

POOL_BATCHES = 32  # batches whose rows are sorted by length together
TOKENS_AT_ONCE = 16_384  # of a batch without gradient


@dataclass(frozen=True)
class EncodedExample:
    """The token sequences of an example (two orders, or one per answer; else one) and its target."""

    sequences: Sequences
    target: float = 0.0
    where: str = ""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.sequences))


@dataclass(frozen=True)
class TaskBatch:
    """B examples of up to K sequences. ids: (B, K, T), padded on the right. lengths: (B, K), 0 for no sequence.

    targets: (B,) the index of a class or answer, or a number. weights: (B,) of each example in the loss.
    """

    ids: Tensor
    lengths: Tensor
    targets: Tensor
    weights: Tensor

    def __len__(self) -> int:
        """Rows."""
        return len(self.ids)

    @property
    def count(self) -> float:
        """The number of examples; the weights of a training set have the mean 1."""
        return float(len(self.ids))

    def rows(self, first: int, last: int, stride: int = 1) -> TaskBatch:
        """Rows `first` to `last`, every `stride`-th of them."""
        return self._map(lambda tensor: tensor[first:last:stride])

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same batch on another device."""
        return self._map(lambda tensor: to_device(tensor, device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> TaskBatch:
        return TaskBatch(*(change(tensor) for tensor in (self.ids, self.lengths, self.targets, self.weights)))


def make_task_batch(examples: Sequence[EncodedExample], weights: Sequence[float] | None = None) -> TaskBatch:
    """Examples as a batch; without weights each weighs 1."""
    most = max(len(example.sequences) for example in examples)
    filled = [[*example.sequences, *[[]] * (most - len(example.sequences))] for example in examples]
    ids, lengths = pad([sequence for sequences in filled for sequence in sequences])
    shape = (len(examples), most)
    return TaskBatch(
        torch.from_numpy(ids).view(*shape, -1),
        torch.tensor(lengths).view(shape),
        torch.tensor([example.target for example in examples], dtype=torch.float32),
        torch.tensor(weights if weights is not None else [1.0] * len(examples), dtype=torch.float32),
    )


def without_words(example: EncodedExample, rate: float, key: int, kept: Collection[int]) -> EncodedExample:
    """An example without a random share of its tokens, a function of `key`; those in `kept` and the last one stay."""
    sequences = []
    for number, ids in enumerate(example.sequences):
        drawn = [uniform(key, number << 32 | at) for at in range(len(ids))]
        last = len(ids) - 1
        sequences.append([token for at, token in enumerate(ids) if drawn[at] >= rate or token in kept or at == last])
    return replace(example, sequences=tuple(sequences))


class BatchOrder:
    """The examples of every step: a new random order in each epoch, in batches of similar length.

    The rows of POOL_BATCHES batches are sorted by length, cut into batches, and the batches are shuffled again. An
    epoch leaves out the last, incomplete batch, each time with other examples.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths, self.seed = np.array(lengths), seed
        self.batch_size = min(batch_size, len(lengths))
        self.batches_per_epoch = len(lengths) // self.batch_size
        self.batches_of = lru_cache(maxsize=1)(self._batches_of)

    def indices(self, step: int) -> np.ndarray:
        """The indices of the examples of a step."""
        epoch, position = divmod(step, self.batches_per_epoch)
        return self.batches_of(epoch)[position]

    def _batches_of(self, epoch: int) -> np.ndarray:
        order = permutation(stream_key("examples", self.seed, epoch), len(self.lengths)).numpy()
        order = order[: self.batches_per_epoch * self.batch_size]
        pool = POOL_BATCHES * self.batch_size
        for first in range(0, len(order), pool):
            part = order[first : first + pool]
            order[first : first + pool] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = order.reshape(self.batches_per_epoch, self.batch_size)
        return batches[permutation(stream_key("batches", self.seed, epoch), len(batches)).numpy()]


def iter_by_length(examples: Sequence[EncodedExample]) -> Iterator[tuple[list[int], TaskBatch]]:
    """Batches of examples of similar length, with their indices, of at most TOKENS_AT_ONCE tokens."""
    group: list[int] = []
    for index in sorted(range(len(examples)), key=lambda index: examples[index].length):
        if group and (len(group) + 1) * len(examples[index].sequences) * examples[index].length > TOKENS_AT_ONCE:
            yield group, make_task_batch([examples[member] for member in group])
            group = []
        group = [*group, index]
    if group:
        yield group, make_task_batch([examples[member] for member in group])
