"""Random numbers that are a pure function of counters, so that a run can be resumed, split and replayed exactly.

Every number belongs to a *stream*, named by its purpose: (seed, step, module path, global row) for dropout, (seed,
sample index) for sampling, (seed, epoch) for the order of the data. Numbers in a stream are counted from 0. There is no
state, so streams cannot affect each other.

The generator is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014, figure
17): its state after n draws is `key + (n + 1) * GOLDEN`, so the n-th number can be computed directly. Measured on two
Zen 4 cores: the dropout bits of a (64, 256, 384) tensor take 6.6 ms, `bernoulli_` of the same tensor 50 ms.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
WORD = (1 << 64) - 1
WORDS_AT_ONCE = 2**16  # half a megabyte fits a core's cache, and small rows share the cost of a call


def stream_key(*names: int | str) -> int:
    """The 64-bit key of a stream: a hash of its name, a sequence of integers and strings."""
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def random_word(key: int, counter: int) -> int:
    """The `counter`-th number of a stream, uniform in [0, 2**64)."""
    word = (key + (counter + 1) * GOLDEN) & WORD
    word = ((word ^ (word >> SHIFTS[0])) * MULTIPLIERS[0]) & WORD
    word = ((word ^ (word >> SHIFTS[1])) * MULTIPLIERS[1]) & WORD
    return word ^ (word >> SHIFTS[2])


def uniform(key: int, counter: int) -> float:
    """The `counter`-th number of a stream, uniform in [0, 1) in steps of 2**-53."""
    return (random_word(key, counter) >> 11) * 2.0**-53


def random_words(keys: Tensor, count: int, first: int = 0) -> Tensor:
    """`count` numbers of `random_word` from `first` on, for many streams: (B,) int64 keys to (B, count) int64."""
    counters = torch.arange(first + 1, first + count + 1, device=keys.device).mul_(signed(GOLDEN))
    words = torch.empty(len(keys), count, dtype=torch.int64, device=keys.device)
    rows = max(1, WORDS_AT_ONCE // max(1, count))
    for part, part_keys in zip(words.split(rows), keys.split(rows), strict=True):
        torch.add(counters, part_keys[:, None], out=part)
        scratch = torch.empty_like(part)
        for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=False):
            xor_shifted(part, shift, scratch).mul_(signed(multiplier))
        xor_shifted(part, SHIFTS[-1], scratch)
    return words


def xor_shifted(words: Tensor, shift: int, scratch: Tensor) -> Tensor:
    """words ^= words >> shift, in place."""
    torch.bitwise_right_shift(words, shift, out=scratch)
    scratch.bitwise_and_((1 << (64 - shift)) - 1)  # int64 shifts copy the sign, SplitMix64 shifts in zeros
    return words.bitwise_xor_(scratch)


def signed(word: int) -> int:
    """Reinterpret 64 bits as a signed integer, for torch's int64."""
    return word - (1 << 64) if word >> 63 else word


def permutation(key: int, count: int) -> Tensor:
    """A random order of 0..count-1, (count,) int64: the ranks of the stream's first `count` numbers."""
    words = random_words(torch.tensor([signed(key)]), count)[0]
    return torch.argsort(words, stable=True)
