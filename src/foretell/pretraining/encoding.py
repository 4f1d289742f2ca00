"""Encodes documents into the splits of a token store, as joined texts or as separate rows."""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from foretell.config.training import DataConfig
from foretell.data.documents import AnsweredDocument, Document
from foretell.data.rows import loss_split
from foretell.data.shard_writer import TokenWriter
from foretell.data.split import Part, describe_row_split, describe_split
from foretell.errors import DataError, counted, shell_words
from foretell.evaluation.loss import has_bits_per_byte
from foretell.session.reporter import Reporter
from foretell.text import Tokenizer
from foretell.text.encoding_pool import open_encoding
from foretell.text.tokenizer import in_groups

GROUP_SIZE = 1_000_000  # characters encoded at a time
SMALLEST_RATED = 10**6  # smallest text in bytes for which the speed is logged

logger = logging.getLogger(__name__)


class Speed:
    """Progress and speed of tokenizing a text."""

    def __init__(self, total: int, reporter: Reporter):
        self.total, self.reporter = total, reporter
        self.done = 0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def watch(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the same pieces; each counts as done when the next one is requested."""
        for piece in pieces:
            yield piece
            self.done += len(piece.encode("utf-8"))
            self.reporter.tokenizing(self.done, self.total, self.seconds)

    def log(self) -> None:
        """Log the speed, if there was enough text to measure it."""
        if self.total >= SMALLEST_RATED:
            rate = self.total / 1e6 / self.seconds
            logger.info(f"tokenized   {self.total / 1e6:,.1f} MB in {self.seconds:.1f} s, {rate:.1f} MB/s")


class Unit(NamedTuple):
    """A text to encode: a part of a document, or all of it. `document` counts the documents from 0."""

    document: int
    part: Part
    source: Document
    text: str


class Encoder(ABC):
    """Writes documents into the splits of a store. `config` decides which special tokens are read in their text.

    special_names: names to count where they are read as ordinary text; default: all special tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: DataConfig,
        writers: Mapping[str, TokenWriter],
        special_names: re.Pattern[str] | None = None,
    ):
        self.config, self.writers = config, writers
        self.tokenizer = tokenizer.reading(config.special)
        self.special_names, self.num_spelled = special_names or self.tokenizer.spelled_names, Counter[str]()

    def add_all(self, parts: Iterable[tuple[Part, Document]], speed: Speed, workers: int = 1) -> None:
        """Write documents into their splits, in their order; the texts are encoded in `workers` processes."""
        with open_encoding(self.tokenizer, self.config.special, workers) as encoding:
            grouped = in_groups(self._units(parts, speed), lambda unit: len(unit.text), GROUP_SIZE)
            groups = ((units, [unit.text for unit in units]) for units in grouped)
            encoded = chain.from_iterable(zip(units, ids, strict=True) for units, ids in encoding.encode(groups))
            for (_, part, document), texts in groupby(encoded, key=lambda pair: pair[0][:3]):
                self.write(part, document, map(itemgetter(1), texts))  # which may be more than memory holds

    def _units(self, parts: Iterable[tuple[Part, Document]], speed: Speed) -> Iterator[Unit]:
        for number, (part, document) in enumerate(parts):
            is_empty = True
            for text in self.texts(speed.watch(document.pieces()), document):
                self.num_spelled.update(self.special_names.findall(text))
                yield Unit(number, part, document, text)
                is_empty = False
            if is_empty:
                yield Unit(number, part, document, "")

    def note_spelled(self) -> None:
        """Log the names of special tokens that were read as ordinary text."""
        counts = [(name, count) for name, count in self.num_spelled.most_common() if name not in self.config.special]
        if counts:
            listed = ", ".join(f"{name!r} ({counted(count, 'time')})" for name, count in counts[:8])
            advice = f"--special {shell_words(counts[0][0])} reads it as the special token"
            logger.warning(f"{listed} in the data is read as ordinary text; {advice}")

    @abstractmethod
    def texts(self, pieces: Iterable[str], document: Document) -> Iterator[str]:
        """The texts of a document to encode separately, from its pieces."""

    @abstractmethod
    def write(self, part: Part, document: Document, ids: Iterable[np.ndarray]) -> None:
        """Write one document into a split, given the ids of its texts."""

    @abstractmethod
    def extra(self) -> dict[str, Any]:
        """Entries about the documents in the index of the store."""


class DocumentEncoder(Encoder):
    """Documents of any length, each between the tokenizer's start and end tokens, if it has them."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.sources: set[str] = set()

    def texts(self, pieces: Iterable[str], document: Document) -> Iterator[str]:
        return self.tokenizer.cut_stream(pieces)

    def write(self, part: Part, document: Document, ids: Iterable[np.ndarray]) -> None:
        self.sources.add(document.source)
        self.writers[part].add_pieces(self._between_start_and_end(ids), document.utf8_bytes)

    def _between_start_and_end(self, ids: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """The ids with the tokenizer's start and end tokens, unless they have these already."""
        pieces = (piece for piece in ids if len(piece))
        piece = next(pieces, np.empty(0, np.int32))
        yield np.array(self.tokenizer.missing_start(piece), dtype=np.int32)
        for following in pieces:
            yield piece
            piece = following
        yield piece
        if not set(piece[-1:].tolist()) & set(self.tokenizer.end_ids):
            yield np.array(self.tokenizer.end_ids[:1], dtype=np.int32)

    def extra(self) -> dict[str, Any]:
        split_rule = describe_split(len(self.sources), self.config.validation_fraction)
        return {"split_rule": split_rule, "bits_per_byte": has_bits_per_byte(self.tokenizer)}


class RowEncoder(Encoder):
    """Rows of `Tokenizer.make_row`; prompt and answer are encoded apart, so that a prompt alone has the same ids."""

    def __init__(self, *options: Any):
        super().__init__(*options)
        self.count = 0
        self.longest = (0, "")  # tokens and source of the longest row

    def texts(self, pieces: Iterable[str], document: Document) -> Iterator[str]:
        return iter(list(pieces) if isinstance(document, AnsweredDocument) else ["".join(pieces)])

    def write(self, part: Part, document: Document, ids: Iterable[np.ndarray]) -> None:
        self.count += 1
        row, prompt_length = self.tokenizer.make_row(text_ids.tolist() for text_ids in ids)
        start = max(1, prompt_length) if self.config.loss_on == "answer" else 1  # the first target
        if len(row) <= start:
            raise DataError(f"{document.source}: a row of {len(row)} tokens has none to predict; remove it")
        if len(row) > self.longest[0]:
            self.longest = (len(row), document.source)
        self.writers[part].add_document(np.array(row), document.utf8_bytes)
        if self.config.loss_on == "answer":
            loss_mask = (np.arange(len(row)) >= start).astype(np.uint8)
            self.writers[loss_split(part)].add_document(loss_mask, document.utf8_bytes)

    def extra(self) -> dict[str, Any]:
        return {
            "split_rule": describe_row_split(self.count, self.config.validation_fraction),
            "rows": {"loss_on": self.config.loss_on, "longest": self.longest[1]},
        }
