"""The tokens of a run as batches: windows of one long text, or separate rows. Any past batch can be replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from foretell.config.training import Config, DataConfig
from foretell.data.batch import Batch
from foretell.data.loader import Loader, iter_evaluation_batches
from foretell.data.rows import PackedRows, PaddedRows, RowBatches, RowStream
from foretell.data.shards import TokenStore
from foretell.errors import DataError
from foretell.pretraining.tokens import TokenizedText

PROMPT_TOKENS = 8


class Extent(NamedTuple):
    """The position of a row of a batch in the tokens of the training text, including its last target.

    start: None if several rows of the text are packed into it.
    """

    start: int | None
    tokens: int


class TrainingData(ABC):
    """The batches of training and of evaluation."""

    batch_size: int
    held_out_tokens: int  # number of possible targets; 0: nothing is held out
    described = ""  # the form of rows, for people

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""

    @abstractmethod
    def evaluation_batches(self, max_tokens: int | None = None) -> Iterator[Batch]:
        """Batches of all held-out tokens, or of about `max_tokens` evenly spread over them."""

    @abstractmethod
    def extent(self, index: int) -> Extent:
        """The place of the `index`-th row of the training, counted over all batches."""

    @abstractmethod
    def beginning(self) -> list[int]:
        """A few ids to continue, from the held-out text if there is one, else from the training text."""


class WindowData(TrainingData):
    """Windows of one long text, in which documents follow each other."""

    def __init__(self, store: TokenStore, config: Config):
        self.window_length, self.batch_size = config.window_length, config.training.batch_size
        self.document_mask = config.data.document_mask
        self.train, self.held_out = store.split("train"), store.split("validation")
        self.held_out_tokens = max(0, len(self.held_out) - 1)
        self.loader = Loader(
            self.train,
            self.window_length,
            self.batch_size,
            config.training.seed,
            document_mask=self.document_mask,
            shuffle_documents=config.data.shuffle_documents,
        )

    def batch(self, step: int) -> Batch:
        return self.loader.batch(step)

    def evaluation_batches(self, max_tokens: int | None = None) -> Iterator[Batch]:
        return iter_evaluation_batches(
            self.held_out, self.window_length, self.batch_size, max_tokens, self.document_mask
        )

    def extent(self, index: int) -> Extent:
        return Extent(self.loader.window_start(index), self.window_length + 1)

    def beginning(self) -> list[int]:
        stream = self.held_out if len(self.held_out) else self.train
        return stream.read(0, min(PROMPT_TOKENS, len(stream), max(1, self.window_length // 2))).tolist()


class RowData(TrainingData):
    """Separate rows. Raises DataError for a row that does not fit the context, and for a store of joined texts."""

    def __init__(self, store: TokenStore, config: Config):
        self.batch_size = config.training.batch_size
        self.streams = [RowStream.open(store, name) for name in ("train", "validation")]
        self.held_out_tokens = len(self.streams[1].tokens) - len(self.streams[1])
        self.train, self.held_out = (arrange(rows, config) for rows in self.streams)
        train, held_out = map(len, self.streams)
        loss = "the answers" if config.data.loss_on == "answer" else "all tokens"
        self.described = f"{train:,} and {held_out:,}, {self.train.described}; loss on {loss}"

    def batch(self, step: int) -> Batch:
        return self.train.batch(step, self.batch_size)

    def evaluation_batches(self, max_tokens: int | None = None) -> Iterator[Batch]:
        return self.held_out.iter_batches(self.batch_size, max_tokens)

    def extent(self, index: int) -> Extent:
        rows, stream = self.train.rows_in(self.train.order.item(index)), self.streams[0]
        start = int(stream.starts[rows[0]]) if len(rows) == 1 else None
        return Extent(start, int(stream.lengths[rows].sum()))

    def beginning(self) -> list[int]:
        train, held_out = self.streams
        return (held_out if len(held_out) else train).prompt(0)


def arrange(rows: RowStream, config: Config) -> RowBatches:
    seed = config.training.seed
    return PackedRows(rows, config.window_length, seed) if config.data.packing else PaddedRows(rows, seed)


def make_training_data(text: TokenizedText, config: Config) -> TrainingData:
    return (RowData if config.data.rows else WindowData)(text.store, config)


def check_store(store: TokenStore, config: DataConfig) -> None:
    """Refuse a store that was not made for joined or separate rows, or for the loss mask, as configured."""
    written = store.extra.get("rows")
    if written is None and not config.rows:
        return
    if not isinstance(written, dict):
        raise DataError(f"{store.directory}: its texts were joined, not kept as rows; make it again from the texts")
    if not config.rows:
        raise DataError(f"{store.directory}: its texts are separate rows; add --rows")
    if written.get("loss_on") != config.loss_on:
        raise DataError(
            f"{store.directory}: its rows have the loss on {written.get('loss_on')!r}; "
            f"--loss-on {config.loss_on} needs the texts"
        )
