"""Chat tuning from a request to a tuned model: start a run, or resume one."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from foretell.adapters import LORA, add_adapters
from foretell.config import Config, DataConfig, ModelConfig, check_known, make_section, translate_training_input
from foretell.device import DeviceName, DtypeName, choose_device, choose_training_dtype
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.files import TOKENIZER_FILE, sha256, sync
from foretell.finetuning.chat_data import CHATS, ChatData, Truncation, count_repeated, encode_all, split
from foretell.finetuning.chat_packing import PackedChats
from foretell.finetuning.chat_task import ChatTask
from foretell.finetuning.conversations import ConversationReader
from foretell.language_model import LanguageModel, load_model
from foretell.model.cost import count_parameters
from foretell.model.init import weight_shapes
from foretell.model.lora import LoRAConfig
from foretell.model.vocabulary import with_vocabulary
from foretell.runs.checkpoint import Checkpoint
from foretell.runs.run import RESUMABLE, Run
from foretell.session.environment import log_other_machine, name_of, resumed_precision, resumed_training
from foretell.session.opening import is_resumed, last_checkpoint, new_run, open_run, same_task, training_in
from foretell.session.reporter import Reporter
from foretell.session.resources import check_disk_fits
from foretell.session.session import Session
from foretell.start import Start, find_start
from foretell.text import Tokenizer, load_tokenizer
from foretell.text.chat_format import ChatFormat, prepare_tokenizer
from foretell.text.chat_template import ChatTemplate, find_template, missing_names, own_template

DEFAULT_TEMPLATE, DEFAULT_EPOCHS = "chatml", 3.0
SECTIONS = ("model", "data", "training", "lora")
DEFAULTS = {"batch_size": 8, "weight_decay": 0.01}
SMALL_WIDTH = 512  # below it a model is tuned with the first rate, measured on primer (docs/chat.md), else the second
LEARNING_RATES = 1e-3, 1e-4

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatRequest:
    """What to tune on which conversations. What is left open is chosen later."""

    start: Start | None  # None only to resume
    data: list[Path]
    out: Path
    held_out: Path | None = None  # a file of its own, instead of a part of the data
    template: str | None = None  # a built-in name or a file; None: the model's own, else chatml
    truncation: Truncation | None = None
    spell_tokens: bool = False  # the template's special tokens as text, where the tokenizer lacks them
    epochs: float | None = None
    overrides: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"

    def __post_init__(self) -> None:
        for section in self.overrides:
            check_known(section, SECTIONS, "configuration section")
        if other := [key for key in self.section("model") if key != "dropout"]:
            raise ConfigError(f"the shape is that of the model; leave out model.{other[0]}, only dropout can change")
        if self.epochs is not None and not 0 < self.epochs <= 10_000:
            raise ConfigError(f"epochs must be a positive number of at most 10,000, not {self.epochs:g}")
        if self.epochs is not None and self.section("training").get("steps") is not None:
            raise ConfigError("epochs and steps both say how long to train; give one of them")
        make_section(DataConfig, self.section("data"), "data")
        make_section(LoRAConfig, self.section("lora"), "lora")

    def section(self, name: str) -> dict[str, Any]:
        """What the user set in a section."""
        values = self.overrides.get(name, {})
        return translate_training_input(values) if name == "training" else dict(values)

    @property
    def described(self) -> list[str]:
        """The data as run.json names it."""
        return [str(path) for path in [*self.data, *([] if self.held_out is None else [self.held_out])]]


def tune_chat(
    request: ChatRequest,
    reporter: Reporter,
    *,
    resume: bool = False,
    before: Callable[[Session[ChatTask]], None] = lambda session: None,
) -> Session[ChatTask]:
    """Tune as requested; with `resume`, continue the run if it exists. `before` is called before the next step."""
    with training_in(request.out):
        start = resume_session if is_resumed(request.out, request.described, resume) else start_session
        session = start(request, reporter)
        before(session)
        session.go()
    return session


# --- starting --------------------------------------------------------------------------------------------------------


def start_session(request: ChatRequest, reporter: Reporter) -> Session[ChatTask]:
    """A new run directory with its conversations; if that fails, nothing is left behind."""
    if request.start is None:
        raise UsageError(f"{request.out} is not a run; name a model and a file of conversations to start one")
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    start = request.start
    with new_run(request.out, request.described) as run:
        logger.info(f"run         {run.directory}")
        task = same_task(
            lambda: make_task(request, start, run),
            lambda record: recorded_task(run, record, make_section(Config, record["config"]), None, device),
        )
        logger.info(f"machine     {device.type}, {torch.get_num_threads()} threads, {name_of(dtype)} products")
        session = Session(run, task, task.config.training, device, dtype, reporter)
        session.start()
    return session


def make_task(request: ChatRequest, start: Start, run: Run) -> ChatTask:
    """The task before its first step; logs what was read and chosen, and why."""
    for line in start.notes():
        logger.info(line)
    template = choose_template(request, start)
    tokenizer = choose_tokens(request, template, start.tokenizer)
    data = read_data(request, ChatFormat(template, tokenizer), start.config.context_length)
    data.save(run.tokens)
    tokenizer.save(run.tokens / TOKENIZER_FILE)
    for path in run.tokens.iterdir():
        sync(path)
    config = choose_config(request, data, start.config, tokenizer)
    check_disk_fits(weight_shapes(config.model), config.training, run.directory)
    lora = choose_lora(request, start.config, config.model)
    about = {"data": request.described, "size": start.name, "template": template.name, "from": start.record()}
    about |= {} if lora is None else {"lora": lora.model_dump(mode="json")}
    tuned = first_model(start, config, tokenizer, lora)
    task = ChatTask(config, data, tuned, sha256(run.tokens / CHATS), about)
    for line in describe(task, data):
        logger.info(line)
    return task


def choose_template(request: ChatRequest, start: Start) -> ChatTemplate:
    """The template that was asked for, the model's own, or the default."""
    if request.template is not None:
        template, reason = find_template(request.template), "as asked for"
    elif own := own_template(start.tokenizer, start.name):
        template, reason = own, "the model's own"
    else:
        template, reason = find_template(DEFAULT_TEMPLATE), "the model has none of its own"
    logger.info(f"template    {template.name}: {reason}")
    return template


def choose_tokens(request: ChatRequest, template: ChatTemplate, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with what the template needs; logs which tokens are new."""
    missing = missing_names(template, tokenizer)
    prepared = prepare_tokenizer(tokenizer, template, add_tokens=not request.spell_tokens)
    new = [name for name in prepared.special_tokens if name not in tokenizer.special_tokens]
    if new:
        logger.info(f"tokens      new in the vocabulary: {', '.join(new)}; their rows begin with random values")
    if spelled := [name for name in missing if name not in prepared.special_tokens]:
        logger.info(f"tokens      written as ordinary text: {', '.join(spelled)}")
    return prepared


def read_data(request: ChatRequest, chat_format: ChatFormat, context_length: int) -> ChatData:
    """The tokenized conversations, split."""
    reader = ConversationReader()
    conversations = reader.read(request.data)
    config = make_section(DataConfig, request.section("data"), "data")
    if request.held_out is not None:
        train, held_out = conversations, reader.read([request.held_out])
    else:
        train, held_out = split(conversations, config.validation_fraction, 0)
    notes = list(reader.notes)
    if repeated := count_repeated(train, held_out):
        notes.append(f"{repeated:,} of the held-out conversations are also learned from, word for word")
    parts = []
    for part in (train, held_out):
        chats, more = encode_all(part, chat_format, context_length, request.truncation) if part else ([], [])
        parts.append(chats)
        notes += more
    for note in notes:
        logger.info(f"note        {note}")
    return ChatData(*parts)


def first_model(start: Start, config: Config, tokenizer: Tokenizer, lora: LoRAConfig | None) -> LanguageModel:
    """The model for training, with rows for new tokens, and with new LoRA updates if they are asked for."""
    decoder = start.decoder(config.model.replaced(vocab_size=start.config.vocab_size))
    decoder = with_vocabulary(decoder, config.model.vocab_size, config.training.seed).train()
    if lora is None:
        return LanguageModel(decoder, tokenizer)
    return LanguageModel(decoder, tokenizer, parts={LORA: add_adapters(decoder, lora, config.training.seed)})


def choose_lora(request: ChatRequest, start: ModelConfig, model: ModelConfig) -> LoRAConfig | None:
    """The LoRA updates that were asked for. New tokens need the weights that have a row per token trained too."""
    if "lora" not in request.overrides:
        return None
    lora = make_section(LoRAConfig, request.section("lora"), "lora")
    if model.vocab_size > start.vocab_size and not lora.also_trained:
        rows = ("embed.token.weight",) if model.tie_embeddings else ("embed.token.weight", "head.weight")
        logger.info(f"lora        {' and '.join(rows)} trained too, for the rows of new tokens")
        lora = lora.model_copy(update={"also_trained": rows})
    return lora


def choose_config(request: ChatRequest, data: ChatData, model: ModelConfig, tokenizer: Tokenizer) -> Config:
    """The configuration: steps for the epochs, evaluations and samples spread over them, and what the user set."""
    given = request.section("training")
    rows = len(PackedChats(data.train, model.context_length))
    epochs = DEFAULT_EPOCHS if request.epochs is None else request.epochs
    steps = given.get("steps") or max(1, math.ceil(epochs * rows / make_batch_size(given.get("batch_size"))))
    often = max(1, int(steps) // 10)
    learning_rate = LEARNING_RATES[model.width >= SMALL_WIDTH]
    chosen = {**DEFAULTS, "learning_rate": learning_rate, "steps": steps, "warmup_steps": min(50, often)}
    chosen |= {"evaluate_every": often, "checkpoint_every": often, "sample_every": 2 * often}
    vocab_size = max(model.vocab_size, tokenizer.vocab_size)
    shape = {**model.model_dump(), "vocab_size": vocab_size, **request.section("model")}
    sections = {"model": shape, "data": request.section("data"), "training": chosen | given}
    return make_section(Config, sections, "configuration")


def make_batch_size(given: Any) -> int:
    """The rows per step; anything but a positive integer is left to the configuration to refuse."""
    return given if isinstance(given, int) and given > 0 else DEFAULTS["batch_size"]


def describe(task: ChatTask, data: ChatData) -> list[str]:
    """The conversations, the model and the recipe, in a few lines."""
    train, held_out, training = task.train, task.held_out, task.config.training
    epochs = training.steps * training.batch_size / len(train)
    return [
        f"data        {len(data.train):,} conversations to learn from, {len(data.held_out):,} held out",
        f"tokens      {sum(map(len, data.train)):,}, of which {train.answer_tokens:,} are answers and learned; "
        f"held out {held_out.answer_tokens:,}",
        f"rows        {len(train):,} of {train.length} tokens, {train.share_of_padding:.0%} padding; read "
        f"{epochs:.1f} times",
        f"model       {task.about['size']}, {count_parameters(task.config.model):,} parameters",
        f"recipe      {training.optimizer}, learning rate {training.learning_rate:g}, {training.schedule} schedule, "
        f"{training.steps:,} steps of {training.batch_size:,} rows",
    ]


# --- resuming --------------------------------------------------------------------------------------------------------


def resume_session(request: ChatRequest, reporter: Reporter) -> Session[ChatTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    run = open_run(request.out)
    record = run.record()
    config = make_section(Config, record["config"], str(run.directory))
    check_same_run(request, record, config)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    training = resumed_training(run, config.training, request.section("training"))
    config = config.model_copy(update={"training": training})
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    checkpoint = last_checkpoint(run)
    task = recorded_task(run, record, config, checkpoint, device)
    session = Session(run, task, training, device, dtype, reporter)
    if checkpoint is None:
        run.forget_metrics_after(0)
    else:
        session.restore(checkpoint)
    done = 0 if checkpoint is None else checkpoint.step
    state = "finished   " if done >= training.steps else "resuming   "
    logger.info(f"{state} {run.directory} after step {done:,} of {training.steps:,}")
    return session


def recorded_task(
    run: Run, record: dict[str, Any], config: Config, checkpoint: Checkpoint | None, device: torch.device
) -> ChatTask:
    """The task of a run as it was at a checkpoint, or before its first step."""
    tuned = resumed_model(run, record, config, checkpoint, device)
    data = ChatData.load(run.tokens, record["conversations"])
    about = {key: record[key] for key in ("data", "size", "template", "from", "lora") if key in record}
    return ChatTask(config, data, tuned, record["conversations"], about)


def resumed_model(
    run: Run, record: dict[str, Any], config: Config, checkpoint: Checkpoint | None, device: torch.device
) -> LanguageModel:
    """The model of a checkpoint, or the one that the run began with."""
    tokenizer = load_tokenizer(run.tokens / TOKENIZER_FILE)
    if checkpoint is not None:
        return replace(load_model(checkpoint.directory, device, for_training=True), tokenizer=tokenizer)
    start = find_start(record["from"], run.directory)
    assert start is not None, "a chat run begins with a model"
    lora = make_section(LoRAConfig, record["lora"], "lora") if "lora" in record else None
    return first_model(start, config, tokenizer, lora)


def check_same_run(request: ChatRequest, record: dict[str, Any], config: Config) -> None:
    """Refuse a run of another task, and settings, data or models other than those it was started with."""
    if "conversations" not in record:
        raise CheckpointError(f"{request.out} is not a run of the task chat; resume it with the verb that made it")
    changed = {"data": (record["data"], request.described or record["data"])}
    if request.template is not None:
        changed["template"] = (record["template"], find_template(request.template).name)
    if request.start is not None:
        changed["model"] = (record["from"]["weights_sha256"], request.start.digest)
    if "lora" in request.overrides:
        old = make_section(LoRAConfig, record.get("lora", {}), "lora")
        new = make_section(LoRAConfig, old.model_dump() | request.section("lora"), "lora")
        changed["lora"] = ("lora" in record and old, new)
    for name in request.overrides.keys() - {"lora"}:
        old = getattr(config, name)
        new = make_section(type(old), {**old.model_dump(), **request.section(name)}, name)
        fields = [key for key in type(old).model_fields if not (name == "training" and key in RESUMABLE)]
        changed |= {f"{name}.{key}": (getattr(old, key), getattr(new, key)) for key in fields}
    for what, (old, new) in changed.items():
        if old != new:
            raise ConfigError(
                f"{request.out} was started with {what} = {old}, not {new}; leave it out to resume, or start again "
                "with another --out"
            )
