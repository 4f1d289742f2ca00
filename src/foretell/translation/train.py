"""Train a translation model: from a request to a run, new or resumed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from foretell.config import TokenizerConfig, TrainingConfig, check_known, make_section
from foretell.device import DeviceName, DtypeName, choose_device, choose_training_dtype
from foretell.errors import CheckpointError, ConfigError
from foretell.files import sync, write_text
from foretell.model.kernels.dispatch import Use, choose_kernels
from foretell.planning.memory import device_memory
from foretell.runs.run import RESUMABLE, Run
from foretell.session.environment import log_other_machine, name_of, resumed_precision, resumed_training
from foretell.session.opening import is_resumed, last_checkpoint, new_run, open_run, same_task, training_in
from foretell.session.reporter import Reporter
from foretell.session.resources import check_disk_fits, check_model_fits
from foretell.session.session import Session
from foretell.text import load_tokenizer
from foretell.training.optimizer import make_optimizer
from foretell.training.step import training_step
from foretell.translation.batches import PairLoader
from foretell.translation.config import (
    EncoderDecoderConfig,
    PairConfig,
    TranslationConfig,
    preset,
    shape_config,
)
from foretell.translation.encoder_decoder import EncoderDecoder
from foretell.translation.initial import make_encoder_decoder, weight_shapes
from foretell.translation.objective import PairObjective
from foretell.translation.pairs import Pair, read_pairs, split_pairs
from foretell.translation.recipe import dropout_for, training_defaults
from foretell.translation.task import LOGITS_AT_ONCE, PairData, TranslationTask, make_loader
from foretell.translation.translator import SOURCE_TOKENIZER_FILE, load_saved
from foretell.translation.vocabulary import Vocabulary, make_vocabulary, train_vocabulary

SECTIONS = tuple(TranslationConfig.model_fields)
DEFAULT_SIZE, DEFAULT_MINUTES, MOST_MINUTES = "small", 10.0, 10 * 525_600
MOST_EPOCHS = 30  # more passes over the same pairs mostly memorise them
PROBE_SECONDS, PROBE_STEPS = 8.0, 4  # at least so many steps, since their lengths differ
TOKENIZER_FILE = "tokenizer.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairRequest:
    """What to train on which pairs. `overrides` holds sections of a configuration; what is left open is chosen."""

    paths: Sequence[str | Path]
    out: Path
    size: str = DEFAULT_SIZE
    minutes: float | None = None  # of training
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_shared: bool = True  # one vocabulary for both languages
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    pairs: PairData | None = None  # instead of those in `paths`

    def __post_init__(self) -> None:
        for section in self.overrides:
            check_known(section, SECTIONS, "configuration section")
        preset(self.size)
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            raise ConfigError(f"minutes must be a positive number of at most {MOST_MINUTES:,}, not {self.minutes:g}")
        if self.minutes is not None and "steps" in self.section("training"):
            raise ConfigError("minutes and steps both say how long to train; give one of them")
        if "batch_size" in self.section("training"):
            raise ConfigError("batches are counted in tokens here: give pairs.batch_tokens (--batch-tokens) instead")
        for name, section in (("model", EncoderDecoderConfig), ("training", TrainingConfig)):
            for key in self.section(name):
                check_known(key, tuple(section.model_fields), f"key in {name}:")
        make_section(TokenizerConfig, self.section("tokenizer"), "tokenizer")
        self.pair_config()

    @property
    def described(self) -> list[str]:
        """The data as the user named it."""
        return [str(path) for path in self.paths]

    def section(self, name: str) -> dict[str, Any]:
        """What the user set in a section."""
        return {key.replace("-", "_"): value for key, value in self.overrides.get(name, {}).items()}

    def pair_config(self) -> PairConfig:
        """How pairs become batches."""
        return make_section(PairConfig, self.section("pairs"), "pairs")


def train_translation(request: PairRequest, reporter: Reporter, *, resume: bool = False) -> Session[TranslationTask]:
    """Train as requested; with `resume`, continue the run if it exists."""
    with training_in(request.out):
        start = resume_session if is_resumed(request.out, request.described, resume) else start_session
        session = start(request, reporter)
        session.go()
    return session


def start_session(request: PairRequest, reporter: Reporter) -> Session[TranslationTask]:
    """A new run with its pairs and vocabularies, and a new model; if that fails, nothing is left behind."""
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    with new_run(request.out, request.described) as run:
        logger.info(f"run         {run.directory}")
        task = same_task(
            lambda: make_task(request, run, device, dtype),
            lambda record: recorded_task(run, record, make_section(TranslationConfig, record["config"])),
        )
        session = Session(run, task, task.config.training, device, dtype, reporter)
        session.start()
    return session


def make_task(request: PairRequest, run: Run, device: torch.device, dtype: torch.dtype) -> TranslationTask:
    """The task with its configuration and a new model; logs what was chosen and why."""
    data_config = request.pair_config()
    data = request.pairs or read_data(request.paths, data_config)
    tokenizer_config = make_section(TokenizerConfig, request.section("tokenizer"), "tokenizer")
    vocabulary = train_vocabulary(data.train, tokenizer_config, is_shared=request.is_shared)
    sizes: dict[str, Any] = {"vocab_size": vocabulary.target.vocab_size}
    if not vocabulary.is_shared:
        sizes["source_vocab_size"] = vocabulary.source.vocab_size
    model = shape_config(request.size, request.section("model"), **sizes)
    chosen = request.section("training")
    probe = make_section(TrainingConfig, {**training_defaults(model, 1), **chosen, "steps": 1}, "training")
    check_model_fits(weight_shapes(model), probe, device_memory(device))
    loader = make_loader(data, vocabulary, data_config, probe.seed)
    steps, reason = choose_steps(request, loader, lambda: seconds_per_step(model, probe, loader, device, dtype))
    epochs = steps / loader.batches_per_epoch
    training = make_section(TrainingConfig, {**training_defaults(model, steps), **chosen, "steps": steps}, "training")
    if "dropout" not in request.section("model"):
        model = model.replaced(dropout=dropout_for(epochs))
    config = TranslationConfig(model=model, tokenizer=tokenizer_config, pairs=data_config, training=training)
    check_disk_fits(weight_shapes(model), training, run.directory)
    store(data, vocabulary, run.tokens)
    about: dict[str, Any] = {"data": request.described, "size": request.size, "reasons": [reason]}
    task = TranslationTask(config, data, vocabulary, make_encoder_decoder(model, training.seed), loader, about)
    for line in (*describe(task), reason):
        logger.info(line)
    logger.info(f"machine     {device.type}, {torch.get_num_threads()} threads, {name_of(dtype)} products")
    return task


def read_data(paths: Sequence[str | Path], config: PairConfig) -> PairData:
    """The pairs of files, split by the hash of their source."""
    parts = split_pairs(read_pairs(paths), config.validation_fraction)
    return PairData(parts["train"], parts["validation"])


def choose_steps(request: PairRequest, loader: PairLoader, measure: Callable[[], float]) -> tuple[int, str]:
    """The number of steps, and the reason for it. `measure` returns the seconds of a step."""
    per_epoch, chosen = loader.batches_per_epoch, request.section("training")
    if "steps" in chosen:
        steps, reason = int(chosen["steps"]), "as asked"
    else:
        seconds, minutes = measure(), request.minutes or DEFAULT_MINUTES
        steps, reason = max(1, int(60 * minutes / seconds)), f"{minutes:g} minutes at {seconds:.2f} s per step"
        if request.minutes is None and steps > MOST_EPOCHS * per_epoch:
            steps, reason = MOST_EPOCHS * per_epoch, "more would mostly memorise the pairs"
    return steps, f"steps       {steps:,} ({steps / per_epoch:.1f} times the pairs): {reason}"


def seconds_per_step(
    model: EncoderDecoderConfig, training: TrainingConfig, loader: PairLoader, device: torch.device, dtype: torch.dtype
) -> float:
    """The mean time of a training step of this shape on this machine, measured on real batches."""
    shape = model.replaced(dropout=dropout_for(MOST_EPOCHS))
    objective = PairObjective(make_encoder_decoder(shape, 0).to(device), LOGITS_AT_ONCE, training.label_smoothing)
    choose_kernels(objective.decoder, Use(device, dtype, model.context_length, is_training=True))
    training = training.model_copy(update={"weight_decay_by_path": {}, "frozen": ()})
    optimizer = make_optimizer(objective.train().decoder, training, dtype)
    _ = training_step(objective, optimizer, loader.batch(0), 0, training, dtype).loss  # the first one warms up
    started, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < PROBE_SECONDS or steps < PROBE_STEPS:
        steps += 1
        _ = training_step(objective, optimizer, loader.batch(steps), steps, training, dtype).loss  # waits for a GPU
    return elapsed / steps


def describe(task: TranslationTask) -> list[str]:
    """The pairs, the model and the recipe of a run, in a few lines."""
    data, model, training, loader = task.data, task.config.model, task.config.training, task.loader
    sizes = {tokenizer.vocab_size for tokenizer in (task.vocabulary.source, task.vocabulary.target)}
    kind = "one vocabulary" if task.vocabulary.is_shared else "two vocabularies"
    lines = [
        f"pairs       {len(data.train):,} to learn from, {len(data.validation):,} held out, by a hash of the source",
        f"tokens      {loader.lengths[:, 0].sum():,} source and {loader.lengths[:, 1].sum():,} target, {kind} of "
        f"{', '.join(f'{size:,}' for size in sorted(sizes))}; {loader.padding:.1%} padding in batches",
        f"model       {task.about['size']}, {sum(weight.numel() for weight in task.model.parameters()):,} parameters: "
        f"{model.encoder.num_layers} + {model.num_layers} layers, {model.num_heads} heads, width {model.width}",
        f"recipe      {training.optimizer}, learning rate {training.learning_rate:g}, {training.schedule} schedule, "
        f"{task.config.pairs.batch_tokens:,} tokens per step, dropout {model.dropout.residual:g}, label smoothing "
        f"{training.label_smoothing:g}",
    ]
    if task.left_out:
        limit = task.config.pairs.longest
        lines.append(f"left out    {task.left_out:,} pairs with more than {limit} tokens in a sentence (pairs.longest)")
    return lines


# --- resuming --------------------------------------------------------------------------------------------------------


def store(data: PairData, vocabulary: Vocabulary, folder: Path) -> None:
    """Keep pairs and tokenizers in the run, so that it can resume without the files that it was made from."""
    for name, pairs in (("train.tsv", data.train), ("validation.tsv", data.validation)):
        write_text(folder / name, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
    for name, tokenizer in ((TOKENIZER_FILE, vocabulary.target), (SOURCE_TOKENIZER_FILE, vocabulary.source)):
        tokenizer.save(folder / name)
        sync(folder / name)


def stored(folder: Path) -> tuple[PairData, Vocabulary]:
    """What `store` has kept."""
    sides = []
    for name in ("train.tsv", "validation.tsv"):
        try:
            lines = (folder / name).read_bytes().decode("utf-8").split("\n")  # read_text would also cut at CR
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}; start again with another --out") from None
        sides.append([Pair(*line.split("\t")) for line in lines if line])
    tokenizers = (load_tokenizer(folder / name) for name in (SOURCE_TOKENIZER_FILE, TOKENIZER_FILE))
    return PairData(*sides), make_vocabulary(*tokenizers)


def resume_session(request: PairRequest, reporter: Reporter) -> Session[TranslationTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    run = open_run(request.out)
    record = run.record()
    if record.get("task") != "translate":
        raise ConfigError(f"{run.directory} was not trained with --task translate; give another --out")
    config = make_section(TranslationConfig, record["config"], str(run.directory))
    check_same_settings(request, config, record)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    training = resumed_training(run, config.training, request.section("training"))
    config = config.model_copy(update={"training": training})
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        run.forget_metrics_after(0)
        return Session(run, recorded_task(run, record, config), training, device, dtype, reporter)
    model = load_saved(checkpoint.directory, device, for_training=True).model
    session = Session(run, recorded_task(run, record, config, model), training, device, dtype, reporter)
    session.restore(checkpoint)
    logger.info(f"resuming    {run.directory} after step {checkpoint.step:,} of {training.steps:,}")
    return session


def recorded_task(
    run: Run, record: dict[str, Any], config: TranslationConfig, model: EncoderDecoder | None = None
) -> TranslationTask:
    """The task of a run, with a new model where none is given."""
    data, vocabulary = stored(run.tokens)
    about = {key: record[key] for key in ("data", "size", "reasons")}
    loader = make_loader(data, vocabulary, config.pairs, config.training.seed)
    model = model or make_encoder_decoder(config.model, config.training.seed)
    return TranslationTask(config, data, vocabulary, model, loader, about)


def check_same_settings(request: PairRequest, config: TranslationConfig, record: dict[str, Any]) -> None:
    """Refuse data or settings other than those the run was started with; what is left out stays the same."""
    changed = {} if request.described in ([], record["data"]) else {"data": (record["data"], request.described)}
    for name in request.overrides:
        old = getattr(config, name)
        new = make_section(type(old), {**old.model_dump(), **request.section(name)}, name)
        for key in type(old).model_fields:
            if getattr(new, key) != getattr(old, key) and not (name == "training" and key in RESUMABLE):
                changed[f"{name}.{key}"] = (getattr(old, key), getattr(new, key))
    for name, (before, now) in changed.items():
        raise ConfigError(
            f"{request.out} was started with {name} = {before}, not {now}; leave it out to resume, or start again with "
            "another --out"
        )
