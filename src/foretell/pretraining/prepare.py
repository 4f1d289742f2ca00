"""Texts to token shards: split off the validation text, make a tokenizer from the rest, store the ids once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretell.config import Config, DataConfig, TokenizerConfig
from foretell.data.loader import Loader
from foretell.data.shards import SplitRecord, TokenStore, TokenWriter, write_index
from foretell.data.sources import Document
from foretell.data.split import describe_split, split_documents
from foretell.errors import DataError
from foretell.text import Tokenizer, load_tokenizer, train_tokenizer

TOKENIZER = "tokenizer.json"
BPE_SPLIT = "qwen2"  # numbers digit by digit, and punctuation apart from the words it follows
COUNTED = {"bpe": "byte-pair tokens", "words": "words, rarer ones unknown"}  # kinds whose size is a choice
SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 512, 16_384
BYTES_PER_ENTRY = 400  # text for each vocabulary entry, so that entries are seen often enough to be learned

Source = Callable[[], Iterable[Document]]  # texts that can be read more than once


@dataclass(frozen=True)
class TokenizedText:
    """A tokenizer and a store of its ids, with a sentence on how validation was split off."""

    tokenizer: Tokenizer
    store: TokenStore
    split_rule: str


def tokenize_text(
    source: Source,
    tokenizer_config: TokenizerConfig,
    data_config: DataConfig,
    directory: Path,
    say: Callable[[str], None],
    tokenizer: Tokenizer | None = None,
) -> TokenizedText:
    """Write the ids of all documents into `directory`. Without a tokenizer, one is made from the training part."""
    if tokenizer is None:
        tokenizer = make_tokenizer(source, tokenizer_config, data_config, say)
    records, documents = write_splits(source, tokenizer, data_config, directory)
    tokenizer.save(directory / TOKENIZER)
    rule = describe_split(documents, data_config.validation_fraction)
    write_index(directory, tokenizer.fingerprint, tokenizer.vocab_size, records, {"split_rule": rule})
    store = TokenStore.open(directory, tokenizer.fingerprint)
    return TokenizedText(tokenizer, store, rule)


def open_tokens(directory: Path, tokenizer: Tokenizer | None = None) -> TokenizedText:
    """A store that was written before; a tokenizer other than its own is refused."""
    tokenizer = tokenizer or load_tokenizer(directory / TOKENIZER)
    store = TokenStore.open(directory, tokenizer.fingerprint)
    return TokenizedText(tokenizer, store, str(store.extra.get("split_rule", "as in the token store")))


def make_loader(text: TokenizedText, config: Config) -> Loader:
    """The batches of a run: the same for whoever trains on them and whoever looks at them later."""
    return Loader(
        text.store.split("train"),
        config.model.context_length,
        config.training.batch_size,
        config.training.seed,
        document_mask=config.data.document_mask,
    )


def make_tokenizer(
    source: Source, config: TokenizerConfig, data_config: DataConfig, say: Callable[[str], None]
) -> Tokenizer:
    """A tokenizer from the training part of the text, its vocabulary sized to the text where no size is given."""

    whole = config.kind == "characters"  # a character that only the held-out text has could not be written otherwise

    def texts() -> Iterator[str]:
        for part, document in split_documents(source(), data_config.validation_fraction):
            if part == "train" or whole:
                yield document.text

    vocab_size = config.vocab_size
    if config.kind in COUNTED and vocab_size is None:
        size = sum(len(text.encode()) for text in texts())
        vocab_size = vocabulary_for(size)
        say(f"vocabulary  at most {vocab_size:,} {COUNTED[config.kind]}, for {size:,} bytes of training text")
    split = {"split": config.split or BPE_SPLIT} if config.kind == "bpe" or config.split else {}
    return train_tokenizer(config.kind, texts(), vocab_size=vocab_size, **split)


def vocabulary_for(text_bytes: int) -> int:
    """The largest power of two that leaves BYTES_PER_ENTRY bytes of text for each entry."""
    fitting = 2 ** max(0, (text_bytes // BYTES_PER_ENTRY).bit_length() - 1)
    return min(max(fitting, SMALLEST_VOCABULARY), LARGEST_VOCABULARY)


def write_splits(
    source: Source, tokenizer: Tokenizer, config: DataConfig, directory: Path
) -> tuple[dict[str, SplitRecord], int]:
    """Encode every document into its split, each ended by the end token; returns the records and the documents read."""
    end = [] if tokenizer.end_id is None else [tokenizer.end_id]
    sources: set[str] = set()
    with (
        TokenWriter(directory, "train", tokenizer.vocab_size) as train,
        TokenWriter(directory, "validation", tokenizer.vocab_size) as validation,
    ):
        writers = {"train": train, "validation": validation}
        for part, document in split_documents(source(), config.validation_fraction):
            sources.add(document.source)
            ids = np.concatenate([tokenizer.encode_long(document.text), np.array(end, dtype=np.int64)])
            writers[part].add_document(ids, len(document.text.encode()))
    if not train.record.tokens:
        raise DataError("the data holds no text; give a file with some")
    return {name: writer.record for name, writer in writers.items()}, len(sources)
