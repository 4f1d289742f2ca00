"""Pairs of sentences from files: two columns in one file, two aligned files, or a zip that holds either.

Text is UTF-8, read strictly. What is left out or changed is logged, one line for each kind.
"""

from __future__ import annotations

import hashlib
import logging
import os
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.data.compressed import COMPRESSIONS, open_compressed
from foretell.data.records import LineFile, iter_lines
from foretell.errors import DataError, UsageError
from foretell.files import open_regular

ARCHIVE_LIMIT = 2**32  # bytes of one member of a zip; a few kilobytes can unpack to any size
NOTES = ("readme", "license", "about")  # of these names, also after an underscore, are the notes in an archive

Part = Literal["train", "validation"]
Text = tuple[str, list[str]]  # the name of a file, and its lines

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(paths: Sequence[str | Path]) -> list[Pair]:
    """The pairs of one file with two columns separated by a tab, of two aligned files, or of a zip with one of these.

    Further columns and pairs with an empty side are left out, which is logged. Raises UsageError for another number
    of files, DataError for files that are missing, not UTF-8, of unequal length or without two columns.
    """
    if len(paths) not in (1, 2):
        raise UsageError("give one file with two columns (source, tab, target), two aligned files, or a zip of either")
    counts: Counter[str] = Counter()
    texts = [text for path in paths for text in read_texts(Path(path), counts)]
    if len(texts) not in (1, 2):
        names = ", ".join(Path(name).name for name, _ in texts[:4])
        raise DataError(
            f"{paths[0]} holds {len(texts)} texts{f' ({names})' if texts else ''}; it should hold one or two"
        )
    pairs = split_columns(*texts[0], counts) if len(texts) == 1 else align(*texts)
    kept = [pair for pair in pairs if pair.source and pair.target]
    counts["pairs with an empty side left out"] += len(pairs) - len(kept)
    for what, count in counts.items():
        if count:
            logger.warning(f"{what}: {count:,}")
    if not kept:
        raise DataError(f"{paths[0]} holds no pair of sentences")
    return kept


def read_texts(path: Path, counts: Counter[str]) -> list[Text]:
    """The lines of the text files that a path names, with their names: of one, or of those inside a zip."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the file with the pairs")
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    try:
        if path.suffix.lower() == ".zip":
            return read_archive(path, counts)
        if path.suffix.lower() in COMPRESSIONS:
            with open_compressed(path, is_one_text=False) as lines:
                return [(str(path), read_lines(str(path), lines, counts))]
        with open_regular(Path(os.path.realpath(path)), DataError) as file:  # a link that the user names is followed
            return [(str(path), read_lines(str(path), file, counts))]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def read_archive(path: Path, counts: Counter[str]) -> list[Text]:
    """The texts in a zip but its notes, such as _about.txt, in the order of their names."""
    texts = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir() and not is_note(member.filename)]
            for member in sorted(members, key=lambda member: member.filename):
                if member.file_size > ARCHIVE_LIMIT:
                    raise DataError(f"{path}: {member.filename} has {member.file_size:,} bytes; unpack the zip first")
                name = f"{path}: {member.filename}"
                with archive.open(member) as file:
                    texts.append((name, read_lines(name, file, counts)))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{path} is damaged or not a zip that can be read: {error}") from None
    return texts


def is_note(name: str) -> bool:
    """True for a file with notes about the others."""
    return Path(name).stem.lower().lstrip("_").startswith(NOTES) or Path(name).name.startswith(".")


def read_lines(name: str, file: LineFile, counts: Counter[str]) -> list[str]:
    """The lines of a file, without their ends."""

    def count(what: str, where: str) -> None:
        counts[what] += 1

    return [line.rstrip("\r\n") for line in iter_lines(file, name, count)]


def split_columns(name: str, lines: list[str], counts: Counter[str]) -> list[Pair]:
    """The first two columns of each line; empty lines are left out."""
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        source, tab, rest = line.partition("\t")
        if not tab:
            raise DataError(f"{name}, line {number}: one column; write source, a tab and the target, or give two files")
        target, more, _ = rest.partition("\t")
        counts["lines with more than two columns, of which the first two are read"] += bool(more)
        pairs.append(Pair(source.strip(), target.strip()))
    return pairs


def align(first: Text, second: Text) -> list[Pair]:
    """The lines of two files of the same length, one with the other."""
    names, sides = zip(first, second, strict=True)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{names[0]} has {len(sides[0]):,} lines and {names[1]} {len(sides[1]):,}; they are not aligned"
        )
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
