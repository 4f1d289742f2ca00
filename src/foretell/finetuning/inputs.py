"""Texts of a kind as token sequences, and batches of them.

The sequences follow Radford et al. 2018, figure 1. With the pool `extract`:

    classify, regress       start text extract
    entailment              start premise delimiter hypothesis extract
    similarity              start first delimiter second extract, and start second delimiter first extract
    choice                  start question delimiter answer extract, for every answer

With `last` and `mean` there is no extract token, and the start token is the tokenizer's, if it has one:

    tag                     start words

A batch has rows of similar length; the batch of a step depends only on (seed, step).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.data.batch import Rows, pad, padded_groups
from foretell.errors import ContextLengthError, DataError
from foretell.finetuning.settings import InputTokens, Pool, Truncate
from foretell.numerics.randomness import permutation, stream_key, uniform
from foretell.text import Tokenizer

START, DELIMITER, EXTRACT = "<|start|>", "<|delimiter|>", "<|extract|>"
FEW = 0.01  # share of the examples that may be cut without being asked
POOL_BATCHES = 32  # batches whose rows are sorted by length together
TOKENS_AT_ONCE = 2**11  # tokens per batch in passes without gradient; with 2**14, a CPU's heap grew by 1.5 GB

Sequences = tuple[list[int], ...]  # the sequences of an example: one, two orders, or one per answer
Target = tuple[float, ...]  # the index of a label or answer, or a number; for tags an index per word


@dataclass(frozen=True)
class EncodedExample:
    """The token sequences of an example, and its target.

    positions: the tokens whose vectors the head reads, if it does not read one vector per sequence; -1 for a token that
    was cut off. cut: the number of tokens left out to fit the context.
    """

    sequences: Sequences
    target: Target = ()
    where: str = ""
    positions: tuple[int, ...] = ()
    cut: int = 0

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.sequences))


def choose_tokens(tokenizer: Tokenizer, pool: Pool, has_delimiter: bool) -> InputTokens:
    """The special tokens of a format: the tokenizer's start token if it has one, and new tokens."""
    start = None if tokenizer.start_ids or pool != "extract" else START
    extract = EXTRACT if pool == "extract" else None
    return InputTokens(start=start, delimiter=DELIMITER if has_delimiter else None, extract=extract)


def with_input_tokens(tokenizer: Tokenizer, tokens: InputTokens) -> Tokenizer:
    """The tokenizer with the special tokens of a format."""
    return tokenizer.with_special_tokens([name for name in (tokens.start, tokens.delimiter, tokens.extract) if name])


class TooLongError(DataError, ContextLengthError):
    """Texts do not fit the context. for_one: the message for a single text."""

    def __init__(self, message: str, for_one: str):
        super().__init__(message)
        self.for_one = for_one

    def for_server(self) -> str:
        return self.for_one


class InputFormat:
    """Joins texts with the tokenizer's special tokens, and cuts them to the context as `truncate` names it."""

    def __init__(self, tokenizer: Tokenizer, tokens: InputTokens, context_length: int, truncate: Truncate | None):
        self.tokenizer, self.context_length, self.truncate = tokenizer, context_length, truncate
        self.start = list(tokenizer.start_ids) if tokens.start is None else self._ids(tokens.start)
        self.delimiter, self.extract = self._ids(tokens.delimiter), self._ids(tokens.extract)

    def _ids(self, name: str | None) -> list[int]:
        return [] if name is None else [self.tokenizer.special_tokens[name]]

    def fitting(self, texts: list[list[int]]) -> list[list[int]]:
        """Texts, cut if they do not fit the context with the special tokens."""
        room = self.context_length - len(self.start) - len(self.extract) - len(self.delimiter) * (len(texts) - 1)
        return fit(texts, room, self.truncate or "tail")

    def join(self, texts: list[list[Any]]) -> tuple[list[Any], int]:
        """Texts joined with the special tokens, and the number of tokens left out to fit the context."""
        kept = self.fitting(texts)
        ids = [] if kept[0][: len(self.start)] == self.start else list(self.start)
        for index, text in enumerate(kept):
            ids += (self.delimiter if index else []) + text
        return [*ids, *self.extract], sum(map(len, texts)) - sum(map(len, kept))

    def check_cuts(self, encoded: Sequence[EncodedExample]) -> str:
        """A line about texts that were cut, empty if there are none.

        With `never`, any is a TooLongError. Without `truncate`, a few lose their tail, and more are a TooLongError.
        """
        cuts = [(example.cut, example.where) for example in encoded if example.cut]
        if not cuts:
            return ""
        most, where = max(cuts, key=lambda cut: cut[0])
        count = f"{len(cuts):,} of {len(encoded):,} examples"
        advice = f"a model trained with --model.context-length {self.context_length + most} has room for all"
        is_refused = self.truncate is None and len(cuts) > FEW * len(encoded)
        if is_refused or self.truncate == "never":
            raise TooLongError(
                f"{count} do not fit the model's context of {self.context_length}, by up to {most:,} tokens ({where}); "
                f"{advice}, or give --truncate tail to leave out their end, or head or middle",
                f"the text has {most:,} tokens more than fit the context of {self.context_length:,}; shorten it",
            )
        return (
            f"{count} lose their {self.truncate or 'tail'} to fit the context of {self.context_length}: up to {most:,} "
            f"tokens ({where}); {advice}"
        )


def fit(texts: list[list[int]], room: int, truncate: str) -> list[list[int]]:
    """Texts cut to `room` tokens in total: short texts stay whole, and long ones share the remaining room equally."""
    kept, left = dict[int, list[int]](), max(0, room)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    for done, index in enumerate(order):
        share = left // (len(texts) - done)
        kept[index] = cut_to(texts[index], min(len(texts[index]), share), truncate)
        left -= len(kept[index])
    return [kept[index] for index in range(len(texts))]


def cut_to(text: list[int], length: int, truncate: str) -> list[int]:
    """A text cut to `length` tokens, without its head, tail or middle."""
    left_out = len(text) - length
    if left_out <= 0:
        return text
    if truncate == "head":
        return text[left_out:]
    front = length if truncate == "tail" else -(-length // 2)
    return text[:front] + text[front + left_out :]


@dataclass(frozen=True)
class TaskBatch(Rows):
    """B examples of up to K sequences. ids: (B, K, T), padded on the right. lengths: (B, K), 0 for no sequence.

    targets: (B, M), padded with 0. positions: (B, W), padded with -1; W is 0 if the head reads one vector per sequence.
    weights: (B,) the weight of each example in the loss.
    """

    lengths: Tensor
    targets: Tensor
    positions: Tensor
    weights: Tensor

    @property
    def count(self) -> float:
        """The number of examples; the weights of a training set have the mean 1."""
        return float(len(self.ids))

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads, without padding."""
        return int(self.lengths.sum())


def make_task_batch(examples: Sequence[EncodedExample], weights: Sequence[float] | None = None) -> TaskBatch:
    most = max(len(example.sequences) for example in examples)
    filled = [[*example.sequences, *[[]] * (most - len(example.sequences))] for example in examples]
    ids, lengths = pad([sequence for sequences in filled for sequence in sequences])
    shape = (len(examples), most)
    return TaskBatch(
        torch.from_numpy(ids).view(*shape, -1),
        torch.tensor(lengths).view(shape),
        padded([example.target for example in examples], 0, torch.float32),
        padded([example.positions for example in examples], -1, torch.long),
        torch.tensor(weights if weights is not None else [1.0] * len(examples), dtype=torch.float32),
    )


def padded(rows: Sequence[Sequence[float]], value: int, dtype: torch.dtype) -> Tensor:
    """Rows of numbers (B, M), padded on the right."""
    most = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (most - len(row))] for row in rows], dtype=dtype)


def without_words(example: EncodedExample, rate: float, key: int, kept: Collection[int]) -> EncodedExample:
    """Remove a random share of an example's tokens, determined by `key`; tokens in `kept` and the last one stay."""
    sequences = []
    for number, ids in enumerate(example.sequences):
        drawn = [uniform(key, number << 32 | at) for at in range(len(ids))]
        last = len(ids) - 1
        sequences.append([token for at, token in enumerate(ids) if drawn[at] >= rate or token in kept or at == last])
    return replace(example, sequences=tuple(sequences))


class BatchOrder:
    """The examples of every step: a new random order in each epoch, in batches of similar length.

    The rows of POOL_BATCHES batches are sorted by length and cut into batches, which are shuffled again. Each epoch
    leaves out the last, incomplete batch, with different examples each time.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int):
        self.lengths, self.seed = np.array(lengths), seed
        self.batch_size = min(batch_size, len(lengths))
        self.batches_per_epoch = len(lengths) // self.batch_size
        self.batches_of = lru_cache(maxsize=1)(self._batches_of)

    def indices(self, step: int) -> np.ndarray:
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
    """Batches of at most TOKENS_AT_ONCE tokens, of examples of similar length, with the examples' indices."""
    for group in padded_groups([len(each.sequences) * each.length for each in examples], TOKENS_AT_ONCE):
        yield group, make_task_batch([examples[index] for index in group])
