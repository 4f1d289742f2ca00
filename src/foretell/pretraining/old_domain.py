"""The text of a model's old domain, kept as a split of the run's token store to measure what is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from foretell.config import Config, DataConfig, make_section
from foretell.data.shard_writer import TokenWriter
from foretell.data.shards import TokenStore
from foretell.data.sources import DocumentReader
from foretell.errors import CheckpointError, DataError
from foretell.pretraining.encoding import DocumentEncoder, Speed
from foretell.runs.find import find_run
from foretell.runs.run import RUN, Run
from foretell.session.reporter import Reporter
from foretell.text import Tokenizer

OLD_DOMAIN = "old_domain"  # the name of the split

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OldDomain:
    """A text in words, and how its ids are written. document_mask: its documents do not see each other."""

    described: str
    write: Callable[[TokenWriter, Tokenizer], None]
    document_mask: bool = False


def find_old_domain(paths: Sequence[str | Path], model: str) -> OldDomain | None:
    """The texts of `paths`; without any, the held-out text of the run that `model` names; else None."""
    if paths:
        return texts_of(paths)
    run = run_of(model)
    return None if run is None else held_out_of(run)


def texts_of(paths: Sequence[str | Path]) -> OldDomain:
    """All of the texts of files. What is wrong with them is a DataError before the first is encoded."""
    reader, config = DocumentReader(paths), DataConfig(validation_fraction=0)
    reader.read()  # finds missing paths

    def write(writer: TokenWriter, tokenizer: Tokenizer) -> None:
        documents = (("train", document) for document in reader.read())
        DocumentEncoder(tokenizer, config, {"train": writer}).add_all(documents, Speed(0, Reporter()))

    return OldDomain(", ".join(map(str, paths)), write)


def run_of(model: str) -> Run | None:
    """The run that a MODEL argument names, None if it is another kind of model."""
    name, at, _ = model.rpartition("@")
    try:
        return find_run(name if at else model)
    except CheckpointError:
        return None


def held_out_of(run: Run) -> OldDomain | None:
    """The held-out text of a run, as its tokens; None, with a note, where there is none."""
    store = TokenStore.open(run.tokens)
    held_out = store.split("validation")
    if len(held_out) < 2:
        logger.info(f"old domain  not measured: {run.directory} has no held-out text; --old-domain FILE names one")
        return None
    data = make_section(Config, run.record()["config"], str(run.directory / RUN)).data

    def write(writer: TokenWriter, tokenizer: Tokenizer) -> None:
        if tokenizer.vocab_size != store.vocab_size:
            raise DataError(f"{run.tokens}: made with another tokenizer than the model's; give --old-domain FILE")
        starts = [*held_out.document_starts.tolist(), len(held_out)]
        for start, end in pairwise(starts):
            writer.add_document(held_out.read(start, end - start), 0)
        writer.add_bytes(held_out.bytes)

    return OldDomain(f"the held-out text of {run.directory}", write, data.document_mask or data.rows)
