"""`foretell.train` and `foretell.finetune`: trainings from Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from foretell.config.section import check_known, make_section
from foretell.config.training import DataConfig
from foretell.data.documents import EMBEDDED_CORPUS
from foretell.data.memory import Frame, as_source, check_some
from foretell.errors import ConfigError, as_path, check_type, expanded
from foretell.finding import run_directory
from foretell.finetuning.chat_data import Truncation
from foretell.finetuning.chat_tuning import ChatRequest, ChatTraining
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.kinds import KINDS, HeadFields
from foretell.finetuning.request import make_request
from foretell.generation.batch_generation import continue_prompt
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.pretraining.domain import DomainTraining
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.pretraining.sources import find_old_domain, make_source
from foretell.session.declaration import Training
from foretell.session.display import choose_display, notes_of_the_log
from foretell.session.protocol import load_start, run_training
from foretell.session.reporter import Reporter, Reporters
from foretell.session.request import take_sections
from foretell.system.device import DeviceName, DtypeName
from foretell.text import Tokenizer

if TYPE_CHECKING:
    from foretell.config.typed_dicts import DataDict, LoRADict, ModelDict, TokenizerDict, TrainingDict

Paths = str | Path | Sequence[str | Path]
# Packages that can be removed: what `train` imports for a task
TASK_MODULES = {"forecast": "foretell.forecasting.train"}


class TrainOptions(TypedDict, total=False):
    """Sections of the configuration, and options of `foretell train --task forecast`."""

    model: ModelDict
    data: DataDict
    training: TrainingDict
    codec: dict[str, Any]
    series: dict[str, Any]
    horizon: int
    season: int
    columns: Sequence[str]
    id_column: str
    time_column: str
    target_column: str
    separator: str
    decimal: str
    date_format: str
    is_from_scratch: bool


def train(
    source: Paths | Any | None,
    /,
    out: str | Path | None = None,
    *,
    task: Literal["text", "forecast"] = "text",
    size: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    resume: bool = False,
    tokenizer: Tokenizer | TokenizerDict | None = None,
    start_from: str | Path | None = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    progress: bool | None = None,
    reporter: Reporter | None = None,
    **sections: Unpack[TrainOptions],
) -> LanguageModel:
    """Train on files or folders (None: the language reference inside Python) and return the best model of the run.

    out: the run's directory; default: runs/NAME after the data. steps, batch_size, learning_rate and seed are fields of
    the configuration's section `training`; the other fields of each section are given as a dict:
    `model={"width": 256}`, `training={"warmup_steps": 20}`, `tokenizer={"kind": "bytes"}`, `data={"text_field": "t"}`.
    Settings that are left out are chosen from the data and the machine; the log "foretell" has the reasons. progress:
    True shows the training, False shows nothing, None (default) shows it on a terminal and in a notebook. A reporter
    gets the metrics and samples as well. tokenizer may also be a Tokenizer to use. start_from: a model to continue
    from, with its shape and tokenizer; the default for forecasts is almanac. task="forecast": on series of numbers in
    files or in a DataFrame of pandas or polars; it takes the options of `foretell train --task forecast`, such as
    `horizon=24` and `date_format="%d.%m.%Y"`, and `foretell.forecast` reads the model. Raises the errors of
    `foretell.errors`.
    """
    check_known(task, ("text", *TASK_MODULES), "task")
    for name in sections:
        check_known(name, (*(train.__kwdefaults__ or ()), *sorted(TrainOptions.__optional_keys__)), "option of train:")
    keywords = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    given = {name: value for name, value in keywords.items() if value is not None}
    own: dict[str, Any] = {**sections}
    overrides = take_sections(own, "model", "data", "training", "codec", "series")
    training = overrides.get("training", {})
    if twice := sorted(given.keys() & training.keys()):
        raise ConfigError(f"{twice[0]} is given twice, as a keyword and in training; give it once")
    if given:
        overrides["training"] = {**training, **given}
    if task in TASK_MODULES:
        if tokenizer is not None:
            raise ConfigError(f"a training with task='{task}' takes no tokenizer; leave it out")
        common = {"size": size, "minutes": minutes, "device": device, "dtype": dtype, "resume": resume}
        common |= {"start_from": start_from, "overrides": overrides}
        module = importlib.import_module(TASK_MODULES[task])
        return best_model(module.make_training(source, out, **common, **own), resume, progress, reporter)
    overrides |= own  # an option of another task, which the request refuses
    if isinstance(tokenizer, Mapping):
        overrides["tokenizer"], tokenizer = dict(tokenizer), None
    check_type("tokenizer", tokenizer, Tokenizer | None, "a Tokenizer or a dict of fields")
    paths = listed(source)
    request = TextRequest(
        source=make_source(paths, make_section(DataConfig, overrides.get("data", {}), "data")),
        names=[str(path) for path in paths] or [EMBEDDED_CORPUS],
        out=run_directory(out, paths, resume),
        size=size,
        minutes=minutes,
        overrides=overrides,
        tokenizer=tokenizer,
        start=load_start(start_from) if start_from is not None else None,
        device=device,
        dtype=dtype,
    )
    return best_model(TextTraining(request, continue_prompt), resume, progress, reporter)


class TuningOptions(TypedDict, total=False):
    """Options of every fine-tuning. training and lora have fields of TrainingConfig and LoRAConfig."""

    resume: bool
    progress: bool | None
    reporter: Reporter | None
    minutes: float | None
    training: TrainingDict
    device: DeviceName
    dtype: DtypeName


class HeadOptions(TuningOptions, HeadFields, total=False):
    """The options of `foretell finetune` as keywords."""

    dev: str | Path | Frame | Sequence[Mapping[str, Any]] | None
    is_from_scratch: bool
    lora: LoRADict | None


class ChatOptions(TuningOptions, total=False):
    """The options of `foretell finetune --task chat`. dev: a file to hold out. template: a built-in name or a file."""

    dev: str | Path | None
    template: str | None
    truncate: Truncation | None
    spell_tokens: bool | None
    epochs: float | None
    model: ModelDict
    data: DataDict
    lora: LoRADict | None


class DomainOptions(TuningOptions, total=False):
    """The options of `foretell finetune --task text`. old_domain: texts on which forgetting is measured."""

    old_domain: Sequence[str | Path]
    model: ModelDict
    data: DataDict


@overload
def finetune(
    model: str | Path,
    data: Paths,
    /,
    out: str | Path | None = None,
    *,
    task: Literal["chat"],
    **options: Unpack[ChatOptions],
) -> LanguageModel: ...


@overload
def finetune(
    model: str | Path,
    data: Paths,
    /,
    out: str | Path | None = None,
    *,
    task: Literal["text"],
    **options: Unpack[DomainOptions],
) -> LanguageModel: ...


@overload
def finetune(
    model: str | Path | None,
    data: str | Path | Frame | Sequence[Mapping[str, Any]],
    /,
    out: str | Path | None = None,
    *,
    task: str = "classify",
    **options: Unpack[HeadOptions],
) -> LanguageModel: ...


def finetune(
    model: str | Path | None,
    data: Paths | Frame | Sequence[Mapping[str, Any]],
    /,
    out: str | Path | None = None,
    *,
    task: str = "classify",
    resume: bool = False,
    progress: bool | None = None,
    reporter: Reporter | None = None,
    **options: Any,
) -> LanguageModel:
    """Train a model further and return the best model of the run.

    task: chat learns the answers of conversations, text continues on a domain's text; the others train one extra layer
    on the labelled rows of a file, of a DataFrame of pandas or polars, or of a list of dicts, and
    `foretell.evaluate_task` measures the model on others. options are the options of `foretell finetune --task TASK`:
    `HeadOptions`, `ChatOptions` or `DomainOptions`; training and lora are dicts of fields of TrainingConfig and
    LoRAConfig. out: the run's directory; default: runs/NAME after the data. resume continues a run that exists. The
    report on labelled rows and on a domain is in the run's report.json. Raises the errors of `foretell.errors`.
    """
    check_known(task, (*KINDS, "chat", "text"), "task")
    known = {"chat": ChatOptions, "text": DomainOptions}.get(task, HeadOptions).__optional_keys__
    for name in options:
        check_known(name, tuple(sorted(known)), f"option of finetune for {task}:")
    if task in KINDS and isinstance(data, list | tuple) and any(isinstance(each, str | Path) for each in data):
        raise ConfigError(f"task {task} takes one file; give its path")
    rows = as_source(data) if task in KINDS else None
    paths = listed(data) if rows is None else [str(rows)]
    options |= {"out": run_directory(out, paths, resume), "start": None if model is None else load_start(model)}
    if task == "chat":
        sections = take_sections(options, "model", "data", "training", "lora")
        training: Training[Any, Any] = ChatTraining(ChatRequest(data=paths, overrides=sections, **options))
    elif task == "text":
        sections = take_sections(options, "model", "data", "training")
        options["old_domain"] = find_old_domain(options.get("old_domain", ()), options["start"].argument)
        source = make_source(paths, make_section(DataConfig, sections.get("data", {}), "data"))
        names = [str(path) for path in paths]
        training = DomainTraining(
            TextRequest(source=source, names=names, overrides=sections, **options), continue_prompt
        )
    else:
        options |= take_sections(options, "training", "lora")
        training = FinetuneTraining(make_request(rows, task=task, **options))
    return best_model(training, resume, progress, reporter)


def listed(paths: object) -> list[str | Path]:
    """Paths as a list, empty for None; a `ConfigError` for rows in memory, which this task does not read."""
    if paths is None:
        return []
    check_some(paths, "files")
    if not isinstance(paths, str | Path | Sequence):
        raise ConfigError(f"data are paths of files, not {type(paths).__name__}; write it to a file")
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    if any(not isinstance(each, str | Path) for each in several):
        raise ConfigError("data are paths of files, not rows; write them to a file")
    return [expanded(each) if isinstance(each, str) else as_path("data", each) for each in several]


def best_model(
    training: Training[Any, Any], resume: bool, progress: bool | None, reporter: Reporter | None
) -> LanguageModel:
    """Run a training with its displays, and load the best checkpoint."""
    if not isinstance(resume, bool):
        raise ConfigError(f"resume must be True or False, not {resume!r}")
    check_type("reporter", reporter, Reporter | None, "a Reporter")
    displays = [*choose_display(progress), *([] if reporter is None else [reporter])]
    with notes_of_the_log(displays), Reporters(displays) as reporters:
        session = run_training(training, reporters, resume=resume)
    return load(session.run.directory, training.request.device)
