"""The tokens of a run as batches: windows of one long text, or separate rows. Any past batch can be replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from foretell.config.training import Config, DataConfig
from foretell.data.batch import Batch
from foretell.data.loader import EpochOrder, Loader, RowStream, iter_evaluation_batches, iter_row_batches
from foretell.data.shards import TokenStore
from foretell.errors import DataError
from foretell.pretraining.tokens import TokenizedText

PROMPT_TOKENS = 8


class Extent(NamedTuple):
    """The position of a row of a batch in the tokens of the training text, including its last target."""

    start: int
    tokens: int


class TrainingData(ABC):
    """The batches of training and of evaluation."""

    batch_size: int
    held_out_tokens: int  # number of possible targets; 0: nothing is held out

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
        self.train, self.held_out = RowStream.open(store, "train"), RowStream.open(store, "validation")
        self.held_out_tokens = len(self.held_out.tokens) - len(self.held_out)
        self.order = EpochOrder("row order", config.training.seed, len(self.train))

    def batch(self, step: int) -> Batch:
        return self.train.batch(self.order.items(step, self.batch_size))

    def evaluation_batches(self, max_tokens: int | None = None) -> Iterator[Batch]:
        return iter_row_batches(self.held_out, self.batch_size, max_tokens)

    def extent(self, index: int) -> Extent:
        row = self.order.item(index)
        return Extent(int(self.train.starts[row]), int(self.train.lengths[row]))

    def beginning(self) -> list[int]:
        rows = self.held_out if len(self.held_out) else self.train
        return rows.prompt(0)


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
