"""The texts of a training: its own, and the texts of an old domain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from foretell.config.section import make_section
from foretell.config.training import Config, DataConfig
from foretell.data.documents import embedded_corpus
from foretell.data.shard_writer import TokenWriter
from foretell.data.shards import TokenStore
from foretell.data.sources import DocumentReader
from foretell.errors import CheckpointError, DataError
from foretell.pretraining.encoding import DocumentEncoder, Speed
from foretell.pretraining.request import TextRequest
from foretell.pretraining.tokens import OldDomain, Source
from foretell.runs.record import RUN
from foretell.runs.run import Run, find_run
from foretell.session.reporter import Reporter
from foretell.text import Tokenizer

logger = logging.getLogger(__name__)


def make_source(paths: Sequence[str | Path], config: DataConfig, strict: bool = False) -> Source:
    """The documents of the paths (none: the text inside Python), read again each time; pipes and stdin once."""
    if not paths:
        return embedded_corpus
    reader = DocumentReader(paths, config, strict=strict)
    pipes = [path for path in paths if str(path) != "-" and Path(path).is_fifo()]
    for pipe in pipes:
        logger.info(f"pipe        {pipe} is read until what writes to it ends")
    if pipes or "-" in map(str, paths):
        return cache(lambda: list(reader.read()))
    return reader.read


def text_request(paths: Sequence[str | Path], strict: bool = False, **given: Any) -> TextRequest:
    """The request for a training on files. given: its other fields, which decide how the files are read."""
    request = TextRequest(source=embedded_corpus, **given)
    return replace(request, source=make_source(paths, request.configured("data"), strict))


def find_old_domain(paths: Sequence[str | Path], model: str) -> OldDomain | None:
    """The texts of `paths`; without any, the held-out text of the run that `model` names; else None."""
    if paths:
        return texts_of(paths)
    run = run_of(model)
    return None if run is None else held_out_of(run)


def texts_of(paths: Sequence[str | Path]) -> OldDomain:
    """All texts of files. Raises DataError for a damaged file before the first text is encoded."""
    reader, config = DocumentReader(paths), DataConfig(validation_fraction=0)
    reader.read()  # raises an error for missing paths

    def write(writer: TokenWriter, tokenizer: Tokenizer) -> None:
        documents = (("train", document) for document in reader.read())
        DocumentEncoder(tokenizer, config, {"train": writer}).add_all(documents, Speed(0, Reporter()))

    return OldDomain(", ".join(map(str, paths)), write)


def run_of(model: str) -> Run | None:
    """The run that a MODEL argument names; None for another kind of model."""
    name, at, _ = model.rpartition("@")
    try:
        return find_run(name if at else model)
    except CheckpointError:
        return None


def held_out_of(run: Run) -> OldDomain | None:
    """The held-out text of a run as tokens; None, with a note in the log, if there is none."""
    store = TokenStore.open(run.tokens)
    held_out = store.split("validation")
    if len(held_out) < 2:
        logger.info(f"old domain  not measured: {run.directory} has no held-out text; --old-domain FILE names one")
        return None
    data = make_section(Config, run.record().config, str(run.directory / RUN)).data

    def write(writer: TokenWriter, tokenizer: Tokenizer) -> None:
        if tokenizer.vocab_size != store.vocab_size:
            raise DataError(f"{run.tokens}: made with another tokenizer than the model's; give --old-domain FILE")
        starts = [*held_out.document_starts.tolist(), len(held_out)]
        for start, end in pairwise(starts):
            writer.add_document(held_out.read(start, end - start), 0)
        writer.add_bytes(held_out.bytes)

    return OldDomain(f"the held-out text of {run.directory}", write, data.document_mask or data.rows)
