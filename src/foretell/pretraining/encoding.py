"""From documents to ids in the splits of a token store: texts that are joined, and rows that are not."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from foretell.config import DataConfig
from foretell.data.documents import AnsweredDocument, Document
from foretell.data.row_stream import loss_split
from foretell.data.shard_writer import TokenWriter
from foretell.data.split import Part, describe_row_split, describe_split
from foretell.errors import DataError
from foretell.session.reporter import Reporter
from foretell.text import Tokenizer

SMALLEST_RATED = 10**6  # bytes of text for which the speed is logged

logger = logging.getLogger(__name__)


class Speed:
    """How much of a text is tokenized, and how fast."""

    def __init__(self, total: int, reporter: Reporter):
        self.total, self.reporter = total, reporter
        self.done = 0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def watch(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the same pieces; each counts as done when the next one is asked for."""
        for piece in pieces:
            yield piece
            self.done += len(piece.encode("utf-8"))
            self.reporter.tokenizing(self.done, self.total, self.seconds)

    def log(self) -> None:
        """Log the speed, if there was enough text to measure it."""
        if self.total >= SMALLEST_RATED:
            rate = self.total / 1e6 / self.seconds
            logger.info(f"tokenized   {self.total / 1e6:,.1f} MB in {self.seconds:.1f} s, {rate:.1f} MB/s")


class Encoder(ABC):
    """Writes documents into the splits of a store; special tokens are read in their text as `config` allows."""

    def __init__(self, tokenizer: Tokenizer, config: DataConfig, writers: Mapping[str, TokenWriter]):
        self.config, self.writers = config, writers
        self.tokenizer = tokenizer.reading(config.special)

    @abstractmethod
    def add(self, part: Part, document: Document, speed: Speed) -> None:
        """Write one document into a split."""

    @abstractmethod
    def extra(self) -> dict[str, Any]:
        """What the index of the store says about the documents."""


class DocumentEncoder(Encoder):
    """Documents of any length, each between the tokenizer's start and end tokens, if it has them."""

    def __init__(self, tokenizer: Tokenizer, config: DataConfig, writers: Mapping[str, TokenWriter]):
        super().__init__(tokenizer, config, writers)
        self.sources: set[str] = set()
        self.start = np.array(tokenizer.start_ids, dtype=np.int32)
        self.end = np.array([] if tokenizer.end_id is None else [tokenizer.end_id], dtype=np.int32)

    def add(self, part: Part, document: Document, speed: Speed) -> None:
        self.sources.add(document.source)
        ids = self.tokenizer.encode_stream(speed.watch(document.pieces()))
        self.writers[part].add_pieces(chain([self.start], ids, [self.end]), document.utf8_bytes)

    def extra(self) -> dict[str, Any]:
        return {"split_rule": describe_split(len(self.sources), self.config.validation_fraction)}


class RowEncoder(Encoder):
    """Rows, each with the tokenizer's start token, and its end token unless the text ends with it.

    Prompt and answer are encoded apart, so that a prompt alone has the same ids when the model is asked.
    """

    def __init__(self, tokenizer: Tokenizer, config: DataConfig, writers: Mapping[str, TokenWriter]):
        super().__init__(tokenizer, config, writers)
        self.count = 0
        self.longest = (0, "")  # tokens and source

    def add(self, part: Part, document: Document, speed: Speed) -> None:
        self.count += 1
        texts = list(speed.watch(document.pieces()))
        answer = self.tokenizer.encode(texts.pop()) if isinstance(document, AnsweredDocument) else []
        prompt = [*self.tokenizer.start_ids, *self.tokenizer.encode("".join(texts))]
        ids = [*prompt, *answer]
        ends = self.tokenizer.end_ids[:1]
        ids += [] if tuple(ids[-1:]) == ends else ends
        first = max(1, len(prompt)) if self.config.loss_on == "answer" else 1  # the first target
        if len(ids) <= first:
            raise DataError(f"{document.source}: a row of {len(ids)} tokens has none to predict; remove it")
        if len(ids) > self.longest[0]:
            self.longest = (len(ids), document.source)
        self.writers[part].add_document(np.array(ids), document.utf8_bytes)
        if self.config.loss_on == "answer":
            self.writers[loss_split(part)].add_document(
                (np.arange(len(ids)) >= first).astype(np.uint8), document.utf8_bytes
            )

    def extra(self) -> dict[str, Any]:
        return {
            "split_rule": describe_row_split(self.count, self.config.validation_fraction),
            "rows": {"loss_on": self.config.loss_on, "longest": self.longest[1]},
        }
