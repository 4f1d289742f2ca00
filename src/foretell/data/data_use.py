"""A sketch of the data that a model was trained and selected on; it is saved with the model, for evaluations.

Each item of the data has a 64-bit hash: a row, a pair, a conversation, a window of tokens, or a value of a series. The
MOST_KEPT smallest hashes are kept. If there are more, they are a random sample, and an evaluation looks up only those
of its items whose hashes are at most the largest one that is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from foretell.errors import CheckpointError
from foretell.storage.safetensors_files import open_tensors, save_tensors

if TYPE_CHECKING:
    from foretell.data.rows import Tokens

DATA_USE = "data_use.safetensors"
PARTS = ("trained", "selected")
MOST_KEPT = 2**16  # half a megabyte
WINDOW = 48  # tokens of a window of text; not compared with other lengths
EVERY = 8  # of the windows of a text, which overlap, about one of EVERY counts
BLOCK = 2**20  # tokens hashed at a time
NONE = np.zeros(0, np.uint64)
FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class DataUse:
    """Hashes of the items that a model was trained on, and of those that its checkpoint or settings were chosen on."""

    trained: np.ndarray
    selected: np.ndarray

    @classmethod
    def of(cls, trained: Iterable[np.ndarray], selected: Iterable[np.ndarray]) -> Self:
        """The sketch of two sets of hashes, each given in parts."""
        return cls(smallest(trained), smallest(selected))

    def joined(self, other: DataUse | None) -> DataUse:
        """The use by a model that was trained from another one."""
        return self if other is None else DataUse.of(*zip(*(vars(use).values() for use in (self, other)), strict=True))

    def shares(self, hashes: np.ndarray) -> tuple[float, float]:
        """The shares of these items that the model was trained on, and that it was only selected on."""
        is_trained, is_selected = (  # hashes outside the sample's range are left out
            np.isin(hashes if len(kept) < MOST_KEPT else hashes[hashes <= kept[-1]], kept)
            for kept in (self.trained, self.selected)
        )
        return share(is_trained), min(share(is_selected), 1 - share(is_trained))

    def save(self, directory: Path) -> None:
        tensors = {name: torch.from_numpy(kept.view(np.int64)) for name, kept in vars(self).items()}
        save_tensors(directory / DATA_USE, tensors)

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """The sketch in the directory of a saved model; None for a model without one."""
        path = directory / DATA_USE
        if not path.exists():
            return None
        with open_tensors(path) as file:
            if set(file.keys()) != set(PARTS):
                raise CheckpointError(f"{path} has the tensors {', '.join(file.keys())}; it is damaged")
            kept = {name: file.get_tensor(name) for name in PARTS}
        if any(each.dtype != torch.int64 or each.dim() != 1 or len(each) > MOST_KEPT for each in kept.values()):
            raise CheckpointError(f"{path} does not hold hashes; it is damaged")
        return cls(**{name: each.numpy().view(np.uint64) for name, each in kept.items()})


def smallest(parts: Iterable[np.ndarray]) -> np.ndarray:
    kept = NONE
    for hashes in parts:
        kept = np.unique(np.concatenate([kept, hashes]))[:MOST_KEPT]
    return kept


def share(flags: np.ndarray) -> float:
    return float(flags.mean()) if len(flags) else 0.0


# --- hashes of items --------------------------------------------------------------------------------------------------


def hash_texts(texts: Iterable[str]) -> np.ndarray:
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers of 64 bits with all bits mixed (Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators")."""
    numbers = numbers + np.uint64(FACTOR)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def hash_spans(numbers: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The hash of each span of numbers, by prefix sums of a polynomial modulo 2^64; its position does not matter."""
    powers, inverses = (
        np.cumprod(np.full(len(numbers) + 1, factor, np.uint64)) for factor in (FACTOR, pow(FACTOR, -1, 2**64))
    )
    sums = np.append(np.zeros(1, np.uint64), np.cumsum(mixed(numbers.astype(np.uint64)) * powers[:-1]))
    lengths = (ends - starts).astype(np.uint64)
    return mixed((sums[ends] - sums[starts]) * inverses[starts] + lengths)


def hash_tokens(ids: np.ndarray, documents: np.ndarray, *, is_whole: bool) -> np.ndarray:
    """Hashes of documents (`is_whole`), or of their windows; a document that is shorter than a window is one item.

    documents: the number of the document of each id, in ascending order.
    """
    if not len(ids):
        return NONE
    starts = np.flatnonzero(np.diff(documents, prepend=-1))
    ends = np.append(starts[1:], len(ids))
    if is_whole:
        return hash_spans(ids, starts, ends)
    is_short = ends - starts < WINDOW
    first = np.arange(max(0, len(ids) - WINDOW + 1))
    first = first[documents[first] == documents[first + WINDOW - 1]]
    windows = hash_spans(ids, first, first + WINDOW)
    return np.concatenate([hash_spans(ids, starts[is_short], ends[is_short]), windows[windows % EVERY == 0]])


def hash_documents(
    documents: Sequence[Sequence[int] | np.ndarray], dropped: Iterable[int] = (), *, is_whole: bool
) -> np.ndarray:
    """`hash_tokens` of documents without the ids in `dropped`, such as start and end tokens."""
    numbers = np.repeat(np.arange(len(documents)), [len(each) for each in documents])
    ids = np.concatenate([np.zeros(0, np.int64), *documents])
    kept = ~np.isin(ids, list(dropped))
    return hash_tokens(ids[kept], numbers[kept], is_whole=is_whole)


def hash_stream(stream: Tokens, dropped: Iterable[int] = (), *, is_whole: bool) -> Iterator[np.ndarray]:
    """`hash_documents` of a split, BLOCK tokens at a time; a document is cut between two blocks."""
    starts = stream.document_starts
    for at in range(0, len(stream), BLOCK):
        ids = stream.read(at, min(BLOCK, len(stream) - at))
        numbers = np.searchsorted(starts, np.arange(at, at + len(ids)), "right")
        kept = ~np.isin(ids, list(dropped))
        yield hash_tokens(ids[kept], numbers[kept], is_whole=is_whole)
