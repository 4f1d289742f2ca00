"""From texts to token shards: split off the validation text, make a tokenizer from the rest, store the ids."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from foretell.config.training import DataConfig, TokenizerConfig
from foretell.data.documents import Document
from foretell.data.rows import loss_split
from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import SplitRecord, TokenStore
from foretell.data.split import Part, split_documents, split_rows
from foretell.errors import DataError
from foretell.pretraining.encoding import DocumentEncoder, RowEncoder, Speed
from foretell.session.reporter import Reporter
from foretell.storage.files import TOKENIZER_FILE, sync
from foretell.text import Tokenizer, load_tokenizer, train_tokenizer
from foretell.text.streaming import AFTER_WORD, iter_pieces
from foretell.text.tokenizer_json import LIKE_SPECIAL
from foretell.text.tokenizer_training import split_option, vocabulary_for

logger = logging.getLogger(__name__)

OLD_DOMAIN = "old_domain"  # the name of the split
SIZED = {"bpe": "byte-pair tokens", "words": "words, rarer ones unknown"}  # kinds with a chosen vocabulary size
SAMPLE_TOKENS = 2**20  # of the store, to count unknown ones
SAMPLE_BYTES = 2**25  # text to learn a vocabulary from; more changes it little and takes longer
Source = Callable[[], Iterable[Document]]  # documents that can be read more than once


@dataclass(frozen=True)
class TokenizedText:
    """A tokenizer and a store of its ids, with a description of how validation was split off."""

    tokenizer: Tokenizer
    store: TokenStore
    split_rule: str


def tokenize_text(
    source: Source,
    tokenizer_config: TokenizerConfig,
    data_config: DataConfig,
    directory: Path,
    reporter: Reporter,
    tokenizer: Tokenizer | None = None,
    old_domain: OldDomain | None = None,
    workers: int = 1,
) -> TokenizedText:
    """Write the ids of all documents into `directory`. Without a tokenizer, one is made from the training part.

    The text of an old domain becomes a separate split. Texts are encoded in `workers` processes; the files do not
    depend on their number.

    Memory stays bounded for any length of text, if no single record of a table or list is too long.
    """
    special_names = LIKE_SPECIAL if tokenizer is None else None
    tokenizer = tokenizer or make_tokenizer(source, tokenizer_config, data_config)
    speed = Speed(sum(document.utf8_bytes for document in source()), reporter)
    records, extra = write_splits(source, tokenizer, data_config, directory, speed, workers, special_names)
    speed.log()
    if old_domain is not None:
        with TokenWriter(directory, OLD_DOMAIN, tokenizer.vocab_size) as writer:
            old_domain.write(writer, tokenizer)
        records[OLD_DOMAIN] = writer.record
        extra[OLD_DOMAIN] = {"document_mask": old_domain.document_mask}
    tokenizer.save(directory / TOKENIZER_FILE)
    sync(directory / TOKENIZER_FILE)  # before the index, whose presence makes the directory a store
    write_index(directory, tokenizer.fingerprint, tokenizer.vocab_size, records, extra)
    store = TokenStore.open(directory, tokenizer.fingerprint)
    tokenizer.note_unknown((stream := store.split("train")).read(0, min(len(stream), SAMPLE_TOKENS)))
    return TokenizedText(tokenizer, store, str(extra["split_rule"]))


def open_tokens(directory: Path, tokenizer: Tokenizer | None = None) -> TokenizedText:
    """An existing token store; a tokenizer other than its own is refused."""
    tokenizer = tokenizer or load_tokenizer(directory / TOKENIZER_FILE)
    store = TokenStore.open(directory, tokenizer.fingerprint)
    return TokenizedText(tokenizer, store, str(store.extra.get("split_rule", "as in the token store")))


def make_tokenizer(source: Source, config: TokenizerConfig, data_config: DataConfig) -> Tokenizer:
    """A tokenizer from the training part of the text; without a given size, its vocabulary is sized to the text.

    It has the special tokens of the configuration; their names are excluded from learning.
    """

    whole = config.kind == "characters"  # characters that occur only in the held-out text need an id too

    def texts() -> Iterator[str]:
        for part, document in iter_parts(source(), data_config):
            if part == "train" or whole:
                yield from document.pieces()

    vocab_size, sample = config.vocab_size, texts()
    if config.kind in SIZED:
        size = sum(len(text.encode("utf-8")) for text in texts())
        if vocab_size is None:
            vocab_size = vocabulary_for(size)
            logger.info(f"vocabulary  at most {vocab_size:,} {SIZED[config.kind]}, for {size:,} bytes of training text")
        if size > SAMPLE_BYTES:
            logger.info(
                f"vocabulary  learned from {SAMPLE_BYTES / 1e6:,.0f} of {size / 1e6:,.0f} MB, evenly spread over them"
            )
        sample = spread_sample(texts(), size)
    special = {"special": data_config.special, "start": config.start_token}
    return train_tokenizer(
        config.kind, sample, vocab_size=vocab_size, **split_option(config.kind, config.split), **special
    )


def iter_parts(documents: Iterable[Document], config: DataConfig) -> Iterator[tuple[Part, Document]]:
    """The documents, or their parts, with the part of the split that they belong to; rows are never cut."""
    return (split_rows if config.rows else split_documents)(documents, config.validation_fraction)


def spread_sample(texts: Iterable[str], size: int) -> Iterator[str]:
    """About SAMPLE_BYTES of the `size` bytes, in short pieces evenly spread over the text; a shorter text whole."""
    seen = taken = 0
    if size <= SAMPLE_BYTES:
        yield from texts
        return
    for piece in chain.from_iterable(iter_pieces(text, AFTER_WORD) for text in texts):
        if taken * size <= seen * SAMPLE_BYTES:
            yield piece
            taken += len(piece.encode("utf-8"))
        seen += len(piece.encode("utf-8"))


def write_splits(
    source: Source,
    tokenizer: Tokenizer,
    config: DataConfig,
    directory: Path,
    speed: Speed,
    workers: int = 1,
    special_names: re.Pattern[str] | None = None,
) -> tuple[dict[str, SplitRecord], dict[str, Any]]:
    """Encode every document into its split, between the tokenizer's start and end tokens, if it has them.

    special_names: see `Encoder`. Returns the splits' records and further entries of the index.
    """
    kinds = ("train", "validation")
    names = [*kinds, *(loss_split(name) for name in kinds if config.loss_on == "answer")]
    with ExitStack() as stack:
        writers = {name: stack.enter_context(TokenWriter(directory, name, tokenizer.vocab_size)) for name in names}
        write = (RowEncoder if config.rows else DocumentEncoder)(tokenizer, config, writers, special_names)
        write.add_all(iter_parts(source(), config), speed, workers)
    write.note_spelled()
    if not writers["train"].record.tokens:
        raise DataError("the data has no text; give a file with some")
    return {name: writer.record for name, writer in writers.items()}, write.extra()


@dataclass(frozen=True)
class OldDomain:
    """An old domain: a description, and a function that writes its ids. document_mask: documents are separated."""

    described: str
    write: Callable[[TokenWriter, Tokenizer], None]
    document_mask: bool = False
