"""Pretraining from a request to a trained model: start a run, or resume one."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from typing import Any

import torch

from foretell.config import Config, make_section
from foretell.data.row_stream import RowStream
from foretell.data.shards import TokenStore
from foretell.device import choose_device, choose_training_dtype
from foretell.distributed.world import current_world
from foretell.files import sync
from foretell.language_model import load_model
from foretell.model.init import make_decoder, weight_shapes
from foretell.planning.memory import device_memory
from foretell.planning.probe import measure_speed
from foretell.pretraining.old_domain import OLD_DOMAIN
from foretell.pretraining.request import Request, how_to_extend
from foretell.pretraining.resolve import Facts, RowFacts, check_size_fits, resolve
from foretell.pretraining.task import ContinuedTextTask, TextTask, describe_training
from foretell.pretraining.tokens import TokenizedText, open_tokens, tokenize_text
from foretell.pretraining.training_data import check_store
from foretell.runs.checkpoint import list_checkpoints
from foretell.runs.run import Run
from foretell.session.environment import log_other_machine, name_of, resumed_precision, resumed_training
from foretell.session.opening import is_resumed, last_checkpoint, new_run, open_run, same_task, training_in
from foretell.session.reporter import Reporter
from foretell.session.resources import check_disk_fits
from foretell.session.session import Session
from foretell.start import Start, find_start

logger = logging.getLogger(__name__)


def pretrain(request: Request, reporter: Reporter, *, resume: bool = False) -> Session[TextTask]:
    """Train as requested; with `resume`, continue the run if it exists."""
    with training_in(request.out):
        session = open_session(request, reporter, resume=resume)
        session.go()
    return session


def open_session(request: Request, reporter: Reporter, *, resume: bool = False) -> Session[TextTask]:
    """The session of a new run; with `resume`, that of the run if it exists."""
    if is_resumed(request.out, request.described, resume):
        return resume_session(request, reporter)
    return start_session(request, reporter)


def start_session(request: Request, reporter: Reporter) -> Session[TextTask]:
    """A new run directory with its tokens, and a new model; if that fails, nothing is left behind."""
    device = choose_device(request.device)
    dtype = choose_training_dtype(request.dtype, device)
    if request.size is not None:
        check_size_fits(request, request.size, device_memory(device))
    with new_run(request.out, request.described) as run:
        task = same_task(
            lambda: resolve_task(request, load_text(request, run, reporter), run, device, dtype),
            lambda record: recorded_task(run, record, make_section(Config, record["config"])),
        )
        session = Session(run, task, task.config.training, device, dtype, reporter)
        session.start()
    return session


def load_text(request: Request, run: Run, reporter: Reporter) -> TokenizedText:
    """The tokens of the request: an existing store, or one made now inside the run."""
    logger.info(f"run         {run.directory}")
    for line in [] if request.start is None else request.start.notes():
        logger.info(line)
    if request.tokens is not None:
        text = open_tokens(request.tokens, request.given_tokenizer)
        check_store(text.store, request.data_config())
        shutil.copytree(request.tokens, run.tokens, dirs_exist_ok=True)
        for path in run.tokens.iterdir():
            sync(path)
        return text
    return tokenize_text(
        request.source,
        request.tokenizer_config(),
        request.data_config(),
        run.tokens,
        reporter,
        request.given_tokenizer,
        request.old_domain,
        request.workers,
    )


def resolve_task(request: Request, text: TokenizedText, run: Run, device: torch.device, dtype: torch.dtype) -> TextTask:
    """The task with its configuration and a model before its first step; logs what was chosen and why."""
    facts = Facts(
        vocab_size=text.tokenizer.vocab_size,
        train_tokens=len(text.store.split("train")),
        memory=device_memory(device),
        measure_speed=partial(measure_speed, device=device, dtype=dtype, processes=current_world().size),
        rows=row_facts(text.store) if request.data_config().rows else None,
        as_bytes=0 if request.given_tokenizer else text.store.split("train").bytes,
    )
    config, reasons, size = resolve(request, facts)
    check_disk_fits(weight_shapes(config.model), config.training, run.directory)
    for line in describe_training(config, text, size, reasons):
        logger.info(line)
    count = current_world().size
    several = "" if count == 1 else f"{count} processes ({config.training.parallel}), each "
    logger.info(f"machine     {several}{device.type}, {torch.get_num_threads()} threads, {name_of(dtype)} products")
    about: dict[str, Any] = {"data": request.described, "size": size, "reasons": reasons, "verb": request.verb}
    if request.start is not None:
        about["from"] = request.start.record()
    if request.old_domain is not None:
        about[OLD_DOMAIN] = request.old_domain.described
    return first_task(config, text, request.start, about)


def row_facts(store: TokenStore) -> RowFacts:
    """What the index of a store of rows says about them."""
    longest = max(RowStream.open(store, name).longest for name in ("train", "validation"))
    return RowFacts(store.splits["train"].documents, longest, str(store.extra["rows"].get("longest", store.directory)))


def first_task(config: Config, text: TokenizedText, start: Start | None, about: dict[str, Any]) -> TextTask:
    """The task with a new model, or with the one that it continues from."""
    if start is None:
        return TextTask(config, text, make_decoder(config.model, config.training.seed), about)
    return ContinuedTextTask(config, text, start.decoder(config.model), about)


def resume_session(request: Request, reporter: Reporter) -> Session[TextTask]:
    """The run as it was after its last intact checkpoint, or before its first step if it has none yet."""
    run = open_run(request.out)
    record = run.record()
    config = make_section(Config, record["config"], str(run.directory))
    text = open_tokens(run.tokens)
    if current_world().is_first:
        text.store.verify()  # training would not notice a changed id
    checkpoints = list_checkpoints(run.checkpoints)
    request.check_not_extended(config.training.steps, checkpoints[-1].step if checkpoints else 0)
    request.check_same_run(config, record, text.tokenizer)
    device, dtype = resumed_precision(record, request.device, request.dtype)
    training = resumed_training(run, config.training, request.section("training"))
    config = config.model_copy(update={"training": training})
    log_other_machine(run, device, dtype)
    run.clear_leftovers()
    if request.minutes is not None:
        logger.info(f"steps       {training.steps:,}, as fixed when the run was started")
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        logger.info(f"resuming    {run.directory} from the start: it was stopped before its first checkpoint")
        run.forget_metrics_after(0)
        return Session(run, recorded_task(run, record, config), training, device, dtype, reporter)
    decoder = load_model(checkpoint.directory, device, for_training=True).decoder
    task = TextTask(config, text, decoder, recorded(record))
    session = Session(run, task, training, device, dtype, reporter)
    session.restore(checkpoint)
    if checkpoint.step >= training.steps:
        logger.info(f"finished    {run.directory} has all its {training.steps:,} steps; {how_to_extend(run.directory)}")
    else:
        logger.info(f"resuming    {run.directory} after step {checkpoint.step:,} of {training.steps:,}")
    return session


def recorded_task(run: Run, record: dict[str, Any], config: Config) -> TextTask:
    """The task of a run before its first step, from what is known about it."""
    start = find_start(record.get("from"), run.directory)
    return first_task(config, open_tokens(run.tokens), start, recorded(record))


def recorded(record: dict[str, Any]) -> dict[str, Any]:
    """What run.json says about the data, the size and the start of a run."""
    return {key: record[key] for key in ("data", "size", "reasons", "verb", "from", OLD_DOMAIN) if key in record}
