"""`foretell.train`: pretraining from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretell.config import DataConfig, make_section
from foretell.device import DeviceName, DtypeName
from foretell.errors import ConfigError
from foretell.finding import default_run_directory
from foretell.language_model import LanguageModel
from foretell.loading import load, load_start
from foretell.pretraining.pretrain import pretrain
from foretell.pretraining.request import TextRequest
from foretell.pretraining.tokens import make_source
from foretell.session.progress import choose_display, notes_of_the_log
from foretell.session.reporter import Reporter, Reporters
from foretell.text import Tokenizer


def train(
    source: str | Path | Sequence[str | Path] | None,
    /,
    out: str | Path | None = None,
    *,
    size: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    resume: bool = False,
    tokenizer: Tokenizer | Mapping[str, Any] | None = None,
    start_from: str | Path | None = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    progress: bool | None = None,
    reporter: Reporter | None = None,
    **sections: dict[str, Any],
) -> LanguageModel:
    """Train on files or folders (None: the language reference inside Python) and return the best model of the run.

    out: the run's directory; default: runs/NAME after the data. steps, batch_size, learning_rate and seed are fields of
    the configuration's section `training`; the other fields of each section are given as a dict:
    `model={"width": 256}`, `training={"warmup_steps": 20}`, `tokenizer={"kind": "bytes"}`, `data={"text_field": "t"}`.
    Settings that are left out are chosen from the data and the machine; the log "foretell" has the reasons. progress:
    True shows the training, False shows nothing, None (default) shows it on a terminal and in a notebook. A reporter
    gets the metrics and samples as well. tokenizer may also be a Tokenizer to use. start_from: a model to continue
    from, with its shape and tokenizer. Raises the errors of `foretell.errors`.
    """
    paths = [source] if isinstance(source, str | Path) else list(source or [])
    keywords = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    given = {name: value for name, value in keywords.items() if value is not None}
    if twice := sorted(given.keys() & sections.get("training", {}).keys()):
        raise ConfigError(f"{twice[0]} is given twice, as a keyword and in training; give it once")
    if given:
        sections["training"] = {**sections.get("training", {}), **given}
    if isinstance(tokenizer, Mapping):
        sections["tokenizer"], tokenizer = dict(tokenizer), None
    request = TextRequest(
        source=make_source(paths, make_section(DataConfig, sections.get("data", {}), "data")),
        names=[str(path) for path in paths] or ["the language reference inside Python"],
        out=default_run_directory(paths, resume) if out is None else Path(out),
        size=size,
        minutes=minutes,
        overrides=sections,
        tokenizer=tokenizer,
        start=load_start(start_from) if start_from is not None else None,
        device=device,
        dtype=dtype,
    )
    displays = [*choose_display(progress), *([] if reporter is None else [reporter])]
    with notes_of_the_log(displays), Reporters(displays) as reporters:
        session = pretrain(request, reporters, resume=resume)
    return load(session.run.directory, device)
