"""Pairs of sentences, from files to ids: two columns of a table, two aligned files, or a zip of either.

A file without a known suffix has tabs between its columns. Lines that are left out or changed are logged, one line for
each kind.
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

import numpy as np

from foretell.config.training import TokenizerConfig
from foretell.data.data_use import hash_texts
from foretell.data.lines import TextFile, find_files
from foretell.data.split import Part
from foretell.data.table import FORMATS, Delimited, Table, list_names, without_index
from foretell.errors import DataError, TokenizerError, UsageError, as_path
from foretell.text import Tokenizer, train_tokenizer
from foretell.text.tokenizer_training import split_option, vocabulary_for

SIDES = ("source", "target")  # the columns of a table with named columns
NESTED = "translation"  # the column of an object with two texts, by language
TABS = Delimited("\t")
MORE = "lines with more than two columns, of which the first two are read"
LARGEST_VOCABULARY = 8192  # limit if the amount of text determines the size
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str

    def reversed(self) -> Pair:
        return Pair(self.target, self.source)


@dataclass(frozen=True)
class EncodedPair:
    """The ids of a pair: the source followed by the end token, and the target between start and end tokens."""

    source: np.ndarray
    target: np.ndarray

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of tokens that encoder and decoder read."""
        return len(self.source), len(self.target) - 1


def read_pairs(paths: Sequence[str | Path], *, reverse: bool = False, columns: Sequence[str] = ()) -> list[Pair]:
    """The pairs of a file with two columns, of two such tables, of two aligned files, or of a zip of any of these.

    A table with named columns has the columns `source` and `target`, or only two columns, or a column `translation`
    with an object of two texts, as in `{"translation": {"en": "Go.", "fr": "Va !"}}`. reverse: the second text is the
    source. columns: the names of the two columns to read.
    Further columns and pairs with an empty side are left out and logged. Raises UsageError for a wrong number of files,
    and DataError for files that are missing, not UTF-8, of unequal length or without two columns.
    """
    if len(paths) not in (1, 2):
        raise UsageError("give one file with two columns (source, tab, target), two aligned files, or a zip of either")
    files = [file for path in paths for file in find_files(as_path("pairs", path))]
    if len(files) not in (1, 2):
        names = ", ".join(Path(str(file)).name for file in files[:4])
        raise DataError(
            f"{paths[0]} holds {len(files)} texts{f' ({names})' if files else ''}; it should hold one or two"
        )
    counts: Counter[str] = Counter()
    is_aligned = len(files) == 2 and not all(file.suffix in FORMATS for file in files)
    if columns and (len(columns) != 2 or is_aligned):
        raise UsageError("--column is given twice, the source's and the target's, for files with a table")
    if is_aligned:
        pairs = align(files[0], files[1])
    else:
        pairs = [pair for file in files for pair in read_columns(file, columns, counts)]
    kept = [pair.reversed() if reverse else pair for pair in pairs if pair.source and pair.target]
    counts["pairs with an empty side left out"] += len(pairs) - len(kept)
    for what, count in counts.items():
        if count:
            logger.warning(f"{what}: {count:,}")
    if not kept:
        raise DataError(f"{paths[0]} holds no pair of sentences")
    return kept


def read_lines(file: TextFile) -> list[str]:
    return [line.removesuffix("\n") for line in file.text_lines()]


def read_columns(file: TextFile, columns: Sequence[str], counts: Counter[str]) -> list[Pair]:
    if file.suffix in FORMATS and file.suffix != ".tsv":
        table = Table(file)
        pairs = read_table(table, columns)
        names = without_index(table.first_columns()) if table.has_header_line and pairs else []
        if len(names) == 2 and not is_words(Pair(*names)):
            logger.warning(
                f"the first line, {list_names(names)}, is read as the names of the columns; if it is a pair, write "
                f"source,target above it: {file}"
            )
        return pairs
    return split_columns(file, columns, counts)


def split_columns(file: TextFile, columns: Sequence[str], counts: Counter[str]) -> list[Pair]:
    """The columns that the first line names, else the first two; empty lines are left out."""
    pairs: list[Pair] = []
    indices, has_names = list[int](), False
    for where, row in Table(file, otherwise=TABS).cells():
        cells = [as_line(cell) for cell in row]
        if not any(cells):
            continue
        if len(cells) == 1:
            raise DataError(
                f"{where}: one column; write source, a tab and the target, or give two files of lines, named .txt"
            )
        if not indices:
            names = columns or SIDES
            has_names = all(name in cells for name in names)
            if columns and not has_names:
                raise DataError(f"{where}: --column names two of its columns, which are {list_names(cells)}")
            indices = [cells.index(name) for name in names] if has_names else [0, 1]
            if has_names:
                continue
        counts[MORE] += len(cells) > 2 and not has_names
        pairs.append(Pair(*(cells[index] if index < len(cells) else "" for index in indices)))
    if not has_names and len(pairs) > 1:
        check_first_two(file, pairs, has_more=counts[MORE] > 0)
    return pairs


def check_first_two(file: TextFile, pairs: Sequence[Pair], *, has_more: bool) -> None:
    """Refuse ids as sources, as in Tatoeba's files with ids; report a first line that may name the columns."""
    if has_more and all(pair.source.isdecimal() for pair in pairs[1:]):
        raise DataError(f"{file}: its first column has only numbers; name two in its first line and with --column")
    if is_words(pairs[0]) and not is_words(pairs[1]):
        names = f"{pairs[0].source!r} and {pairs[0].target!r}"
        logger.warning(f"the first line, {names}, is read as a pair; if it names the columns, give both with --column")


def is_words(pair: Pair) -> bool:
    """True for two single words, such as the names of columns."""
    return all(re.fullmatch(r"[^\W\d][\w-]*", side) for side in (pair.source, pair.target))


def read_table(table: Table, columns: Sequence[str] = ()) -> list[Pair]:
    """The given columns, or `source` and `target`, or the only two; in each row or in its column `translation`."""
    pairs = []
    for row in table:
        nested = row.cells.get(NESTED)
        cells = nested if isinstance(nested, dict) else row.cells
        names = columns or (SIDES if all(name in cells for name in SIDES) else without_index(list(cells)))
        sides = [cells[name] or "" for name in names if name in cells and isinstance(cells[name], str | None)]
        if not len(sides) == len(names) == 2:
            raise DataError(
                f"{row.where}: a pair has the columns 'source' and 'target', or two columns, with a text each, or a "
                f"'{NESTED}' of two texts, or --column names two; its columns are {list_names(list(cells))}"
            )
        pairs.append(Pair(*map(as_line, sides)))
    return pairs


def as_line(cell: str) -> str:
    return re.sub(r"[\t\r\n]+", " ", cell).strip()


def align(first: TextFile, second: TextFile) -> list[Pair]:
    sides = [read_lines(file) for file in (first, second)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{first} has {len(sides[0]):,} lines and {second} {len(sides[1]):,}; they are not aligned")
    for file, side in zip((first, second), sides, strict=True):
        if any(side) and all("\t" in line for line in side if line):
            raise DataError(f"{file} has two columns; give it alone, or two files with a sentence per line")
    cleaned = ([line.replace("\t", " ").strip() for line in side] for side in sides)
    return [Pair(source, target) for source, target in zip(*cleaned, strict=True)]


def normalized(sentence: str) -> str:
    """A sentence in lower case without punctuation, so that near-duplicates are equal."""
    kept = "".join(" " if unicodedata.category(letter)[0] in "PZ" else letter for letter in sentence.lower())
    return " ".join(kept.split())


def is_held_out(sentence: str, fraction: float, salt: str = "validation") -> bool:
    """True for about `fraction` of all sentences, by a hash of the normalised sentence and the salt."""
    digest = hashlib.sha256(f"{salt} {normalized(sentence)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def hash_sources(pairs: Iterable[Pair]) -> np.ndarray:
    """The hashes of normalised sources, by which pairs are split."""
    return hash_texts(normalized(pair.source) for pair in pairs)


def split_pairs(pairs: Iterable[Pair], fraction: float, salt: str = "validation") -> dict[Part, list[Pair]]:
    """The training pairs and the held-out ones; all translations of a sentence are on the same side."""
    parts: dict[Part, list[Pair]] = {"train": [], "validation": []}
    for pair in pairs:
        parts["validation" if is_held_out(pair.source, fraction, salt) else "train"].append(pair)
    return parts


def without_known(pairs: Sequence[Pair], held_out: Sequence[Pair]) -> list[Pair]:
    """The training pairs whose source is not held out, ignoring case and punctuation."""
    known = {normalized(pair.source) for pair in held_out}
    kept = [pair for pair in pairs if normalized(pair.source) not in known]
    if not kept:
        raise DataError("every sentence to learn from is also held out; give other pairs as --dev")
    if len(kept) < len(pairs):
        logger.warning(f"pairs left out of the training because their source is held out: {len(pairs) - len(kept):,}")
    return kept


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of both languages, which may be the same, and the ids around a sentence.

    The source ends with the end token. The target begins with the start token and ends with the end token; if the
    tokenizer has no start token, it also begins with the end token, as in fairseq.
    """

    source: Tokenizer
    target: Tokenizer
    start_id: int
    source_end_id: int
    target_end_id: int

    @property
    def is_shared(self) -> bool:
        return self.source.fingerprint == self.target.fingerprint

    def encode_source(self, text: str) -> list[int]:
        """The ids that the encoder reads."""
        self.source.note_spelled([text])
        return [*self.source.encode(text), self.source_end_id]

    def encode_pairs(self, pairs: Sequence[Pair]) -> list[EncodedPair]:
        self.source.note_spelled(pair.source for pair in pairs)
        self.target.note_spelled(pair.target for pair in pairs)
        sources = self.source.encode_batch([pair.source for pair in pairs])
        targets = self.target.encode_batch([pair.target for pair in pairs])
        marks = (self.source_end_id, self.start_id, self.target_end_id)
        source_end, start, end = (np.array([mark], np.int32) for mark in marks)
        return [
            EncodedPair(np.concatenate((source, source_end)), np.concatenate((start, target, end)))
            for source, target in zip(sources, targets, strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of target ids, without special tokens."""
        return self.target.decode(list(ids), skip_special=True).strip()


def make_vocabulary(source: Tokenizer, target: Tokenizer) -> Vocabulary:
    """The vocabulary of two tokenizers; each needs a token that ends a text."""
    if source.end_id is None or target.end_id is None:
        raise TokenizerError("the tokenizer has no token that ends a text, and a translation needs one")
    start = target.end_id if target.start_id is None else target.start_id
    return Vocabulary(source, target, start, source.end_id, target.end_id)


def train_vocabulary(pairs: Sequence[Pair], config: TokenizerConfig, *, is_shared: bool) -> Vocabulary:
    """Train tokenizers on pairs: one for both languages, or one for each."""
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if is_shared:
        both = train_side([*sides[0], *sides[1]], config)
        return make_vocabulary(both, both)
    return make_vocabulary(*(train_side(side, config) for side in sides))


def train_side(texts: Sequence[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokenizer on texts; the default size of a BPE vocabulary depends on the amount of text."""
    size = config.vocab_size
    if size is None and config.kind == "bpe":
        size = vocabulary_for(sum(len(text.encode("utf-8")) for text in texts), LARGEST_VOCABULARY)
    return train_tokenizer(config.kind, texts, vocab_size=size, **split_option(config.kind, config.split))
