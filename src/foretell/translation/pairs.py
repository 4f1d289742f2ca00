"""Pairs of sentences from files: two columns of a table, or two aligned files, or a zip that holds either.

A TSV file or one without a known suffix has no header, and its quotes are text, as in Tatoeba's files. What is left out
or changed is logged, one line for each kind.
"""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.data.lines import Note, TextFile, find_files
from foretell.data.table import FORMATS, Table, list_names
from foretell.errors import DataError, UsageError

SIDES = ("source", "target")  # the columns of a table with named columns

Part = Literal["train", "validation"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(paths: Sequence[str | Path]) -> list[Pair]:
    """The pairs of one file with two columns, of two aligned files, or of a zip with one of these.

    A table with named columns has the columns `source` and `target`, or only two. Further columns and pairs with an
    empty side are left out, which is logged. Raises UsageError for another number of files, DataError for files that
    are missing, not UTF-8, of unequal length or without two columns.
    """
    if len(paths) not in (1, 2):
        raise UsageError("give one file with two columns (source, tab, target), two aligned files, or a zip of either")
    files = [file for path in paths for file in find_files(Path(path))]
    if len(files) not in (1, 2):
        names = ", ".join(Path(str(file)).name for file in files[:4])
        raise DataError(
            f"{paths[0]} holds {len(files)} texts{f' ({names})' if files else ''}; it should hold one or two"
        )
    counts: Counter[str] = Counter()
    if len(files) == 2:
        pairs = align(files[0], files[1], counts)
    elif files[0].suffix in FORMATS and files[0].suffix != ".tsv":
        pairs = read_table(Table(files[0], note=counting(counts)))
    else:
        pairs = split_columns(files[0], counts)
    kept = [pair for pair in pairs if pair.source and pair.target]
    counts["pairs with an empty side left out"] += len(pairs) - len(kept)
    for what, count in counts.items():
        if count:
            logger.warning(f"{what}: {count:,}")
    if not kept:
        raise DataError(f"{paths[0]} holds no pair of sentences")
    return kept


def counting(counts: Counter[str]) -> Note:
    """A note that is counted, wherever it was."""
    return lambda what, where: counts.update([what])


def read_lines(file: TextFile, counts: Counter[str]) -> list[str]:
    """The lines of a file, without their ends."""
    return [line.rstrip("\r\n") for line in file.lines(counting(counts))]


def split_columns(file: TextFile, counts: Counter[str]) -> list[Pair]:
    """The first two columns of each line; empty lines are left out."""
    pairs = []
    for number, line in enumerate(read_lines(file, counts), start=1):
        if not line.strip():
            continue
        source, tab, rest = line.partition("\t")
        if not tab:
            raise DataError(f"{file}, line {number}: one column; write source, a tab and the target, or give two files")
        target, more, _ = rest.partition("\t")
        counts["lines with more than two columns, of which the first two are read"] += bool(more)
        pairs.append(Pair(source.strip(), target.strip()))
    return pairs


def read_table(table: Table) -> list[Pair]:
    """The columns `source` and `target`, or the only two."""
    pairs = []
    for row in table:
        names = SIDES if all(name in row.cells for name in SIDES) else tuple(row.cells)
        sides = [row.cells[name] for name in names]
        if len(sides) != 2 or not all(isinstance(side, str) for side in sides):
            raise DataError(
                f"{row.where}: a pair has the columns 'source' and 'target', or two columns, with a text each; its "
                f"columns are {list_names(list(row.cells))}"
            )
        pairs.append(Pair(*(re.sub(r"[\t\r\n]+", " ", side).strip() for side in sides)))
    return pairs


def align(first: TextFile, second: TextFile, counts: Counter[str]) -> list[Pair]:
    """The lines of two files of the same length, one with the other."""
    sides = [read_lines(file, counts) for file in (first, second)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{first} has {len(sides[0]):,} lines and {second} {len(sides[1]):,}; they are not aligned")
    cleaned = ([line.replace("\t", " ").strip() for line in side] for side in sides)
    return [Pair(source, target) for source, target in zip(*cleaned, strict=True)]


# --- held-out pairs --------------------------------------------------------------------------------------------------


def normalized(sentence: str) -> str:
    """A sentence in lower case without punctuation, so that near-duplicates are the same."""
    kept = "".join(" " if unicodedata.category(letter)[0] in "PZ" else letter for letter in sentence.lower())
    return " ".join(kept.split())


def is_held_out(sentence: str, fraction: float, salt: str = "validation") -> bool:
    """True for about `fraction` of all sentences, decided by a hash of the normalised sentence and the salt."""
    digest = hashlib.sha256(f"{salt} {normalized(sentence)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def split_pairs(pairs: Iterable[Pair], fraction: float, salt: str = "validation") -> dict[Part, list[Pair]]:
    """The pairs to learn from and those held out; all translations of a sentence are on the same side."""
    parts: dict[Part, list[Pair]] = {"train": [], "validation": []}
    for pair in pairs:
        parts["validation" if is_held_out(pair.source, fraction, salt) else "train"].append(pair)
    return parts
