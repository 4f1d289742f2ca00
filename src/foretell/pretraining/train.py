"""`foretell.train`: the same as the verb, from a program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from foretell.data.corpora import embedded_corpus
from foretell.data.sources import DocumentReader
from foretell.device import DeviceName, DtypeName
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.pretraining.prepare import Source
from foretell.pretraining.pretrain import pretrain
from foretell.pretraining.reporter import Reporter
from foretell.pretraining.request import Request
from foretell.pretraining.start import load_start
from foretell.text import Tokenizer


def train(
    data: str | Path | Sequence[str | Path] | None,
    out: str | Path,
    *,
    size: str | None = None,
    minutes: float | None = None,
    resume: bool = False,
    tokenizer: Tokenizer | None = None,
    start: str | Path | None = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    reporter: Reporter | None = None,
    **sections: dict[str, Any],
) -> LanguageModel:
    """Train on files or folders (None: the language reference inside Python) and return the best model of the run.

    `sections` are parts of the configuration: `training={"steps": 500}, model={"width": 256}`. What is left out is
    chosen from the data and the machine; a `reporter` hears what and why. `start` is a model to go on from, with its
    shape and tokenizer. Errors are those of `foretell.errors`.
    """
    paths = [data] if isinstance(data, str | Path) else list(data or [])
    request = Request(
        make_source(paths, sections.get("data", {}).get("text_field")),
        described=[str(path) for path in paths] or ["the language reference inside Python"],
        out=Path(out),
        size=size,
        minutes=minutes,
        overrides=sections,
        tokenizer=tokenizer,
        start=load_start(start) if start is not None else None,
        device=device,
        dtype=dtype,
    )
    session = pretrain(request, reporter or Reporter(), resume=resume)
    return load(session.run.directory, device)


def make_source(paths: Sequence[str | Path], text_field: str | None) -> Source:
    """The documents of the paths, each time they are asked for; standard input (`-`) is read once and kept."""
    if not paths:
        return embedded_corpus
    reader = DocumentReader(paths, text_field=text_field)
    if "-" in map(str, paths):
        return cache(lambda: list(reader.read()))
    return reader.read
