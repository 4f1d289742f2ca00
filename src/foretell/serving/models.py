"""`ServedModel`: a model with its scheduler. `ServedModels`: the models of a server by name."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from foretell.errors import CheckpointError, TokenizerError, UsageError
from foretell.generation.block_table import blocks_for
from foretell.generation.engine import bytes_per_block
from foretell.generation.scheduler import Scheduler
from foretell.inference.chat import FALLBACK_TEMPLATE, choose_template
from foretell.insight.page.family import Family, Index
from foretell.insight.page.page_pass import PageModel
from foretell.insight.page.sections import all_sections
from foretell.insight.readout import TaskReadout
from foretell.language_model import LanguageModel
from foretell.model.decoder import Decoder
from foretell.model.structure import Structure, model_structure
from foretell.serving.errors import ApiError, errors_of, refused
from foretell.serving.requests import PassRequest
from foretell.storage.files import EXAMPLES, read_json
from foretell.system.installation import version_of
from foretell.text import Tokenizer
from foretell.text.chat_template import ChatFormat, own_template

STEP_SECONDS = 0.1  # limit for a step of all models while a long prompt is read and other texts grow
# Limit for a step that only reads texts. Reading with GPT-2's shape takes 13% more processor time than in 0.1 s
READING_SECONDS = 0.02
LEAST_TOKENS = 256  # minimum size of a cache in tokens, or the whole context if that is shorter
Found = TypeVar("Found")
Row = dict[str, Any]  # the answer to one input of a task
SEVERAL = ("pair", "choice")  # `reads` of tasks with several texts
TASK_PATHS = {"series_codec": "/v1/forecast", "task_head": "/v1/predict"}  # kind of a task model's part -> route

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSettings:
    """The settings of all models of a server.

    memory: bytes of the caches of all models; default: a quarter of the machine's memory. template: the chat template;
    by default the model's, or the plain one. look_bytes: the limit for the recorded values of a request.
    """

    memory: int | None = None
    num_models: int = 1
    template: str | None = None
    look_bytes: int = 64 * 2**20


class PageExample(BaseModel, extra="forbid", strict=True):
    """An example text on the live page, and the initial view. token: by default the last."""

    title: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1, max_length=10_000)
    others: list[str] | None = None  # the second text of a pair, or the answers to a question
    layer: int = 0
    head: int = 0
    token: int | None = None


class PageExamples(BaseModel, extra="forbid", strict=True):
    """The content of a file of examples."""

    examples: list[PageExample] = Field(max_length=20)


def read_examples(directory: Path) -> list[PageExample]:
    """The examples in a model's folder. Raises CheckpointError for a file that cannot be read."""
    path = directory / EXAMPLES
    if not path.exists():
        return []
    try:
        return PageExamples.model_validate(read_json(path)).examples
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(f"{path}: {field}: {error.errors()[0]['msg']}") from None


@dataclass(eq=False)
class ExploredModel:
    """A named model whose passes the live page can show."""

    name: str
    model: LanguageModel
    look_bytes: int  # the limit for the values of a request
    readout: TaskReadout | None = field(default=None, kw_only=True)  # for a tuned model
    levels: np.ndarray | None = field(default=None, kw_only=True)  # for a forecaster

    @property
    def spelled_names(self) -> re.Pattern[str]:
        """Names of special tokens that are read as ordinary text."""
        return self.model.tokenizer.spelled_names

    @cached_property
    def structure(self) -> Structure:
        """The structure, with the names that a request can look at."""
        return model_structure(self.model.decoder)

    @cached_property
    def page(self) -> PageModel:
        """The page model. Raises UsageError for a model without attention weights."""
        return PageModel.of(self.model, self.readout, self.levels)

    @cached_property
    def sections(self) -> dict[str, tuple[Family, Index]]:
        """The sections of the live page, except sections of single positions."""
        return all_sections(self.page)

    def with_input(
        self, model: LanguageModel, levels: np.ndarray | None = None, readout: TaskReadout | None = None
    ) -> ExploredModel:
        """Replace source, example or scale of the input; keeps the names, which take longer than a pass."""
        other = ExploredModel(self.name, model, self.look_bytes, readout=readout, levels=levels)
        other.structure, other.sections = self.structure, self.sections
        other.page = self.page.with_input(model, levels, readout)
        return other


@dataclass
class ChangedForm:
    """A form of the model with the hooks of a change, and the number of sequences that use it."""

    decoder: Decoder
    hooks: ExitStack
    users: int = 0


@dataclass(eq=False)
class ServedModel(ExploredModel):
    """A named language model that answers requests."""

    scheduler: Scheduler
    chat: ChatFormat | None  # None for a model that cannot write conversations
    examples: list[PageExample] = field(default_factory=list)  # examples on the live page
    changed_forms: dict[str, ChangedForm] = field(default_factory=dict)  # forms in use, by the key of their changes
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.reader = self.scheduler.sharing_cache(READING_SECONDS)  # of texts after which at most one token is written

    @property
    def context_length(self) -> int:
        return self.model.config.context_length

    @cached_property
    def _tokenizer_of_special(self) -> Tokenizer:
        return self.model.reading_special().tokenizer

    def tokenizer_for(self, allow_special: bool) -> Tokenizer:
        """The tokenizer; with `allow_special`, the one that reads names of special tokens as these tokens."""
        return self._tokenizer_of_special if allow_special else self.model.tokenizer

    @cached_property
    def fingerprint(self) -> str:
        """The version of program and tokenizer, the `system_fingerprint` of answers."""
        return f"foretell-{version_of('foretell')}-{self.model.tokenizer.fingerprint[:12]}"


def task_path_of(model: LanguageModel) -> str:
    """The route for a task model; empty for a language model."""
    return next((TASK_PATHS[part.kind] for part in model.parts.values() if part.kind in TASK_PATHS), "")


def serve_model(name: str, model: LanguageModel, settings: ModelSettings) -> ServedModel:
    """A served model.

    Raises TokenizerError for an unsupported template, UsageError for a cache that is too small.
    """
    template = settings.template
    if task_path_of(model):
        template = template or (FALLBACK_TEMPLATE if own_template(model.tokenizer, name) is None else None)
    try:
        chat = ChatFormat(choose_template(model, template), model.tokenizer)
    except TokenizerError:
        if settings.template is not None:
            raise
        chat = None  # its vocabulary does not support the template
    scheduler = Scheduler(
        model.decoder,
        memory=settings.memory,
        num_schedulers=settings.num_models,
        step_seconds=STEP_SECONDS / settings.num_models,
    )
    needed = blocks_for(min(model.config.context_length, LEAST_TOKENS))
    if scheduler.num_blocks < needed:
        size = bytes_per_block(model.decoder) / 2**20
        raise UsageError(
            f"{name} needs a cache of {needed * size:,.1f} MiB or more, and its share of the memory is "
            f"{scheduler.num_blocks * size:,.1f}; give a larger --memory"
        )
    return ServedModel(name, model, settings.look_bytes, scheduler, chat)


@dataclass(frozen=True)
class ServedTask:
    """A task model: the path of its route, and the function that answers an input.

    answer: yields the row of an input, and before that None where others may run in between.
    explored: returns the model of a pass for the live page. reads: the input of a pass: a text, a pair of texts, a
    question and its answers (choice), a source and its translation, or values. spelled_names: names of special tokens
    that a text of an input may spell.
    """

    name: str
    path: str
    answer: Callable[[Any, Any], Iterator[Row | None]]  # takes the request and one of its inputs
    explored: Callable[[PassRequest], ExploredModel]
    reads: str
    spelled_names: re.Pattern[str] | None = None  # None: inputs are not texts
    created: int = field(default_factory=lambda: int(time.time()))


class ServedModels:
    """The models of a server, by name. A request without a name means the only one."""

    def __init__(
        self,
        models: Iterable[ServedModel],
        tasks: Iterable[ServedTask] = (),
        arguments: Mapping[str, str] | None = None,  # the MODEL argument by name
    ):
        self._by_name = {model.name: model for model in models}
        self.tasks = {task.name: task for task in tasks}
        self.arguments = arguments or {}

    @property
    def names(self) -> list[str]:
        """The names of all models, each once."""
        return list(dict.fromkeys([*self._by_name, *self.tasks]))

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def explored(self) -> list[dict[str, Any]]:
        """The models for the live page: the input, the examples, and the argument to open each with the library.

        Absolute paths are left out, because they reveal information about this machine.
        """
        reads = dict.fromkeys(self._by_name, "text") | {name: task.reads for name, task in self.tasks.items()}
        examples = {name: served.examples for name, served in self._by_name.items()}
        shown = {name: [each.model_dump(exclude_none=True) for each in examples.get(name, ())] for name in reads}
        told = {name: {"argument": each} for name, each in self.arguments.items() if not Path(each).is_absolute()}
        return [{"name": name, "reads": reads[name], "examples": shown[name], **told.get(name, {})} for name in reads]

    def of_pass(self, request: PassRequest) -> ExploredModel:
        """The model of a pass, with its task's input. Raises the errors of `find`."""
        task = self.tasks.get(request.model)
        if request.source and (task is None or task.reads != "source"):
            raise refused("source", f"{request.model or 'the model'} reads none; leave it out")
        if request.others and (task is None or task.reads not in SEVERAL):
            raise refused("others", f"{request.model or 'the model'} reads one text; leave them out")
        if task is None:
            return self.find(request.model)
        with errors_of("source" if task.reads == "source" else "text"):
            return task.explored(request)

    def find(self, name: str) -> ServedModel:
        """The model of a request. Raises ApiError, with the known names."""
        if served := named_or_only(self._by_name, name):
            return served
        message = f"no model is named {name[:80]!r}" if name else "the request names no model"
        message += f"; this server has: {', '.join(self._by_name) or 'no language model'}"
        if name in self.tasks:
            message = f"{name} answers only at {self.tasks[name].path}"
        raise ApiError(404, message, "model", "model_not_found")

    def find_task(self, name: str, path: str) -> ServedTask:
        """The model of a request to a task's route. Raises ApiError, with the known names."""
        tasks = {task.name: task for task in self.tasks.values() if task.path == path}
        if task := named_or_only(tasks, name):
            return task
        asked = f"no model named {name[:80]!r} answers" if name else "the request names no model for"
        needs = f"which needs a model tuned for that task; served: {', '.join(tasks) or 'none'}"
        raise ApiError(404, f"{asked} {path}, {needs}", "model", "model_not_found")


def named_or_only(models: Mapping[str, Found], name: str) -> Found | None:
    """The model of this name; without a name, the only one."""
    return next(iter(models.values())) if not name and len(models) == 1 else models.get(name)
