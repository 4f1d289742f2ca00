"""`foretell.train` and `foretell.finetune`: trainings from Python."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from foretell.config.section import check_known
from foretell.data.documents import EMBEDDED_CORPUS
from foretell.data.memory import Frame, as_source, check_some
from foretell.errors import ConfigError, as_path, check_type, expanded
from foretell.finding import run_directory
from foretell.finetuning.chat_tuning import ChatRequest, ChatTraining
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.kinds import KINDS, ChatOptions, HeadOptions
from foretell.finetuning.request import FinetuneRequest
from foretell.generation.batch_generation import continue_prompt
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.pretraining.domain import DomainTraining
from foretell.pretraining.options import DomainOptions, TextOptions
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.sources import find_old_domain, text_request
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.run import Run
from foretell.session.declaration import Training
from foretell.session.display import choose_display, notes_of_the_log
from foretell.session.protocol import load_start, of_another_version, run_training
from foretell.session.replay_run import BeforeUpdate, Replay
from foretell.session.reporter import Reporter, Reporters
from foretell.session.request import read_keywords
from foretell.text import Tokenizer

if TYPE_CHECKING:
    from foretell.config.typed_dicts import ChatDict, DomainDict, HeadDict, TokenizerDict, TrainDict

Paths = str | Path | Sequence[str | Path]
# Packages that can be removed: what `train` imports for a task
TASK_MODULES = {"forecast": "foretell.forecasting.train"}
# The same for a replay: verbs of runs, with modules that have `resuming(out)`
REPLAYED = {
    "train --task forecast": "foretell.forecasting.train",
    "train --task translate": "foretell.translation.train",
}


def train(
    source: Paths | Any | None,
    /,
    out: str | Path | None = None,
    *,
    task: Literal["text", "forecast"] = "text",
    resume: bool = False,
    tokenizer: Tokenizer | TokenizerDict | None = None,
    start_from: str | Path | None = None,
    progress: bool | None = None,
    reporter: Reporter | None = None,
    **options: Unpack[TrainDict],
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
    if task in TASK_MODULES:
        if tokenizer is not None:
            raise ConfigError(f"a training with task='{task}' takes no tokenizer; leave it out")
        module = importlib.import_module(TASK_MODULES[task])
        return best_model(module.make_training(source, out, resume, start_from, options), resume, progress, reporter)
    given = read_keywords("train", TextOptions, options)
    if isinstance(tokenizer, Mapping):
        given["overrides"]["tokenizer"], tokenizer = dict(tokenizer), None
    check_type("tokenizer", tokenizer, Tokenizer | None, "a Tokenizer or a dict of fields")
    paths = listed(source)
    request = text_request(
        paths,
        names=[str(path) for path in paths] or [EMBEDDED_CORPUS],
        out=run_directory(out, paths, resume),
        tokenizer=tokenizer,
        start=load_start(start_from) if start_from is not None else None,
        **given,
    )
    return best_model(TextTraining(request, continue_prompt), resume, progress, reporter)


@overload
def finetune(
    model: str | Path,
    data: Paths,
    /,
    out: str | Path | None = None,
    *,
    task: Literal["chat"],
    **options: Unpack[ChatDict],
) -> LanguageModel: ...


@overload
def finetune(
    model: str | Path,
    data: Paths,
    /,
    out: str | Path | None = None,
    *,
    task: Literal["text"],
    **options: Unpack[DomainDict],
) -> LanguageModel: ...


@overload
def finetune(
    model: str | Path | None,
    data: str | Path | Frame | Sequence[Mapping[str, Any]],
    /,
    out: str | Path | None = None,
    *,
    task: str = "classify",
    dev: str | Path | Frame | Sequence[Mapping[str, Any]] | None = None,
    **options: Unpack[HeadDict],
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
    `foretell.evaluate_task` measures the model on others. options: as in `foretell finetune --task TASK`, and
    sections of the configuration as dicts: training and lora have the fields of TrainingConfig and LoRAConfig. out: the
    run's directory; default: runs/NAME after the data. resume continues a run that exists. The report on labelled rows
    and on a domain is in the run's report.json. Raises the errors of `foretell.errors`.
    """
    check_known(task, (*KINDS, "chat", "text"), "task")
    declared = {"chat": ChatOptions, "text": DomainOptions}.get(task, HeadOptions)
    dev = options.pop("dev", None) if task in KINDS else None
    given = read_keywords(f"finetune for {task}", declared, options)
    if task in KINDS and isinstance(data, list | tuple) and any(isinstance(each, str | Path) for each in data):
        raise ConfigError(f"task {task} takes one file; give its path")
    rows = as_source(data) if task in KINDS else None
    paths = listed(data) if rows is None else [str(rows)]
    given |= {"out": run_directory(out, paths, resume), "start": None if model is None else load_start(model)}
    if task == "text":
        given["old_domain"] = find_old_domain(given.get("old_domain", ()), given["start"].argument)
        request = text_request(paths, names=[str(path) for path in paths], **given)
        training: Training[Any, Any] = DomainTraining(request, continue_prompt)
    elif task == "chat":
        training = ChatTraining(ChatRequest(data=paths, **given))
    else:
        held_out = None if dev is None else as_source(dev)
        training = FinetuneTraining(FinetuneRequest(data=rows, dev=held_out, task=task, **given))
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


def training_of(run: Run) -> Training[Any, Any]:
    """The training that can resume a run."""
    verb, out = run.record().verb or "", run.directory
    if verb in REPLAYED:
        return importlib.import_module(REPLAYED[verb]).resuming(out)
    if verb == FinetuneTraining.verb:
        return FinetuneTraining(FinetuneRequest(out=out))
    if verb == ChatTraining.verb:
        return ChatTraining(ChatRequest(out=out))
    for kind in (TextTraining, DomainTraining):
        if verb == kind.verb:
            return kind(text_request([], names=[], out=out), continue_prompt)
    raise of_another_version(run, f"the verb '{verb}' is not known")


def replay_step(run: Run, step: int) -> Checkpoint:
    """The state of a run after `step` updates. Raises `CheckpointError` if it cannot be replayed."""
    return Replay(training_of(run), run).checkpoint(step)


def replay_update(run: Run, number: int) -> BeforeUpdate:
    """The state of a run before update `number`, counted from 1. Raises `CheckpointError` if it has no such update."""
    return Replay(training_of(run), run).before_update(number)
