"""`foretell.train`: pretraining from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretell.device import DeviceName, DtypeName
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.pretraining.pretrain import pretrain
from foretell.pretraining.request import Request, load_start
from foretell.pretraining.tokens import make_source
from foretell.session.reporter import Reporter
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
    chosen from the data and the machine; the log "foretell" says what and why, and a `reporter` gets the metrics.
    `start` is a model to continue from, with its shape and tokenizer. Errors are those of `foretell.errors`.
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
