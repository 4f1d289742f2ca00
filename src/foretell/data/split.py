"""Which text is held out for validation: decided by position, streaming, the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Literal, get_args

from foretell.data.large import LargeDocument
from foretell.data.sources import AnyDocument, Document
from foretell.errors import UsageError

Part = Literal["train", "validation"]

FEW_DOCUMENTS = 20  # below this every document is cut; from here on whole documents are held out
CUT_SLACK = 0.02  # of a document's characters: how far the cut may move to fall on a line break
SMALLEST_FRACTION = 1e-6
LARGEST_FRACTION = 0.5


def split_documents(
    documents: Iterable[AnyDocument], fraction: float = 0.1, seed: int = 0
) -> Iterator[tuple[Part, AnyDocument]]:
    """Each document, or the two pieces of it, with the part it belongs to, in the documents' order.

    Fewer than 20 documents: the last `fraction` of each one's characters is held out, cut after the line break nearest
    to that point where one lies within 2% of the document, else between characters; the pieces joined are the document.
    20 or more: of every round(1 / fraction) documents in a row exactly one is held out, chosen by a hash of
    (seed, group), so that documents appended later change nothing for those before, and never both parts stay without
    one. At most 20 documents are in memory. A fraction of 0 holds nothing out.

    Raises UsageError for a fraction that is neither 0 nor between 0.000001 and 0.5.
    """
    if fraction != 0 and not SMALLEST_FRACTION <= fraction <= LARGEST_FRACTION:
        raise UsageError(f"validation fraction {fraction}: give 0, or a number from {SMALLEST_FRACTION:f} to 0.5")
    return _split(iter(documents), fraction, seed)


def describe_split(documents: int, fraction: float = 0.1, seed: int = 0) -> str:
    """The rule that `split_documents` follows for this number of documents, as a sentence."""
    if fraction == 0:
        return "nothing is held out for validation"
    if documents < FEW_DOCUMENTS:
        return f"validation is the last {fraction:.3g} of each document (fewer than {FEW_DOCUMENTS} documents)"
    return f"validation is one whole document in every {_group_size(fraction)}, chosen by seed {seed}"


def _split(documents: Iterator[AnyDocument], fraction: float, seed: int) -> Iterator[tuple[Part, AnyDocument]]:
    if fraction == 0:
        yield from (("train", document) for document in documents)
        return
    first = list(islice(documents, FEW_DOCUMENTS))
    if len(first) < FEW_DOCUMENTS:
        for document in first:
            yield from _cut(document, fraction)
    else:
        yield from _draw(chain(first, documents), _group_size(fraction), seed)


def _cut(document: AnyDocument, fraction: float) -> Iterator[tuple[Part, AnyDocument]]:
    if isinstance(document, LargeDocument):  # by bytes, so that it need not be read
        yield from zip(get_args(Part), document.cut(fraction, CUT_SLACK), strict=True)
        return
    text, at = document.text, _cut_position(document.text, fraction)
    if text[:at]:
        yield "train", Document(text[:at], document.source)
    if text[at:]:
        yield "validation", Document(text[at:], document.source)


def _cut_position(text: str, fraction: float) -> int:
    """Where validation starts, with at least one character on each side of a text of two or more."""
    if len(text) < 2:
        return len(text)
    target = min(max(round(len(text) * (1 - fraction)), 1), len(text) - 1)
    slack = int(len(text) * CUT_SLACK)
    low, high = max(target - slack, 1), min(target + slack, len(text) - 1)
    # A cut at p follows a line break where text[p - 1] is one.
    before = text.rfind("\n", low - 1, target) + 1
    after = text.find("\n", target, high) + 1
    near = [position for position in (before, after) if position]
    return min(near, key=lambda position: abs(position - target), default=target)


def _draw(documents: Iterable[AnyDocument], group_size: int, seed: int) -> Iterator[tuple[Part, AnyDocument]]:
    chosen = -1
    for index, document in enumerate(documents):
        group, position = divmod(index, group_size)
        if position == 0:
            chosen = _chosen_position(seed, group, group_size)
        yield ("validation" if position == chosen else "train"), document


def _group_size(fraction: float) -> int:
    return round(1 / fraction)


def _chosen_position(seed: int, group: int, group_size: int) -> int:
    # There are at least 20 documents, so that a place among the first 20 of the first group is sure to be reached.
    places = min(group_size, FEW_DOCUMENTS) if group == 0 else group_size
    digest = hashlib.sha256(f"foretell split {seed} {group}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % places
