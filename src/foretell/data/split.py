"""The split into training and validation text: by position, in one pass, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Literal

from foretell.data.documents import Document
from foretell.errors import UsageError

Part = Literal["train", "validation"]

FEW_DOCUMENTS = 20  # with fewer, every document is cut; otherwise whole documents are held out
FEW_ROWS = 50  # with fewer, none is held out, and a training is to learn them by heart
SMALLEST_FRACTION = 1e-6
LARGEST_FRACTION = 0.5


def split_documents(
    documents: Iterable[Document], fraction: float = 0.1, seed: int = 0
) -> Iterator[tuple[Part, Document]]:
    """Yield each document, or its two parts, with its part of the split, in the order of the documents.

    Fewer than 20 documents: the last `fraction` of each is held out, cut after the nearest line break within 2% of the
    document, else between characters.
    20 or more: one of every round(1 / fraction) consecutive documents is held out, chosen by a hash of (seed, group),
    so that appending documents does not change the split of earlier ones, and both parts have at least one.
    At most 20 documents are in memory. A fraction of 0 holds nothing out.

    Raises UsageError for a fraction that is neither 0 nor between 0.000001 and 0.5.
    """
    _check_fraction(fraction)
    return _split(iter(documents), fraction, seed)


def split_rows(documents: Iterable[Document], fraction: float = 0.1) -> Iterator[tuple[Part, Document]]:
    """Like `split_documents`, but no document is cut: with fewer than FEW_ROWS, nothing is held out."""
    _check_fraction(fraction)
    iterator = iter(documents)
    first = list(islice(iterator, FEW_ROWS))
    return _split(chain(first, iterator), fraction if len(first) == FEW_ROWS else 0, seed=0)


def describe_row_split(rows: int, fraction: float = 0.1) -> str:
    if fraction != 0 and rows < FEW_ROWS:
        return f"nothing is held out for validation of fewer than {FEW_ROWS} rows"
    return describe_split(rows, fraction).replace("document", "row")


def describe_split(documents: int, fraction: float = 0.1, seed: int = 0) -> str:
    if fraction == 0:
        return "nothing is held out for validation"
    if documents < FEW_DOCUMENTS:
        return f"validation is the last {fraction:.3g} of each document (fewer than {FEW_DOCUMENTS} documents)"
    return f"validation is one whole document in every {round(1 / fraction)}, chosen by seed {seed}"


def _check_fraction(fraction: float) -> None:
    if fraction != 0 and not SMALLEST_FRACTION <= fraction <= LARGEST_FRACTION:
        raise UsageError(f"validation fraction {fraction}: give 0, or a number from {SMALLEST_FRACTION:f} to 0.5")


def _split(documents: Iterator[Document], fraction: float, seed: int) -> Iterator[tuple[Part, Document]]:
    if fraction == 0:
        yield from (("train", document) for document in documents)
        return
    first = list(islice(documents, FEW_DOCUMENTS))
    if len(first) < FEW_DOCUMENTS:
        for document in first:
            yield from _cut(document, fraction)
    else:
        yield from _draw(chain(first, documents), round(1 / fraction), seed)


def _cut(document: Document, fraction: float) -> Iterator[tuple[Part, Document]]:
    parts: tuple[Part, Part] = ("train", "validation")
    yield from ((part, piece) for part, piece in zip(parts, document.cut(fraction), strict=True) if any(piece.pieces()))


def _draw(documents: Iterable[Document], group_size: int, seed: int) -> Iterator[tuple[Part, Document]]:
    chosen = -1
    for index, document in enumerate(documents):
        group, position = divmod(index, group_size)
        if position == 0:
            chosen = _chosen_position(seed, group, group_size)
        yield ("validation" if position == chosen else "train"), document


def _chosen_position(seed: int, group: int, group_size: int) -> int:
    # There are at least 20 documents, so a position among the first 20 of the first group always exists.
    positions = min(group_size, FEW_DOCUMENTS) if group == 0 else group_size
    digest = hashlib.sha256(f"foretell split {seed} {group}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % positions
